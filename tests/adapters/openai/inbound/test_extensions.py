"""Fields of vLLM and SGLang: constraints on the text under all of their names, and what only those servers can do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Call
from adapters.openai import ADAPTER
from schemas.catalog import Catalog
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, Generate, Grammar, TemplateOptions

SERVER = ADAPTER.server(ADAPTER.dialects["openai"])
ROUTES = {route.name: route for route in SERVER.routes}
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "completions": {"model": "m", "prompt": "x"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def ask(operation: str, **fields: Any) -> Generate:
    body = json.dumps(ASKED[operation] | fields).encode()
    request = SERVER.decode(ROUTES[operation], body, Call("r", Catalog({})))
    assert isinstance(request, Generate)
    return request


CONSTRAINTS: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"guided_json": SCHEMA}, Grammar("json_schema", SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, Grammar("json_schema", SCHEMA)),
    ({"guided_regex": "a+"}, Grammar("regex", "a+")),
    ({"guided_choice": ["yes.", "no"]}, Grammar("regex", r"yes\.|no")),
    ({"guided_grammar": 'root ::= "x"'}, Grammar("ebnf", 'root ::= "x"')),
    ({"guided_json_object": True, "guided_regex": None}, Grammar("json_object")),
    ({"structured_outputs": {"json": SCHEMA, "disable_fallback": True}}, Grammar("json_schema", SCHEMA)),
    ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar("regex", "a|b")),
    ({"structured_outputs": {"grammar": "g"}}, Grammar("ebnf", "g")),
    ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
    ({"json_schema": json.dumps(SCHEMA)}, Grammar("json_schema", SCHEMA)),
    ({"regex": "a+"}, Grammar("regex", "a+")),
    ({"ebnf": "root ::= a"}, Grammar("ebnf", "root ::= a")),
    ({"guided_json_object": False, "structured_outputs": {}}, None),
]


@pytest.mark.parametrize("operation", ASKED)
@pytest.mark.parametrize(("fields", "grammar"), CONSTRAINTS)
def test_constraints(operation: str, fields: dict[str, Any], grammar: Grammar | None) -> None:
    request = ask(operation, **fields)
    assert request.grammar == grammar
    assert (request.unread, request.unknown) == ((), ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "regex": "b"}, "regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_json": "no JSON"}, "guided_json"),
        ({"json_schema": "3"}, "json_schema"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [3]}, "guided_choice[0]"),
        ({"bad_words": ["a", ""]}, "bad_words"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
    ],
)
def test_wrong_constraints(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("chat", **fields)
    assert raised.value.param == param


def test_words_and_candidates() -> None:
    for operation in ASKED:
        request = ask(operation, bad_words=["a", "b c"], best_of=3, min_tokens=2)
        assert (request.sampling.bad_words, request.best_of) == (("a", "b c"), 3)
        assert request.stopping.min_new_tokens == 2


OWN = {
    "use_beam_search": (True, False),
    "length_penalty": (0.5, 1.0),
    "logits_processors": (["x"], []),
    "allowed_token_ids": ([1], []),
    "prompt_logprobs": (1, None),
    "return_token_ids": (True, False),
    "separate_reasoning": (False, True),
    "skip_special_tokens": (False, True),
    "lora_path": ("a", None),
}


@pytest.mark.parametrize("field", OWN)
def test_what_only_such_a_server_can_do(field: str) -> None:
    asked, without_effect = OWN[field]
    (part,) = ask("chat", **{field: asked}).unread
    assert (part.param, part.feature) == (field, field)
    assert field in part.refusal
    assert ask("chat", **{field: without_effect}).unread == ()


@pytest.mark.parametrize(("operation", "default"), [("chat", False), ("completions", True)])
def test_special_tokens_as_they_are_anyway(operation: str, *, default: bool) -> None:
    assert ask(operation, add_special_tokens=default).unread == ()
    (part,) = ask(operation, add_special_tokens=not default).unread
    assert part.param == "add_special_tokens"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, TemplateOptions()),
        ({"add_generation_prompt": True, "continue_final_message": False}, TemplateOptions()),
        ({"add_generation_prompt": False}, TemplateOptions(add_generation_prompt=False)),
        ({"continue_final_message": True}, TemplateOptions(add_generation_prompt=False, continue_final_message=True)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, TemplateOptions(variables={"enable_thinking": False})),
    ],
)
def test_options_of_the_chat_template(fields: dict[str, Any], options: TemplateOptions) -> None:
    (prompt,) = ask("chat", **fields).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template == options


def test_a_text_ends_in_one_place() -> None:
    with pytest.raises(InvalidRequest, match="cannot both be true"):
        ask("chat", continue_final_message=True, add_generation_prompt=True)
