"""Formats of an answer beside calls and behind reasoning."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from backends.native.demo import WEIGHTS
from backends.native.grammar.grammar import Grammars
from backends.native.tools.families.hermes import HERMES
from backends.native.tools.grammar import answer_grammar
from backends.native.tools.tags import Tags
from schemas.ir import Generate, Grammar, Tool

pytestmark = pytest.mark.slow
TOOL = Tool("f", None, {"properties": {"a": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'


@cache
def tokenizer() -> tuple[Any, Grammars]:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(str(WEIGHTS), local_files_only=True)
    made.add_tokens(["<think>", "</think>"])
    grammars = Grammars.of(made, len(made), (made.eos_token_id,))
    assert grammars is not None
    return made, grammars


@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["plain", "tools"])
@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar("ebnf", 'root ::= "yes" | "no"'), "yes"),
        (Grammar("regex", "[a-c]{2}/x"), "ab/x"),
        (Grammar("json_object"), '{"a": 1}'),
    ],
    ids=["ebnf", "regex", "json"],
)
def test_a_format_binds_what_follows_the_reasoning(grammar: Grammar, text: str, tools: tuple[Tool, ...]) -> None:
    encoder, grammars = tokenizer()
    request = Generate(id="r", model="m", prompts=(), tools=tools, grammar=grammar)
    for opened in (False, True):
        source = answer_grammar(
            request, HERMES, Tags(grammars.tags), text_tokens=grammars.text_tags, in_reasoning=opened
        )

        def fits(text: str, source: str | None = source) -> bool:
            assert source is not None
            matcher = grammars.compile(source)
            ids = encoder.encode(text, add_special_tokens=False)
            return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

        reasoning = "well {1}</think>\n\n" if opened else ""
        assert fits(reasoning + text)
        assert not fits(reasoning + "zz")
        assert fits(reasoning + CALL) is bool(tools)
        assert fits(f"<think>well</think>\n{text}") is not opened
