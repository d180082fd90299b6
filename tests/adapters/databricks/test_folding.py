"""A stream accumulates to the whole answer: Databricks' chunks are like OpenAI's, and have the same types."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from adapters.fold import fold
from schemas.ir import Events, FinishReason, Generate
from tests.adapters.databricks.scenes import chat, completion, server
from tests.adapters.laws import batches, streams
from tests.adapters.openai.folding import chunks, folded

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d"}}]


def assert_same(request: Generate, events: Events, data: st.DataObject) -> None:
    writer = server().encoder(request)
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    assert folded(stream) == json.loads(server().encode(request, fold(events)).body)


@given(
    data=st.data(), events=streams(choices=3, tools=True, reasoning=True, refusals=True, reasons=tuple(FinishReason))
)
def test_chats(data: st.DataObject, events: Events) -> None:
    assert_same(chat(stream=True, tools=TOOLS, n=3), events, data)


@given(events=streams(choices=3, tools=True, reasoning=True, with_logprobs=True, tops=2, reasons=tuple(FinishReason)))
def test_chats_are_of_the_sdks_types(events: Events) -> None:
    scored = {"tools": TOOLS, "n": 3, "logprobs": True, "top_logprobs": 2}
    ChatCompletion.model_validate_json(server().encode(chat(**scored), fold(events)).body)
    for chunk in chunks(server().encoder(chat(stream=True, **scored)).feed(events)):
        ChatCompletionChunk.model_validate(chunk)


@given(data=st.data(), events=streams(choices=3, with_logprobs=True, tops=2, end_token=True))
def test_chats_with_log_probabilities(data: st.DataObject, events: Events) -> None:
    assert_same(chat(stream=True, logprobs=True, top_logprobs=2, n=3), events, data)


@given(data=st.data(), events=streams(choices=4, refusals=True), echo=st.booleans())
def test_completions(data: st.DataObject, events: Events, echo: bool) -> None:
    request = completion(stream=True, prompt=["Once", "Twice"], n=2, echo=echo, suffix="!", use_raw_prompt=True)
    assert_same(request, events, data)
