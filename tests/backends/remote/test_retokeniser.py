"""Token ids for the answers of servers that return none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.remote.retokeniser import Retokeniser
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from schemas.ir import (
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    Message,
    Started,
    TextPrompt,
    Token,
    Tokenize,
    TopToken,
    Usage,
)
from tests.faults.upstream import END, STREAM, Asked, Step, chunk, response, upstream
from tests.gateway.serving import running

FOLDER = Path("backends/native/demo/weights")
RETOKENISER = Retokeniser(str(FOLDER))


def ids(text: str) -> list[int]:
    return RETOKENISER._tokenizer.encode(text, add_special_tokens=False).ids


@given(st.text())
def test_tokens_concatenate_to_the_text(text: str) -> None:
    (delta,) = RETOKENISER.fill((Delta(text=text),))
    assert isinstance(delta, Delta)
    assert "".join(token.text for token in delta.tokens) == text
    assert [token.id for token in delta.tokens] == ids(text)


def test_known_ids_are_kept() -> None:
    known, unknown, several = (
        Token(7, "x", -0.5),
        Token(None, "Hello", -0.25),
        Token(None, "What is the capital of", -1.0),
    )
    events = (Finished(text="…", tokens=(known, unknown, several), reason=FinishReason.EOS), Usage(1, 3))
    finished, usage = RETOKENISER.fill(events)
    assert isinstance(finished, Finished)
    [found] = ids("Hello")
    assert finished.tokens == (known, Token(found, "Hello", -0.25), several)
    assert usage == events[1]


def test_top_tokens_and_prompts_get_ids() -> None:
    top = (TopToken(None, "Hello", -0.25), TopToken(None, "What is the capital of", -2.0), TopToken(3, "x", -4.0))
    events = (Started("m", 1, ((Token(None, "Hello"),),)), Delta(text="Hello", tokens=(Token(None, "Hello", top=top),)))
    started, delta = RETOKENISER.fill(events)
    assert isinstance(started, Started)
    assert isinstance(delta, Delta)
    [found] = ids("Hello")
    assert started.prompts == ((Token(found, "Hello"),),)
    assert [other.id for other in delta.tokens[0].top] == [found, None, 3]


def test_texts_are_tokenized_and_chats_are_not() -> None:
    text = "The capital 🙂"
    tokens = RETOKENISER.tokenize(Tokenize(id="r", model="m", prompt=TextPrompt(text), add_special_tokens=False))
    assert tokens is not None
    assert [span.id for span in tokens.spans] == ids(text)
    assert all(span.text == text[span.start : span.stop] for span in tokens.spans)
    assert RETOKENISER.tokenize(Tokenize(id="r", model="m", prompt=ChatPrompt((Message("user", "Hi"),)))) is None


@pytest.mark.parametrize("path", ["/nowhere", "README.md"])
def test_a_file_that_is_no_tokenizer_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Retokeniser(path)


async def test_tgi_clients_get_ids_over_an_openai_server() -> None:
    choice = {"text": "Hello you", "finish_reason": "stop", "index": 0}
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    pieces = ({"text": "Hello", "index": 0}, {"text": " you", "finish_reason": "stop", "index": 0})

    def play(asked: Asked) -> tuple[Step, ...]:
        if b'"stream":true' not in asked.body:
            return (response(json.dumps({"choices": [choice], "usage": usage}).encode()),)
        events = [chunk(b"data: %b\n\n" % json.dumps({"choices": [piece]}).encode()) for piece in pieces]
        return (STREAM + b"".join(events) + chunk(b"data: [DONE]\n\n") + END,)

    async with upstream(play) as there:
        far = {"kind": "openai", "url": f"{there.url}/v1", "tokenizer": str(FOLDER)}
        entity = ServedEntity(name="m", backend="far")
        config = Config(backends={"far": far}, endpoints={"m": Endpoint(served_entities=(entity,))})
        async with running(create_app(config)) as client:
            whole = await client.post("/generate", json={"inputs": "x", "parameters": {"details": True}})
            stream = await client.post("/generate_stream", json={"inputs": "x"})
            split = await client.post("/tokenize", json={"inputs": "Hello"})
    assert [token["id"] for token in whole.json()["details"]["tokens"]] == ids("Hello you")
    frames = [json.loads(frame.removeprefix("data:")) for frame in stream.text.split("\n\n") if frame]
    assert [frame["token"]["id"] for frame in frames] == [*ids("Hello"), *ids(" you")]
    assert [token["id"] for token in split.json()] == ids("Hello")
