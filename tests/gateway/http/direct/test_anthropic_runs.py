"""Streams of a server of Anthropic's protocol without a task: runs of texts, and whatever is between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.upstream import END, STREAM, Close, Pause, Step, chunk
from tests.gateway.http.direct.clients import REQUESTS, Request, streamed
from tests.gateway.http.direct.gateways import gateway

ASKED = {client: streamed(REQUESTS[client][""]) for client in ("anthropic", "openai", "databricks")}


def event(type: str, **fields: Any) -> bytes:
    """An event as Anthropic's servers write it."""
    data = json.dumps({"type": type} | fields, separators=(",", ":"), ensure_ascii=False)
    return b"event: %b\ndata: %b\n\n" % (type.encode(), data.encode())


def said(text: str, index: int = 0, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": text} | fields)


def thought(text: str, index: int = 0) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": text})


def block(type: str, index: int = 0, **fields: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": type} | fields)


def stop(index: int = 0) -> bytes:
    return event("content_block_stop", index=index)


USAGE = {"input_tokens": 9, "output_tokens": 1}
START = event("message_start", message={"model": "m", "content": [], "usage": USAGE})
ENDING = [
    event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 7}),
    event("message_stop"),
]
TEXT = block("text", text="")
WORDS = [said(text) for text in ("The ", "quick ", "brown ", "fox", ".")]
PING = event("ping")
SECOND = [block("text", 1, text=""), *(said("x", 1),) * 5, stop(1)]
ARGUMENTS = event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{}"})
CALL = [block("tool_use", 1, id="t", name="f", input={}), ARGUMENTS, stop(1)]
BODIES: dict[str, list[bytes]] = {
    "plain": [START, TEXT, *WORDS, stop(), *ENDING],
    "long": [START, TEXT, *WORDS * 20, stop(), *ENDING],
    "pings": [START, PING, TEXT, *WORDS[:2], PING, *WORDS[2:], stop(), *ENDING],
    "not ASCII": [START, TEXT, *map(said, ("a", "é", "漢字", "😀", "b", "a\u2028b", "c")), stop(), *ENDING],
    "escapes": [START, TEXT, *map(said, ("a", '"', "\n", "\\", "b", "")), stop(), *ENDING],
    "empty texts": [START, TEXT, *map(said, ("a", "", "b", "", "")), stop(), *ENDING],
    "two blocks": [START, TEXT, *WORDS, stop(), *SECOND, *ENDING],
    "thoughts": [START, block("thinking", thinking=""), *(thought("hm"),) * 4, stop(), *SECOND, *ENDING],
    "a thought in a text": [START, TEXT, *WORDS, thought("hm"), *WORDS, stop(), *ENDING],
    "a call": [START, TEXT, *WORDS, stop(), *CALL, *ENDING],
    "texts with more": [START, TEXT, *(said("x", thinking="hm"), said("", thinking="hm")) * 9, stop(), *ENDING],
    "numbered": [START, TEXT, *(said("x", number=number) for number in range(9)), stop(), *ENDING],
    "filled up": [START, TEXT, *(word.replace(b"}\n", b"}" + b" " * 9 + b"\n") for word in WORDS * 2), stop(), *ENDING],
    "without names": [each.partition(b"\n")[2] for each in (START, TEXT, *WORDS, *WORDS, stop(), *ENDING)],
    "other names": [each.replace(b"event: ", b"event:") for each in (START, TEXT, *WORDS, *WORDS, stop(), *ENDING)],
    "another block": [START, TEXT, *WORDS, said("x", 7), *WORDS, stop(), *ENDING],
    "no JSON": [START, TEXT, *WORDS, b"event: content_block_delta\ndata: {\n\n", *WORDS, stop(), *ENDING],
    "an error": [START, TEXT, *WORDS, event("error", error={"type": "overloaded_error", "message": "no"})],
    "not finished": [START, TEXT, *WORDS],
    "behind the end": [START, TEXT, *WORDS, stop(), *ENDING, *WORDS],
    "behind its reason": [START, TEXT, *WORDS, *ENDING[:1], *WORDS, *ENDING[1:]],
}


def steps(events: list[bytes], sizes: list[int], *, closes: bool) -> tuple[Step, ...]:
    """A stream in reads of so many events; the rest is one read."""
    found: list[Step] = [STREAM]
    for size in sizes:
        found += [b"".join(map(chunk, events[:size])), Pause(0)]
        events = events[size:]
    return (*found, b"".join(map(chunk, events)), *((Close(),) if closes else (END,)))


@pytest.fixture(scope="module")
def both() -> Iterator[Any]:
    """A gateway as it is and one whose requests all have tasks, with what runs them."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("DIRECT_KEY", "secret")
        stack = AsyncExitStack()
        gateways = [runner.run(stack.enter_async_context(gateway(kind="anthropic"))) for _ in range(2)]
        gateways[1].app.asgi_handler.lane = lambda _: None  # type: ignore[union-attr]
        yield runner, gateways
        runner.run(stack.aclose())


@settings(max_examples=60, deadline=None)
@given(
    client=st.sampled_from([*ASKED]),
    body=st.sampled_from([*BODIES]),
    sizes=st.lists(st.integers(1, 3), max_size=40),
    closes=st.booleans(),
)
def test_streams_are_as_those_with_a_task(both: Any, client: str, body: str, sizes: list[int], closes: bool) -> None:
    runner, gateways = both
    played = steps(BODIES[body], sizes, closes=closes)

    async def compare() -> None:
        direct, usual = [without_times(await each.turn(ASKED[client], {}, played)) for each in gateways]
        assert direct == usual

    runner.run(compare())


@pytest.mark.parametrize("client", ASKED)
@pytest.mark.parametrize("body", BODIES)
def test_events_that_come_alone_are_as_those_with_a_task(both: Any, client: str, body: str) -> None:
    runner, gateways = both
    played = steps(BODIES[body], [1] * 200, closes=False)

    async def compare() -> None:
        direct, usual = [without_times(await each.turn(ASKED[client], {}, played)) for each in gateways]
        assert direct == usual

    runner.run(compare())


def without_times(seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen, but for how many reads the outputs came in."""
    metrics = {key: value for key, value in seen["metrics"].items() if "inter_token" not in key[0]}
    return seen | {"metrics": metrics}


@pytest.mark.parametrize("client", ["anthropic", "openai"])  # Databricks' chunks count tokens, each on its own
async def test_runs_pass_the_parsers_by(client: str, relayed: list[bytes], tasks: list[str]) -> None:
    asked: Request = ASKED[client]
    async with gateway(kind="anthropic") as there:
        seen = await there.turn(asked, {}, steps(BODIES["long"], [1] * 200, closes=False))
    assert seen["status"] == 200
    assert len(relayed) > 20
    assert tasks == ["direct"]
