"""The native backend over an engine without a model: from a request to its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.base import EngineState, Feature, Health
from backends.native.backend import NativeBackend
from backends.native.protocol.messages import Failed, Output, Pong, Step, Submit
from schemas.completion import Completion
from schemas.errors import (
    BackendFailed,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Finished,
    FinishReason,
    Generate,
    Message,
    Sampling,
    Started,
    Stopping,
    TextPrompt,
    Tokenize,
    TokensPrompt,
    Tool,
    ToolChoice,
    TopToken,
    Usage,
)
from tests.backends import laws
from tests.backends.native.fake_engine import FakeEngine, until

pytestmark = pytest.mark.torch

ANSWER = "The quick brown 🙂 says hello 世界."


@pytest.fixture(scope="module")
def codec() -> Any:
    from backends.native.demo import WEIGHTS
    from backends.native.text.codec import TextCodec

    return TextCodec.load(str(WEIGHTS))


@pytest.fixture
async def engine(codec: Any) -> FakeEngine:
    ids = list(codec._tokenizer.encode(ANSWER))

    def answer(submit: Submit) -> Iterator[int]:
        return cycle(ids) if not submit.eos_token_ids else iter(ids)

    return FakeEngine(rule=answer)


@pytest.fixture
async def backend(engine: FakeEngine) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend("native", {"heartbeat": 0.01}, connect=engine.connect)
    await backend.start()
    yield backend
    assert not engine.running
    assert not backend._client.busy
    await backend.aclose()
    assert not engine.connections
    assert asyncio.all_tasks() == {asyncio.current_task()}


def request(text: str = "Hello", **fields: Any) -> Generate:
    fields = {
        "id": "r1",
        "model": "demo",
        "prompts": (TextPrompt(text),),
        "sampling": Sampling(temperature=0.0),
        "stream": True,
    } | fields
    return Generate(**fields)


async def ask(backend: NativeBackend, asked: Generate) -> Completion:
    return laws.check(await laws.collect(backend.generate(asked)), asked)


async def test_a_streamed_answer(backend: NativeBackend, engine: FakeEngine) -> None:
    asked = request()
    batches = [batch async for batch in backend.generate(asked)]
    assert isinstance(batches[0][0], Started)
    assert len(batches[0]) == 2, "`Started` comes with the first token"
    answer = laws.check(tuple(event for batch in batches for event in batch), asked)
    (choice,) = answer.choices
    assert (answer.model, choice.text, choice.reason) == ("demo", ANSWER, FinishReason.EOS)
    assert (choice.tokens[-1].text, choice.tokens[-1].special) == ("<|end|>", True)
    (submit,) = engine.submitted
    assert answer.usage == Usage(len(submit.prompt), len(choice.tokens), cached_tokens=len(submit.prompt) - 1)
    assert engine.cancelled == []


async def test_capabilities_and_health(backend: NativeBackend) -> None:
    can = backend.capabilities
    assert (can.context_length, can.vocab_size, can.dtype, can.device) == (2048, 768, "float32", "cpu")
    assert {Feature.CHAT, Feature.LOGPROBS, Feature.BEST_OF, Feature.GRAMMAR} <= can.features
    assert Feature.TOOLS in can.features
    assert not {Feature.IMAGES, Feature.LORA} & can.features
    assert await backend.healthy() == Health("ready")


async def test_health_is_loading_until_the_image_processor_is_loaded(engine: FakeEngine) -> None:
    engine.ready = msgspec.structs.replace(engine.ready, image_tokens=9)  # its processor takes a while to load
    backend = NativeBackend("native", {"heartbeat": 0.01}, connect=engine.connect)
    starting = asyncio.create_task(backend.start())
    while not starting.done():
        assert backend.capabilities.features or (await backend.healthy()).status == "loading"
        await asyncio.sleep(0)
    assert (await backend.healthy()).status == "ready"
    await backend.aclose()


async def test_the_engine_state_is_the_latest_pong(backend: NativeBackend) -> None:
    (link,) = backend._client.links
    link.pong = None
    assert backend.engine_states == {"0": None}
    link.pong = Pong(0, 3, 2, 6, 8, 1, 100, 64, drafts=5, draft_tokens=30, accepted_tokens=21)
    assert backend.engine_states["0"] == EngineState(
        3, 2, 0.25, 1, 100, 64, drafts=5, draft_tokens=30, accepted_tokens=21
    )
    link.ready = None
    assert backend.engine_states == {"0": None}


async def test_the_request_is_submitted_with_all_parameters(backend: NativeBackend, engine: FakeEngine) -> None:
    sampling = Sampling(
        do_sample=True,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias=((7, 2.0),),
        seed=2**64 - 1,
        watermark=True,
    )
    stopping = Stopping(max_new_tokens=5, min_new_tokens=2, stop_token_ids=(700,), ignore_eos=True)
    await ask(backend, request(sampling=sampling, stopping=stopping, n=2, top_logprobs=3, prompt_logprobs=True))
    first, second = engine.submitted
    asked = {name: getattr(first.sampling, name) for name in first.sampling.__struct_fields__}
    assert asked == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": ((7, 2.0),),
        "seed": 2**64 - 1,
        "watermark": True,
    }
    assert (first.max_new_tokens, first.min_new_tokens, first.stop_token_ids, first.eos_token_ids) == (5, 2, (700,), ())
    assert (first.top_logprobs, first.prompt_logprobs) == (3, 3)
    assert (second.sampling.seed, second.prompt_logprobs) == (0, -1)


async def test_parameters_that_are_not_set_are_neutral(backend: NativeBackend, engine: FakeEngine) -> None:
    await ask(backend, request(sampling=Sampling()))
    await ask(backend, request(sampling=Sampling(do_sample=True)))
    greedy, sampled = engine.submitted
    assert (greedy.sampling.temperature, sampled.sampling.temperature) == (0.0, 1.0)
    neutral = type(greedy.sampling)()
    assert msgspec.structs.replace(greedy.sampling, seed=0) == neutral
    assert greedy.max_new_tokens == 2048 - len(greedy.prompt)
    assert (greedy.top_logprobs, greedy.prompt_logprobs) == (-1, -1)
    assert greedy.sampling.seed != sampled.sampling.seed, "each request draws its own seed"


async def test_background_requests_have_a_lower_priority(backend: NativeBackend, engine: FakeEngine) -> None:
    for background in (False, True):
        await ask(backend, request(background=background))
    usual, background = (submit.priority for submit in engine.submitted)
    assert (usual, background < usual) == (0, True)


async def test_seeds_are_returned(backend: NativeBackend) -> None:
    seeds = [choice.seed for choice in (await ask(backend, request(n=2, sampling=Sampling(seed=2**64 - 1)))).choices]
    assert seeds == [2**64 - 1, 0]
    first, second = [choice.seed for choice in (await ask(backend, request(n=2))).choices]
    assert second == (first + 1) % 2**64


@pytest.mark.parametrize(("include", "text"), [(False, "The quick brown 🙂 s"), (True, "The quick brown 🙂 says he")])
@pytest.mark.parametrize("burst", [1, 3, 100])
async def test_a_stop_string_ends_the_answer_and_the_sequence(
    backend: NativeBackend, engine: FakeEngine, include: bool, text: str, burst: int
) -> None:
    engine.burst = burst
    (choice,) = (await ask(backend, request(stopping=Stopping(stop=("xyz", "ays he"), include_stop=include)))).choices
    assert (choice.text, choice.reason, choice.stop) == (text, FinishReason.STOP_STRING, "ays he")
    assert len(engine.cancelled) == (burst < 100), "a sequence that has ended is not cancelled"


async def test_the_length_and_stop_tokens_end_the_answer(backend: NativeBackend, engine: FakeEngine) -> None:
    (short,) = (await ask(backend, request(stopping=Stopping(max_new_tokens=3)))).choices
    assert (short.reason, short.generated) == (FinishReason.LENGTH, 3)
    second = short.tokens[1].id
    assert second is not None
    (stopped,) = (await ask(backend, request(stopping=Stopping(stop_token_ids=(second,))))).choices
    assert (stopped.text, stopped.reason) == (short.tokens[0].text, FinishReason.STOP_TOKEN)
    (none,) = (await ask(backend, request(stopping=Stopping(max_new_tokens=0), echo=True))).choices
    assert (none.text, none.generated, none.reason) == ("", 0, FinishReason.LENGTH)


async def test_a_character_cut_by_the_length_is_a_replacement_character(
    backend: NativeBackend, engine: FakeEngine, codec: Any
) -> None:
    first = codec._tokenizer.encode("🙂")[:1]
    engine.rule = lambda _: iter(first)
    (choice,) = (await ask(backend, request())).choices
    assert choice.text == "\ufffd"
    assert [token.text for token in choice.tokens] == ["\ufffd", "<|end|>"]


async def test_logprobs(backend: NativeBackend, codec: Any) -> None:
    answer = await ask(backend, request(logprobs=True, top_logprobs=2, prompt_logprobs=True))
    token = answer.choices[0].tokens[0]
    assert token.id is not None
    assert token.logprob == -token.id / 100
    assert token.top == tuple(
        TopToken(id, codec.vocabulary.piece(id).text, -token.id / 100 - place)
        for place, id in enumerate((token.id, token.id + 1))
    )
    (prompt,) = answer.prompts
    assert "".join(token.text for token in prompt) == "Hello"
    assert [token.logprob for token in prompt] == [None, *(-(token.id or 0) / 100 for token in prompt[1:])]


async def test_echo_returns_the_prompts(backend: NativeBackend) -> None:
    chat = ChatPrompt((Message("user", "Hi"),))
    answer = await ask(backend, request(prompts=(TextPrompt("Hello"), chat), echo=True))
    texts = ["".join(token.text for token in prompt if not token.special) for prompt in answer.prompts]
    assert texts == ["Hello", "Hi"]
    assert {token.logprob for prompt in answer.prompts for token in prompt} == {None}


async def test_several_prompts_and_answers(backend: NativeBackend, engine: FakeEngine) -> None:
    asked = request(prompts=(TextPrompt("a"), TokensPrompt((5, 6, 7))), n=2, sampling=Sampling(seed=3))
    answer = await ask(backend, asked)
    assert [choice.seed for choice in answer.choices] == [3, 4, 3, 4], "the same for each prompt"
    assert [submit.prompt for submit in engine.submitted] == [engine.submitted[0].prompt] * 2 + [(5, 6, 7)] * 2
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (4, 2)


async def test_best_of(backend: NativeBackend, engine: FakeEngine) -> None:
    engine.rule = lambda submit: iter([50 + submit.sampling.seed % 7] * 3)
    asked = request(best_of=4, n=2, sampling=Sampling(temperature=1.0, seed=5))
    events = await laws.collect(backend.generate(asked))
    answer = laws.check(events, asked)
    assert [choice.seed for choice in answer.choices] == [7, 8], "ids 50 and 51 are the most probable here"
    assert answer.usage.completion_tokens == 4 * 4


async def test_a_prompt_that_is_not_raw_is_a_user_message(backend: NativeBackend, engine: FakeEngine) -> None:
    await ask(backend, request("Hi", raw_prompt=False))
    await ask(backend, request(prompts=(ChatPrompt((Message("user", "Hi"),)),)))
    first, second = engine.submitted
    assert first.prompt == second.prompt


async def test_tools_are_not_shown_if_the_choice_is_none(backend: NativeBackend, engine: FakeEngine) -> None:
    chat = (ChatPrompt((Message("user", "Hi"),)),)
    await ask(backend, request(prompts=chat, tools=(Tool("f"),), tool_choice=ToolChoice("none")))
    await ask(backend, request(prompts=chat))
    first, second = engine.submitted
    assert first.prompt == second.prompt


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"stopping": Stopping(max_new_tokens=2048)}, ContextLengthExceeded, None),
        ({"prompts": (TokensPrompt((5,) * 2048),)}, ContextLengthExceeded, None),
        ({"prompts": (TokensPrompt(()),)}, InvalidRequest, "prompt"),
        ({"prompts": (TokensPrompt((768,)),)}, InvalidRequest, "prompt"),
        ({"sampling": Sampling(logit_bias=((-1, 1.0),))}, InvalidRequest, "logit_bias"),
        ({"stopping": Stopping(stop_token_ids=(768,))}, InvalidRequest, "stop_token_ids"),
    ],
)
async def test_a_request_that_does_not_fit_is_not_submitted(
    backend: NativeBackend, engine: FakeEngine, fields: dict[str, Any], error: type[Exception], param: str | None
) -> None:
    with pytest.raises(error) as raised:
        await ask(backend, request(**fields))
    assert getattr(raised.value, "param", None) == param
    assert engine.submitted == []


async def test_truncated_prompts_fit(backend: NativeBackend, engine: FakeEngine) -> None:
    await ask(backend, request(prompts=(TokensPrompt((*range(10, 30),) * 200),), truncate_prompt_tokens=3))
    assert engine.submitted[0].prompt == (27, 28, 29)


async def test_no_embeddings(backend: NativeBackend) -> None:
    assert not backend.capabilities.embeddings
    with pytest.raises(UnsupportedFeature):
        await backend.embed(Embed(id="1", model="m", inputs=()))


async def test_tokenize(backend: NativeBackend) -> None:
    tokens = await backend.tokenize(Tokenize(id="1", model="m", prompt=TextPrompt("Hi 🙂")))
    assert tokens.text == "Hi 🙂"


@pytest.mark.parametrize("count", range(1, 25, 4))
async def test_closing_the_stream_anywhere_frees_the_engine(
    backend: NativeBackend, engine: FakeEngine, count: int
) -> None:
    stream = backend.generate(request(n=3, stopping=Stopping(ignore_eos=True)))
    batches = await laws.take(stream, count)
    assert len(batches) == count
    assert not engine.running, "immediately"
    assert len(engine.cancelled) == 3


async def test_cancelling_a_request_that_waits_frees_the_engine(backend: NativeBackend, engine: FakeEngine) -> None:
    engine.auto = False
    task = asyncio.create_task(laws.collect(backend.generate(request())))
    await until(lambda: bool(engine.running))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine.running


async def test_a_slow_reader_gets_one_batch(backend: NativeBackend, engine: FakeEngine) -> None:
    stream = backend.generate(request(n=2))
    await anext(stream)
    await until(lambda: not engine.running)
    rest = [event for batch in [await anext(stream)] for event in batch]
    assert [type(event) for event in rest] == [Finished, Finished, Usage]
    assert isinstance(rest[0], Delta)
    assert rest[0].text == ANSWER[len("T") :] or ANSWER.endswith(rest[0].text)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_full_engine_is_overloaded(backend: NativeBackend, engine: FakeEngine) -> None:
    engine.auto = False
    task = asyncio.create_task(laws.collect(backend.generate(request(n=2))))
    await until(lambda: len(engine.running) == 2)
    del engine.running[1, 1]
    engine.send(1, Step((Output(1, error="full", overloaded=True),)))
    with pytest.raises(Overloaded) as raised:
        await task
    assert raised.value.retry_after
    assert engine.cancelled == [0], "the other choice is cancelled"


async def test_a_failed_sequence_does_not_affect_the_engine(backend: NativeBackend, engine: FakeEngine) -> None:
    engine.auto = False
    task = asyncio.create_task(laws.collect(backend.generate(request())))
    await until(lambda: bool(engine.running))
    engine.running.clear()
    engine.send(1, Step((Output(0, error="the engine ran out of memory"),)))
    with pytest.raises(BackendFailed, match="out of memory"):
        await task
    assert (await backend.healthy()).status == "ready"


async def test_requests_continue_after_the_engine_dies(backend: NativeBackend, engine: FakeEngine) -> None:
    engine.auto = False
    begun, waiting = backend.generate(request()), asyncio.create_task(laws.collect(backend.generate(request())))
    first = asyncio.ensure_future(anext(begun))
    await until(lambda: len(engine.running) == 2)
    engine.running = {key: running for key, running in engine.running.items() if key[1] == 1}
    engine.step()
    events = await first
    engine.die()
    engine.auto = True
    assert laws.check((*events, *await laws.collect(begun)), request()).choices[0].text == ANSWER, "it continues"
    assert laws.check(await waiting, request()).choices[0].text == ANSWER


async def test_non_streamed_requests_emit_their_events_at_completion(backend: NativeBackend) -> None:
    first, last = [batch async for batch in backend.generate(request(n=2, stream=False))]
    assert [type(event) for event in first] == [Started]
    assert [type(event) for event in last] == [Finished, Finished, Usage]
    assert laws.check((*first, *last), request(n=2)).choices[0].text == ANSWER


async def test_start_may_be_repeated_after_a_model_could_not_load() -> None:
    engine = FakeEngine(greeting=Failed("no such folder"))
    backend = NativeBackend("native", connect=engine.connect)
    with pytest.raises(BackendUnavailable, match="no such folder"):
        await backend.start()
    assert not engine.connections
    with pytest.raises(BackendUnavailable):
        await laws.collect(backend.generate(request()))
    engine.greeting = None
    await backend.start()
    assert (await ask(backend, request(stopping=Stopping(max_new_tokens=2)))).choices[0].generated == 2
    await backend.aclose()


async def test_a_folder_without_a_tokenizer(tmp_path: Any) -> None:
    backend = NativeBackend("native", {"model": str(tmp_path)}, connect=FakeEngine().connect)
    with pytest.raises(BackendUnavailable, match="tokenizer"):
        await backend.start()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    fields=st.fixed_dictionaries(
        {
            "prompts": st.lists(
                st.builds(TextPrompt, st.text("ab🙂", min_size=1, max_size=4)), min_size=1, max_size=2
            ).map(tuple),
            "n": st.integers(1, 3),
            "best_of": st.none() | st.integers(3, 4),
            "stopping": st.builds(
                Stopping,
                max_new_tokens=st.integers(0, 40),
                min_new_tokens=st.integers(0, 3),
                stop=st.lists(st.sampled_from(["quick", "🙂", "世界", " s", "."]), max_size=2).map(tuple),
                ignore_eos=st.booleans(),
                include_stop=st.booleans(),
            ),
            "logprobs": st.booleans(),
            "prompt_logprobs": st.booleans(),
            "echo": st.booleans(),
        }
    ),
    burst=st.integers(1, 6),
)
async def test_events_obey_the_laws_of_backends(
    backend: NativeBackend, engine: FakeEngine, fields: dict[str, Any], burst: int
) -> None:
    engine.burst = burst
    asked = request(**fields)
    answer = await ask(backend, asked)
    stops = asked.stopping.stop
    whole = ANSWER * 10
    for choice in answer.choices:
        assert whole.startswith(choice.text.rstrip("\ufffd"))
        if not asked.stopping.include_stop and not asked.stopping.min_new_tokens:
            assert not any(stop in choice.text for stop in stops)
    assert len(answer.prompts) == (len(asked.prompts) if asked.echo or asked.prompt_logprobs else 0)
    assert not engine.running
