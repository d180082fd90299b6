"""The native backend over the real engine and the bundled model, in process and over a socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from schemas.completion import Completion
from schemas.errors import BackendUnavailable, InvalidRequest
from schemas.ir import ChatPrompt, FinishReason, Generate, Grammar, Message, Sampling, Stopping, TextPrompt
from tests.backends import laws
from tests.backends.native.fake_engine import until

pytestmark = pytest.mark.torch

QUESTIONS = (
    "What is the capital of France?",
    "What is the opposite of hot?",
    "Repeat after me: silver river 🙂 silver river",
    "Tell me a story.",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["inprocess", "process"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[NativeBackend]:
    options = {"engine": request.param, "threads": 1, "dtype": "float32", "max_sequences": 8, "heartbeat": 0.05}
    backend = NativeBackend("native", options)
    await backend.start()
    yield backend
    await backend.aclose()
    assert backend._socket_folder is None or not backend._socket_folder.exists()


module_loop = pytest.mark.asyncio(loop_scope="module")


def chat(text: str) -> tuple[ChatPrompt]:
    return (ChatPrompt((Message("user", text),)),)


def request(**fields: Any) -> Generate:
    fields = {"id": "r1", "model": "demo", "sampling": Sampling(temperature=0.0)} | fields
    return Generate(**fields)


async def ask(backend: NativeBackend, **fields: Any) -> Completion:
    asked = request(**fields)
    return laws.check(await laws.collect(backend.generate(asked)), asked)


def generated_by_transformers(texts: tuple[str, ...], new: int) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32).eval()
    answers = []
    for text in texts:
        messages = [{"role": "user", "content": text}]
        given = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(**given, max_new_tokens=new, do_sample=False)
        answers.append(tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


@module_loop
async def test_greedy_text_is_that_of_transformers(backend: NativeBackend) -> None:
    stopping = Stopping(max_new_tokens=24)
    answers = await asyncio.gather(*(ask(backend, prompts=chat(text), stopping=stopping) for text in QUESTIONS))
    texts = [answer.choices[0].text for answer in answers]
    assert texts == generated_by_transformers(QUESTIONS, 24)
    assert "Paris" in texts[0]
    assert answers[0].choices[0].reason is FinishReason.EOS


@module_loop
async def test_a_seed_gives_the_same_answer_in_any_batch(backend: NativeBackend) -> None:
    sampling = Sampling(temperature=1.5, seed=11)
    fields: dict[str, Any] = {"prompts": chat("Tell me a story."), "sampling": sampling}
    alone = await ask(backend, **fields)
    company = await asyncio.gather(*(ask(backend, **fields, n=n) for n in (1, 2, 3)))
    assert [answer.choices[0] for answer in company] == [alone.choices[0]] * 3
    assert len({choice.text for choice in company[2].choices}) > 1


@module_loop
async def test_stop_strings_free_the_engine(backend: NativeBackend) -> None:
    answer = await ask(backend, prompts=chat(QUESTIONS[0]), stopping=Stopping(stop=("ital of",)))
    assert (answer.choices[0].text, answer.choices[0].stop) == ("The cap", "ital of")
    await idle(backend)


@module_loop
async def test_logprobs_are_those_of_the_most_probable_tokens(backend: NativeBackend) -> None:
    answer = await ask(backend, prompts=chat(QUESTIONS[0]), top_logprobs=3, prompt_logprobs=True)
    for token in answer.choices[0].tokens:
        assert token.logprob is not None
        assert token.logprob <= 0
        assert (token.top[0].id, token.top[0].logprob) == (token.id, pytest.approx(token.logprob))
        assert len(token.top) == 3
    first, *others = answer.prompts[0]
    assert first.logprob is None
    assert all(token.logprob is not None and len(token.top) == 3 for token in others)


@module_loop
async def test_a_prompt_that_is_not_raw_equals_a_chat(backend: NativeBackend) -> None:
    whole = await ask(backend, prompts=(TextPrompt("What is a star?"),), raw_prompt=False)
    same = await ask(backend, prompts=chat("What is a star?"))
    assert whole.choices[0].text == same.choices[0].text == "A star is a big ball of hot gas."


@module_loop
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_closing_the_streams_frees_the_engine(backend: NativeBackend, count: int) -> None:
    stopping = Stopping(ignore_eos=True)
    streams = [backend.generate(request(prompts=chat("Hi"), stopping=stopping, n=2)) for _ in range(3)]
    await asyncio.gather(*(laws.take(stream, count) for stream in streams))
    await idle(backend)


@module_loop
async def test_a_grammar_that_grows_while_it_is_followed_is_the_clients_error(backend: NativeBackend) -> None:
    grammar = Grammar("regex", "^(.{0,300}){0,300}$")
    asked = request(prompts=chat("Tell me a story."), stopping=Stopping(max_new_tokens=64), grammar=grammar)
    with pytest.raises(
        InvalidRequest, match=r"^The grammar cannot be followed: it takes more time or memory"
    ) as raised:
        await laws.collect(backend.generate(asked))
    assert raised.value.param == "response_format"
    await ask(backend, prompts=chat("Hi"), stopping=Stopping(max_new_tokens=4))


async def idle(backend: NativeBackend) -> None:
    """Wait until the engine reports that it is idle: after its current step, during which it answers pings."""
    client = backend._client
    token = client.links[0].pong.token if client.links[0].pong else -1
    await until(
        lambda: (
            client.links[0].pong is not None
            and client.links[0].pong.token > token + 1
            and not client.links[0].pong.running
        )
    )
    assert client.links[0].pong is not None
    assert client.links[0].pong.waiting == 0
    assert client.links[0].pong.free_blocks == client.links[0].pong.total_blocks
    assert not client.busy


async def test_requests_continue_after_the_engine_is_killed() -> None:
    backend = NativeBackend("native", {"threads": 1, "heartbeat": 0.05, "reconnect_timeout": 300.0})
    await backend.start()
    assert backend._process is not None
    assert backend._process._process is not None
    long = {"prompts": chat("Hi"), "stopping": Stopping(200, ignore_eos=True)}
    undisturbed = await ask(backend, **long)
    begun = backend.generate(request(**long))
    first = await anext(begun)
    waiting = asyncio.create_task(ask(backend, prompts=chat(QUESTIONS[0])))
    for _ in range(1000):  # its prompt is rendered in a child process
        if len(backend._client._unfinished()) == 2:
            break
        await asyncio.sleep(0.001)
    assert len(backend._client._unfinished()) == 2
    os.kill(backend._process._process.process.pid, signal.SIGKILL)
    disturbed = laws.check((*first, *await laws.collect(begun)), request(**long))
    assert [(one.text, [token.id for token in one.tokens]) for one in disturbed.choices] == [
        (one.text, [token.id for token in one.tokens]) for one in undisturbed.choices
    ], "it continued with the next token"
    assert "Paris" in (await waiting).choices[0].text, "submitted to the next engine"
    assert (await backend.healthy()).status == "ready"
    await backend.aclose()


async def test_several_workers_share_an_engine(tmp_path: Path) -> None:
    owner = NativeBackend("native", {"threads": 1})
    await owner.start()
    assert owner._socket_folder is not None
    other = NativeBackend("native", {"socket": str(owner._socket_folder / "socket")})
    await other.start()
    for answer in await asyncio.gather(*(ask(each, prompts=chat(QUESTIONS[0])) for each in (owner, other))):
        assert "Paris" in answer.choices[0].text
    await other.aclose()
    await owner.aclose()


async def test_start_fails_without_a_model(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((WEIGHTS / name).read_bytes())
    backend = NativeBackend("native", {"model": str(tmp_path), "threads": 1})
    with pytest.raises(BackendUnavailable):
        await backend.start()
    assert backend._socket_folder is not None
    assert not backend._socket_folder.exists()
