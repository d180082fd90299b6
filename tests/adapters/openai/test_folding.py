"""A stream accumulates to the bytes of the whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.ir import Events, FinishReason, Generate, Started, Token
from tests.adapters.laws import batches, streams
from tests.adapters.openai.folding import chunks, folded
from tests.adapters.openai.scenes import chat, completion, server

TOOLS = [{"type": "function", "function": {"name": "f"}}]
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
REASONS = tuple(FinishReason)


def assert_same(request: Generate, events: Events, data: st.DataObject, name: str = "openai") -> None:
    writer = server(name).encoder(request)
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(server(name).encode(request, fold(events)).body)
    for choice in whole["choices"]:
        # Streams have no annotations, and whole answers of OpenAI's dialect an empty list.
        assert choice.get("message", {}).pop("annotations", []) == []
    assert folded(stream) == whole


@given(data=st.data(), events=streams(choices=3, tools=True, reasoning=True, refusals=True, reasons=REASONS))
def test_chats(data: st.DataObject, events: Events) -> None:
    assert_same(chat(**STREAMED, tools=TOOLS, n=3), events, data)


@given(data=st.data(), top=st.integers(0, 3), events=streams(choices=3, with_logprobs=True, tops=3, end_token=True))
def test_chats_with_log_probabilities(data: st.DataObject, top: int, events: Events) -> None:
    assert_same(chat(**STREAMED, logprobs=True, top_logprobs=top, n=3), events, data)


@given(data=st.data(), events=streams(choices=3, with_logprobs=True, tools=True, reasons=REASONS))
def test_chats_with_tool_calls_and_log_probabilities(data: st.DataObject, events: Events) -> None:
    assert_same(chat(**STREAMED, logprobs=True, tools=TOOLS, n=3), events, data)


@pytest.mark.parametrize(("name", "n"), [("openai", 2), ("mindie-openai", 1)])
@given(data=st.data(), echo=st.booleans())
def test_completions(name: str, n: int, data: st.DataObject, echo: bool) -> None:
    events = data.draw(streams(choices=2 * n, refusals=True, reasons=REASONS))
    assert_same(completion(name, **STREAMED, prompt=["Once", "Twice"], n=n, echo=echo), events, data, name)


@given(data=st.data(), events=streams(tools=True, reasoning=True, refusals=True, reasons=REASONS))
def test_mindie_chats(data: st.DataObject, events: Events) -> None:
    """MindIE's streams have no usage, the bare id of the request, and the role in every delta."""
    writer = server("mindie-openai").encoder(chat("mindie-openai", stream=True))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(server("mindie-openai").encode(chat("mindie-openai"), fold(events)).body)
    assert folded(stream, role_in_every_delta=True) == whole | {"id": "r1", "usage": None}
    deltas = [choice["delta"] for chunk in chunks(stream) for choice in chunk["choices"]]
    assert all(delta == {} or delta["role"] == "assistant" for delta in deltas)


PROMPT = (Token(1, "<s>", None, special=True), Token(5, "Once", -2.5), Token(6, " upon", -0.5))


@given(
    data=st.data(),
    top=st.integers(0, 2),
    echo=st.booleans(),
    ids=st.booleans(),
    events=streams(choices=4, with_logprobs=True, tops=2, end_token=True),
)
def test_completions_with_log_probabilities(
    data: st.DataObject, top: int, echo: bool, ids: bool, events: Events
) -> None:
    prompt: Any = [[1, 5, 6], [1, 5, 6]] if ids else ["Once upon", "Once upon"]
    started = Started("model", 6, (PROMPT, PROMPT) if echo else ())
    request = completion(**STREAMED, prompt=prompt, n=2, echo=echo, logprobs=top)
    assert_same(request, (started, *events[1:]), data)
