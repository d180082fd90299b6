"""Answers have the official SDK's types, as a client with `_strict_response_validation=True` requires.

There is no type for a completion's chunk (the whole one's has no null finish reason), for vectors in base64, nor for
the null that an echoed prompt's first token has for its log-probability: the service itself fails there.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from adapters.fold import fold
from schemas.errors import GatewayError, UnsupportedFeature
from schemas.ir import Delta, Embeddings, Events, FinishReason, Generate, Usage
from tests.adapters.laws import streams
from tests.adapters.openai.folding import chunks
from tests.adapters.openai.responses.test_decode import WEATHER, ask, events
from tests.adapters.openai.scenes import ROUTES, call, chat, completion, embed, server

TOOLS = [{"type": "function", "function": {"name": "f"}}]
REASONS = tuple(FinishReason)
ENDS = (FinishReason.EOS, FinishReason.LENGTH, FinishReason.STOP_STRING, FinishReason.CONTENT_FILTER)
STREAM_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def whole(request: Generate, stream: Events) -> Any:
    return json.loads(server().encode(request, fold(stream)).body)


@given(
    stream=streams(choices=3, tools=True, reasoning=True, with_logprobs=True, tops=2, reasons=REASONS),
    logprobs=st.booleans(),
)
def test_chats(stream: Events, logprobs: bool) -> None:
    scored = {"logprobs": True, "top_logprobs": 2} if logprobs else {}
    ChatCompletion.model_validate(whole(chat(tools=TOOLS, n=3, **scored), stream))
    request = chat(tools=TOOLS, n=3, stream=True, stream_options={"include_usage": True}, **scored)
    for chunk in chunks(server().encoder(request).feed(stream)):
        ChatCompletionChunk.model_validate(chunk)


@given(stream=streams(choices=3, with_logprobs=True, tops=2, reasons=ENDS, end_token=True), logprobs=st.booleans())
def test_completions(stream: Events, logprobs: bool) -> None:
    Completion.model_validate(whole(completion(n=3, **({"logprobs": 2} if logprobs else {})), stream))


answers = streams(tools=True, reasoning=True, with_logprobs=True, tops=2, reasons=REASONS)


@pytest.mark.slow
@given(stream=answers, refusal=st.booleans())
def test_responses(stream: Events, refusal: bool) -> None:
    if refusal:
        stream = (stream[0], Delta(refusal="No."), *stream[1:])
    choice = {"type": "function", "name": "get_weather"}
    format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    fields = {"tools": [WEATHER], "tool_choice": choice, "text": {"format": format}, "metadata": {"a": "b"}}
    fields |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    for request in (ask(), ask(**fields, instructions="Be brief.", reasoning={"effort": "low"}, user="u")):
        Response.model_validate(whole(request, stream))
    for event in events(server().encoder(ask(stream=True, **fields)).feed(stream)):
        STREAM_EVENTS.validate_python(event)


def test_vectors() -> None:
    answer = Embeddings("m", ((0.5, -1.0), (2.0, 0.0)), Usage(3, 0))
    CreateEmbeddingResponse.model_validate(json.loads(server().encode_embeddings(embed(input=["a", "b"]), answer).body))


def test_models() -> None:
    listed = json.loads(server().describe(ROUTES["models"], call(), b"").body)
    assert [Model.model_validate(model).id for model in listed["data"]] == ["chat", "org/other"]
    Model.model_validate(json.loads(server().describe(ROUTES["model"], call(id="org/other"), b"").body))


def errors(kind: type[GatewayError]) -> list[type[GatewayError]]:
    """Those of `schemas.errors`: other modules have their own, whether or not a test has imported them."""
    below = [found for found in kind.__subclasses__() if found.__module__ == kind.__module__]
    return [kind, *(found for each in below for found in errors(each))]


@pytest.mark.parametrize("kind", errors(GatewayError))
def test_errors(kind: type[GatewayError]) -> None:
    error = kind("Because.", **({"feature": "f"} if issubclass(kind, UnsupportedFeature) else {}))
    ErrorObject.model_validate(json.loads(server().error(error).body)["error"])
    (event,) = events(server().encoder(ask(stream=True)).fail(error))
    STREAM_EVENTS.validate_python(event)
