"""The reader and the grammars of Hermes' calls, without a model."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.fold import fold
from backends.native.demo import WEIGHTS
from backends.native.grammar.grammar import Grammars
from backends.native.tools.choice import max_calls
from backends.native.tools.families.hermes import HERMES
from backends.native.tools.grammar import answer_grammar
from backends.native.tools.reader import AnswerReader
from backends.native.tools.tags import Tags
from schemas.completion import Choice
from schemas.ir import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    Started,
    Stopping,
    Token,
    Tool,
    ToolChoice,
    Usage,
)


def parse(pieces: list[str], reason: FinishReason = FinishReason.EOS, limit: int = 16) -> Choice:
    """Parse a text in pieces, one token each, and an end token."""
    reader = AnswerReader(HERMES, {"add": None, "f": None}, limit)
    events: list[Event] = [Started("m")]
    for piece in pieces:
        deltas = reader.feed(Delta(text=piece, tokens=(Token(7, piece),)))
        assert all(delta.text or delta.tool_calls for delta in deltas), "an empty delta"
        events += deltas
    end = Token(1, "<|end|>", special=True)
    events += reader.finish(Finished(tokens=(end,), reason=reason))
    for event in events:
        if isinstance(event, Delta):
            assert event.text == "".join(token.text for token in event.tokens if not token.special)
    (choice,) = fold((*events, Usage(0, 0))).choices
    return choice


CALL = '<tool_call>{"name": "add", "arguments": {"a": [1, 2], "b": "}\\"]</tool_call>"}}</tool_call>'
ADD = ("add", '{"a": [1, 2], "b": "}\\"]</tool_call>"}')
TEXTS = [
    ("Just text, 1 < 2 <tool", "Just text, 1 < 2 <tool", []),
    (CALL, "", [ADD]),
    (f"Sure. {CALL}\n{CALL}\n", "Sure.", [ADD, ADD]),
    (f"{CALL} and then", " and then", [ADD]),
    ('<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("<tool_call>get it</tool_call>!", "<tool_call>get it</tool_call>!", []),
    ('a <tool_call>{"name": "f', 'a <tool_call>{"name": "f', []),
    ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ('<tool_call>{"name": "f", "arguments": {"x": "é\\\\"}}</tool_call>', "", [("f", '{"x": "é\\\\"}')]),
]


@pytest.mark.parametrize(("text", "rest", "calls"), TEXTS)
@given(data=st.data())
def test_calls_are_found_however_the_text_is_split(
    data: st.DataObject, text: str, rest: str, calls: list[tuple[str, str]]
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1)), label="cuts"))
    choice = parse([text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    assert choice.text == rest
    assert [(call.name, call.arguments) for call in choice.tool_calls] == calls
    assert len({call.id for call in choice.tool_calls}) == len(calls)
    assert choice.reason is (FinishReason.TOOL_CALL if calls else FinishReason.EOS)
    assert choice.tokens[-1].text == "<|end|>"


def test_a_call_cut_by_the_length_keeps_its_reason() -> None:
    choice = parse(['<tool_call>{"name": "f", "arguments": {"x": ', "12"], FinishReason.LENGTH)
    assert (choice.reason, choice.tool_calls[0].arguments) == (FinishReason.LENGTH, '{"x": 12')


def test_a_stop_string_within_a_call_cuts_it() -> None:
    choice = parse(['<tool_call>{"name": "f", "arguments": {"x": ', '"Par'], FinishReason.STOP_STRING)
    assert (choice.reason, choice.tool_calls[0].arguments) == (FinishReason.STOP_STRING, '{"x": "Par')
    choice = parse(["Well. ", '<tool_call>{"'], FinishReason.STOP_STRING)
    assert (choice.text, choice.tool_calls, choice.reason) == ("Well.", (), FinishReason.STOP_STRING)
    choice = parse([CALL], FinishReason.STOP_STRING)
    assert (choice.reason, len(choice.tool_calls)) == (FinishReason.TOOL_CALL, 1)


def test_text_after_the_last_accepted_call_is_dropped() -> None:
    choice = parse([CALL, CALL, "more"], limit=1)
    assert (len(choice.tool_calls), choice.text) == (1, "")


TAGS = Tags({"<tool_call>": 3, "</tool_call>": 4})
TOOLS = (Tool("f", None, {"properties": {}}), Tool("g", None, {"properties": {}}))


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({}, 16),
        ({"tool_choice": ToolChoice("required")}, 16),
        ({"parallel_tool_calls": True}, 16),
        ({"parallel_tool_calls": False}, 1),
        ({"tool_choice": ToolChoice("named", ("f",))}, 1),
    ],
)
def test_an_answer_has_at_most_sixteen_calls(fields: dict[str, Any], calls: int) -> None:
    request = Generate(id="r", model="m", prompts=(), tools=TOOLS, **fields)
    assert len(parse([CALL] * 20, limit=max_calls(request)).tool_calls) == calls


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"tool_choice": ToolChoice("required")}, 'call ("\\n"? call){0,15}'),
        ({"tool_choice": ToolChoice("allowed", ("g",), required=True)}, 'call ("\\n"? call){0,15}'),
        ({"tool_choice": ToolChoice("named", ("g",))}, "call"),
        ({"grammar": Grammar("regex", "a")}, '(answer | call ("\\n"? call){0,15})'),
        ({"tools": (replace(TOOLS[0], strict=True),)}, 'TEXT (<[3]> first ("\\n"? call){0,15})?'),
        ({}, 'TEXT (<[3]> first ("\\n"? call){0,15})?'),
        ({"parallel_tool_calls": False}, "TEXT (<[3]> first)?"),
    ],
)
def test_the_grammar_allows_as_many_calls(fields: dict[str, Any], start: str) -> None:
    request = Generate(**{"id": "r", "model": "m", "prompts": (), "tools": TOOLS} | fields)
    grammar = answer_grammar(request, HERMES, TAGS)
    assert grammar is not None
    assert grammar.startswith(f"start: {start}\n")


@pytest.mark.parametrize("stopping", [Stopping(ignore_eos=True), Stopping(min_new_tokens=3)])
def test_free_calls_do_not_end_what_must_go_on(stopping: Stopping) -> None:
    request = Generate(id="r", model="m", prompts=(), tools=TOOLS, stopping=stopping)
    assert answer_grammar(request, HERMES, TAGS) is None


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(WEIGHTS), local_files_only=True)
    made = Grammars.of(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))
    assert made is not None
    return made


WRITTEN = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
PLAIN = [
    ("", True),
    ("no call, <b> <tool", True),
    (WRITTEN, True),
    (f"Sure.\n{WRITTEN}\n{WRITTEN}", True),
    (f"Sure.\n{WRITTEN}\n{WRITTEN} and text", False),
    ("what <tool_call>is", False),
    ('<tool_call>\n{"name": "other"', False),
    ('<tool_call>\n{"name": "g", "arguments": {"a"', False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "fits"), PLAIN)
def test_a_tag_that_is_text_begins_an_offered_call(grammars: Grammars, text: str, fits: bool) -> None:
    request = Generate(id="r", model="m", prompts=(), tools=TOOLS)
    source = answer_grammar(request, HERMES, Tags({}))
    assert source is not None
    matcher = grammars.compile(source)
    # In pieces, because the bundled tokenizer has tokens for the tags.
    pieces = re.split("(?<=tool)(?=_call)", text)
    ids = [id for piece in pieces for id in grammars._tokenizer.tokenize_str(piece)]
    assert (matcher.try_consume_tokens(ids) == len(ids)) is fits
    assert not fits or matcher.is_accepting()


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        (None, True),
        ({}, True),
        ({"type": "object", "properties": {}, "required": []}, True),
        ({"type": "object", "properties": {"a": {}}}, False),
        ({"type": "object", "additionalProperties": True}, False),
        ({"$ref": "#/$defs/x"}, False),
    ],
)
def test_a_tool_without_parameters_takes_none(parameters: dict[str, Any] | None, closed: bool) -> None:
    request = Generate(id="r", model="m", prompts=(), tools=(Tool("f", None, parameters),))
    source = answer_grammar(request, HERMES, TAGS)
    assert source is not None
    assert ('"additionalProperties": false' in source) is closed


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('Sure.\n<tool_call>{"name": "f", "argu', "Sure."),
        ("<tool_call>", ""),
        ("Sure. <tool_c", "Sure."),
        ("1 <", "1 <"),
        ("plain", "plain"),
    ],
)
def test_a_call_cut_by_the_length_leaves_no_markup(text: str, left: str) -> None:
    choice = parse([*text], FinishReason.LENGTH)
    assert (choice.text, choice.tool_calls, choice.reason) == (left, (), FinishReason.LENGTH)


def test_a_function_that_was_not_offered_is_not_called() -> None:
    text = '<tool_call>{"name": "other", "arguments": {}}</tool_call>'
    choice = parse([text[:20], text[20:]])
    assert (choice.text, choice.tool_calls) == (text, ())
