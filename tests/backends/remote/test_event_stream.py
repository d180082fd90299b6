"""Events that arrive in one read with what breaks the stream reach the client before the error, in every protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from adapters.base import StreamDecoder
from backends.remote.event_stream import EventStream
from backends.transport import Response
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from schemas.ir import Delta, Events
from tests.faults.recorded import ask, playing, request
from tests.faults.upstream import END, STREAM, Asked, Step, chunk, response, upstream
from tests.gateway.serving import running

ERROR = b'data: {"error":{"message":"boom","code":503}}\n\n'
BREAKS = {"an error": ERROR, "garbage": b"data: {\n\n", "the end": b""}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/completions", {"model": "m", "prompt": "x"}),
    "databricks": ("/serving-endpoints/m/invocations", {"prompt": "x", "use_raw_prompt": True}),
    "tgi": ("/generate", {"inputs": "x"}),
    "triton": ("/v2/models/m/generate", {"text_input": "x"}),
}


def event(**choice: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, **choice}]}).encode()


def text_of(stream: str) -> str:
    """The text of a stream of any protocol, whose last event must be an error."""
    *frames, last = [json.loads(line.partition(":")[2]) for line in stream.split("\n\n") if line]
    assert "error" in last
    return "".join(
        frame["choices"][0]["text"] if "choices" in frame else frame.get("text_output") or frame["token"]["text"]
        for frame in frames
    )


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_clients_receive_all_text_before_the_error(broken: str, ends: bytes) -> None:
    def play(asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET"):
            return (response(b"{}"),)
        body = (event(text="Hel") + event(text="lo") + BREAKS[broken]).replace(b"\n\n", ends)
        return (STREAM + chunk(body) + END,)

    async with upstream(play) as there:
        far = {"kind": "openai", "url": f"{there.url}/v1"}
        entities = (ServedEntity(name="a", backend="far"), ServedEntity(name="b", backend="far", traffic_percentage=0))
        config = Config(backends={"far": far}, endpoints={"m": Endpoint(served_entities=entities)})
        async with running(create_app(config)) as client:
            for name, (path, body) in REQUESTS.items():
                path, body = (path, body | {"stream": True}) if "generate" not in path else (f"{path}_stream", body)
                reply = await client.post(path, json=body)
                assert (name, reply.status_code, text_of(reply.text)) == (name, 200, "Hello")
        asked = [asked for asked in there.asked if asked.line.startswith("POST")]
    assert len(asked) == len(REQUESTS), "a stream that began is not requested again"


@pytest.mark.parametrize("opening", [b"", event(delta={"role": "assistant"}), event(delta={"content": ""})])
async def test_an_error_before_any_text_has_a_status_and_is_retried(opening: bytes) -> None:
    def play(asked: Asked) -> tuple[Step, ...]:
        return (STREAM + chunk(opening + ERROR) + END,)

    async with playing("openai", play, retries={"attempts": 2, "base": 0.0}) as (backend, there):
        events, error = await ask(backend, request("openai", stream=True))
    assert events == ()
    assert error is not None
    assert error.kind == "backend_unavailable"
    assert len([asked for asked in there.asked if asked.line.startswith("POST")]) == 2


async def test_an_error_after_some_text_is_not_retried() -> None:
    async with playing("openai", lambda _: (STREAM + chunk(event(delta={"content": "H"}) + ERROR) + END,)) as (
        backend,
        there,
    ):
        events, error = await ask(backend, request("openai", stream=True))
    assert [event.text for event in events if isinstance(event, Delta)] == ["H"]
    assert error is not None
    assert len([asked for asked in there.asked if asked.line.startswith("POST")]) == 1


class Taking:
    """A response whose first read waits until the sink has got something; then there is a comment, then a text."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def offer(self, take: Callable[[bytes], float | None]) -> None:
        self.take = take

    async def read(self, deadline: float) -> bytes:
        self.deadlines.append(deadline)
        if len(self.deadlines) > 1:
            return event(text="read")
        renewed = self.take(b"run")
        assert renewed is not None
        self.renewed = renewed
        return b": comment\n\n"


class Texts:
    """A decoder that finds texts in a run, and none in comments."""

    taken = (Delta(0, "taken"),)
    fed = (Delta(0, "read"),)

    def run(self, data: bytes) -> Events:
        return self.taken

    def feed(self, data: bytes) -> Events:
        return () if data.startswith(b":") else self.fed


async def test_bytes_without_an_event_have_the_deadline_that_the_sink_has_renewed() -> None:
    sink, there = Mock(), Taking()
    stream = EventStream(cast(Response, there), cast(StreamDecoder, Texts()), 60.0)
    stream.feed_into(sink)
    assert await stream.read() == Texts.fed
    sink.take.assert_called_once_with(Texts.taken)
    assert there.deadlines[1] == there.renewed >= there.deadlines[0]
