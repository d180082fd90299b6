"""Chats and instances outside of OpenAI's routes: `/chat_tokenize` and `/vertex`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.tgi import ADAPTER
from schemas.completion import Choice, Completion
from schemas.errors import InvalidRequest, MalformedBody
from schemas.ir import (
    ChatPrompt,
    FinishReason,
    Generate,
    Message,
    TextPrompt,
    Tokenize,
    Tokens,
    TokenSpan,
    Tool,
    Usage,
)
from tests.adapters.tgi.scenes import ROUTES, call, server

HI = [{"role": "user", "content": "Hi"}]
PROMPT = ChatPrompt((Message("user", "Hi"),))
TOOL = {"type": "function", "function": {"name": "f"}}


def decode(route: str, body: Any) -> Any:
    return server("tgi").decode(ROUTES[route], json.dumps(body).encode(), call())


def vertex(*instances: dict[str, Any]) -> Generate:
    request = decode("vertex", {"instances": instances})
    assert isinstance(request, Generate)
    return request


@pytest.mark.parametrize("fields", [{}, {"model": "tgi"}, {"model": "chat", "max_tokens": 5}])
def test_the_tokens_of_a_chat(fields: dict[str, Any]) -> None:
    request = decode("chat_tokenize", {"messages": HI, "tools": [TOOL]} | fields)
    assert isinstance(request, Tokenize)
    assert (request.model, request.prompt, request.tools) == ("chat", PROMPT, (Tool("f"),))
    spans = (TokenSpan(1, "Hé", 0, 2), TokenSpan(2, "!", 2, 3))
    answer = server("tgi").encode_tokens(request, Tokens(spans, "Hé!"))
    assert json.loads(answer.body) == {
        "tokenize_response": [
            {"id": 1, "text": "Hé", "start": 0, "stop": 3},
            {"id": 2, "text": "!", "start": 3, "stop": 4},
        ],
        "templated_text": "Hé!",
    }


def test_tools_that_may_not_be_called_are_not_rendered() -> None:
    assert decode("chat_tokenize", {"messages": HI, "tools": [TOOL], "tool_choice": "none"}).tools == ()


@pytest.mark.parametrize(
    ("body", "error"), [({}, InvalidRequest), ([], MalformedBody), ({"messages": 3}, InvalidRequest)]
)
def test_no_chat(body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode("chat_tokenize", body)


def test_texts_with_the_same_parameters() -> None:
    parameters = {"max_new_tokens": 5, "seed": 1}
    request = vertex({"inputs": "a", "parameters": parameters}, {"inputs": "b", "parameters": parameters})
    assert request.prompts == (TextPrompt("a"), TextPrompt("b"))
    assert (request.stopping.max_new_tokens, request.sampling.seed, request.sampling.do_sample) == (5, 1, True)
    choices = tuple(Choice(index, FinishReason.EOS, text) for index, text in enumerate("cd"))
    assert server("tgi").encode(request, Completion("m", choices, Usage(2, 2))).body == b'{"predictions":["c","d"]}'


def test_chats() -> None:
    request = vertex({"messages": HI, "max_tokens": 5, "stream": True}, {"messages": HI, "max_tokens": 5})
    assert request.prompts == (PROMPT, PROMPT)
    assert (request.model, request.stopping.max_new_tokens, request.stream) == ("chat", 5, False)


def test_unknown_fields_are_named_with_their_instance() -> None:
    request = vertex({"inputs": "a"}, {"inputs": "b", "x": 1, "parameters": {"y": 2}})
    assert set(request.unknown) == {"instances[1].x", "instances[1].parameters.y"}
    assert set(ADAPTER.client(ADAPTER.dialects["tgi"]).ignored(request)) == set(request.unknown)


def test_a_hint_of_a_chat_is_not_sent_to_a_server_of_tgi() -> None:
    request = vertex({"messages": HI, "verbosity": "low"})
    assert ADAPTER.client(ADAPTER.dialects["tgi"]).ignored(request) == ("verbosity",)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([], "`instances` cannot be empty"),
        ([{"inputs": "a", "parameters": {"seed": 1}}, {"inputs": "b"}], "the same parameters"),
        ([{"inputs": "a"}, {"messages": HI}], "of one kind"),
        ([{"messages": HI, "tools": [TOOL]}], "`tools` is not supported"),
        ([{"messages": HI, "n": 2}], "`n` is not supported"),
        ([{"messages": HI, "audio": {"voice": "alloy"}}], "answers are text"),
        ([{"inputs": ""}], "`inputs` cannot be empty"),
        ([{"inputs": "a", "parameters": {"temperature": 0}}], "`temperature` must be strictly positive"),
    ],
)
def test_refusals(instances: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        vertex(*instances)
