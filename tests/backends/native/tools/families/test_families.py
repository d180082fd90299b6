"""Every family: its calls are read at every cut, and its grammar holds them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backends.native.demo import WEIGHTS
from backends.native.grammar.grammar import Grammars
from backends.native.tools.families.deepseek import DEEPSEEK_V32, DSML
from backends.native.tools.families.table import BY_NAME, FAMILIES, check_formats, find_form
from backends.native.tools.family import Family
from backends.native.tools.grammar import answer_grammar
from backends.native.tools.tags import Tags
from schemas.errors import UnsupportedFeature
from schemas.ir import FinishReason, Generate, Grammar, ToolChoice
from tests.backends.native.tools.written import CALLS, TOOLS, calls_of, read, written

FORMATS = [
    pytest.param(family, form, id=f"{family.name}-{place}")
    for family in FAMILIES
    for place, form in enumerate(family.calls)
]
_MARK = re.compile(r"<\|?[^<>\s=\"]+\|?>|\[[A-Z_/]+\]|<\|\"\|>")


def check_calls(family: Family, pieces: list[str]) -> None:
    choice = read(family, pieces)
    assert (calls_of(choice), choice.text, choice.reason) == ([*CALLS[: family.most]], "", FinishReason.TOOL_CALL)


@pytest.mark.parametrize(("family", "form"), FORMATS)
def test_calls_are_read_whole_and_by_character(family: Family, form: Any) -> None:
    text = written(form, CALLS[: family.most])
    check_calls(family, [text])
    check_calls(family, list(text))


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize(("family", "form"), FORMATS)
def test_calls_are_read_at_every_cut(family: Family, form: Any) -> None:
    text = written(form, CALLS[: family.most])
    for place in range(1, len(text)):
        check_calls(family, [text[:place], text[place:]])


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize(("family", "form"), FORMATS)
def test_a_limit_leaves_no_markup(family: Family, form: Any) -> None:
    text = written(form, CALLS[: family.most])
    for limit in range(2, len(text), 3):
        choice = read(family, text[:limit], FinishReason.LENGTH)
        assert choice.reason is FinishReason.LENGTH
        assert choice.text == ""


@pytest.mark.parametrize(("family", "form"), FORMATS)
def test_a_function_that_was_not_offered_is_not_called(family: Family, form: Any) -> None:
    text = written(form, [("other", {"city": "Paris"})])
    assert read(family, text).tool_calls == ()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_reasoning_and_text_are_read_at_every_cut(family: Family) -> None:
    if family.reasoning is None:
        return
    opens, closes = family.text
    reasoning = f"{family.reasoning.opens}\nWell, 1 < 2.\n{family.reasoning.closes}\n\n"
    text = f"{reasoning}{opens}Hello <b>you</b> [1]{closes}"
    for pieces in ([text], list(text)):
        choice = read(family, pieces)
        assert (choice.reasoning, choice.text, choice.reason) == (
            "Well, 1 < 2.",
            "Hello <b>you</b> [1]",
            FinishReason.EOS,
        )
    choice = read(family, text.removeprefix(family.reasoning.opens), in_reasoning=True)
    assert (choice.reasoning, choice.text) == ("Well, 1 < 2.", "Hello <b>you</b> [1]")
    cut = read(family, f"{family.reasoning.opens}Well{family.reasoning.closes[:-1]}", FinishReason.LENGTH)
    assert (cut.reasoning, cut.text) == ("Well", "")
    thought = read(family, [reasoning, written(family.calls[0], CALLS[:1])])
    assert (thought.reasoning, calls_of(thought), thought.text) == ("Well, 1 < 2.", [*CALLS[:1]], "")


@cache
def tokenizer(tags: tuple[str, ...]) -> tuple[Any, Grammars]:
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(str(WEIGHTS), local_files_only=True)
    made.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in tags])
    grammars = Grammars.of(made, len(made), (made.eos_token_id,))
    assert grammars is not None
    return made, grammars


def _tokens(family: Family) -> tuple[str, ...]:
    """The tags of a family that are tokens; of DeepSeek V3.2's tags, a part is one."""
    return (DSML,) if DSML in family.markup else tuple(sorted(set(_MARK.findall(family.markup))))


@pytest.mark.slow
@pytest.mark.parametrize("tags_are_tokens", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_grammars_hold_calls(family: Family, tags_are_tokens: bool) -> None:
    tags = _tokens(family) if tags_are_tokens else ()
    encoder, grammars = tokenizer(tags)
    form = family.calls[0]
    calls = CALLS[: family.most]
    text = written(form, calls)

    def fits(source: str, text: str) -> bool:
        matcher = grammars.compile(source)
        ids = encoder.encode(text, add_special_tokens=False)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def grammar(**fields: Any) -> str:
        request = Generate(id="r", model="m", prompts=(), tools=TOOLS, **fields)
        source = answer_grammar(request, family, Tags(grammars.tags), text_tokens=grammars.text_tags)
        assert source is not None
        return source

    free, required = grammar(), grammar(tool_choice=ToolChoice("required"))
    plain = f"{family.text[0]}Hello [1] {{}} <b>\n{family.text[1]}"
    for source in (free, required):
        assert fits(source, text)
        assert not fits(source, text.replace("get_weather", "get_other")), "a function that was not offered"
        assert not fits(source, text.replace("city", "town")), "a required argument is missing"
        assert not fits(source, text.replace("get_time", "get_tim")) or family.most
    assert (fits(free, plain), fits(required, plain)) == (True, False)
    if not form.at_start and not any(family.text):
        assert fits(free, f"Sure, 1 < 2.\n{text}")
    either = grammar(grammar=Grammar("json_object"))
    assert fits(either, f'{family.text[0]}{{"a": 1}}{family.text[1]}')
    before = form.before if form.at_start and not family.text[0] and tags_are_tokens else ""
    # Where calls are objects, too, there is one at most.
    alone = form.at_start and form.in_object and not before
    assert fits(either, before + (written(form, CALLS[:1]) if alone else text))


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3_json", "xlam", "pythonic"])
def test_calls_that_are_the_whole_answer_beside_a_format(name: str) -> None:
    """Without a token before calls, the answer's schema must tell them apart."""
    encoder, grammars = tokenizer(())
    family = BY_NAME[name]
    source = source_of(family, grammars, PERSON)

    def fits(text: str) -> bool:
        matcher = grammars.compile(source)
        ids = encoder.encode(text, add_special_tokens=False)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    for text in ('{"name": "Ada", "age": 36}', '{"name": "get_weather", "age": 1}'):
        assert fits(text)
        for pieces in ([text], list(text)):
            assert (read(family, pieces).text, read(family, pieces).tool_calls) == (text, ())
    call = written(family.calls[0], CALLS[:1])
    assert fits(call)
    assert calls_of(read(family, list(call))) == [*CALLS[:1]]
    assert not fits(call.replace("city", "town"))
    assert not fits(call.replace("get_weather", "get_other"))
    # Only a call that is an object must be kept apart by the properties.
    assert fits('{"name": "get_weather", "age": 1, "parameters": {"city": "Paris"}}') is (name != "llama3_json")
    assert not fits("Hello")


@pytest.mark.slow
def test_an_object_is_a_call_by_its_arguments() -> None:
    """`json_object` beside calls that are JSON objects: the member with the arguments makes a call."""
    encoder, grammars = tokenizer(())
    family = BY_NAME["llama3_json"]
    request = Generate(id="r", model="m", prompts=(), tools=TOOLS, grammar=Grammar("json_object"))
    source = answer_grammar(request, family, Tags(grammars.tags))
    assert source is not None

    def fits(text: str) -> bool:
        matcher = grammars.compile(source)
        ids = encoder.encode(text, add_special_tokens=False)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    for text in ("{}", '{"name": "get_weather"}', '{"name": "get_weather", "b": {"parameters": 1}}'):
        assert fits(text)
        for pieces in ([text], list(text)):
            assert (read(family, pieces).text, read(family, pieces).tool_calls) == (text, ())
    call = written(family.calls[0], CALLS[:1])
    assert fits(call)
    assert calls_of(read(family, list(call))) == [*CALLS[:1]]
    for other in (call.replace("get_weather", "get_other"), '{"parameters": 1}', '{"arguments": {}}', "[]", "Hello"):
        assert not fits(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"name": {}, "parameters": {}}},
        {"type": "object", "properties": {"name": {}, "arguments": {}}},
        {"type": "object", "properties": {"age": {}}, "required": ["name"]},
        {"anyOf": [PERSON, {"type": "null"}]},
        {"type": ["object", "null"], "properties": {"age": {}}},
        PERSON | {"anyOf": [{"properties": {"name": {"const": "x"}}}]},
    ],
)
def test_a_format_that_allows_for_calls_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature, match="could look like one"):
        source_of(BY_NAME["llama3_json"], tokenizer(())[1], schema)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "refused"),
    [({"type": "array"}, True), ({"enum": ["a", 1]}, False), ({"const": [1]}, True), ({"type": "string"}, False)],
)
def test_lists_of_calls_beside_other_formats(schema: dict[str, Any], refused: bool) -> None:
    made = tokenizer(())[1]
    if refused:
        with pytest.raises(UnsupportedFeature):
            source_of(BY_NAME["xlam"], made, schema)
    else:
        assert source_of(BY_NAME["xlam"], made, schema)


def source_of(family: Family, grammars: Grammars, schema: dict[str, Any]) -> str:
    request = Generate(id="r", model="m", prompts=(), tools=TOOLS, grammar=Grammar("json_schema", schema))
    source = answer_grammar(request, family, Tags(grammars.tags), text_tokens=grammars.text_tags)
    assert source is not None
    return source


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('name="city" string="true">Paris<{0}parameter>', {"city": "Paris"}),
        ('name="city" string="false">"Paris"<{0}parameter>', {"city": "Paris"}),
        ('name="city" string="true">12<{0}parameter>', {"city": "12"}),
        ('name="days" string="false">12<{0}parameter>', {"days": 12}),
        ('name="days" string="true">12<{0}parameter>', {"days": "12"}),
        ('name="options" string="false">{{"of": ["a"]}}<{0}parameter>', {"options": {"of": ["a"]}}),
        ('name="days" string="false">x<{0}parameter>', {"days": "x"}),
    ],
)
def test_an_attribute_tells_texts_from_json(text: str, holds: dict[str, Any]) -> None:
    """DeepSeek V3.2 says of each value what it is; its word counts, not the schema's."""
    call = f'<{DSML}function_calls><{DSML}invoke name="get_weather"><{DSML}parameter {text.format("/" + DSML)}'
    for end in (f"</{DSML}invoke></{DSML}function_calls>", f"\n</{DSML}invoke>\n</{DSML}function_calls>"):
        for pieces in ([call + end], list(call + end)):
            assert calls_of(read(DEEPSEEK_V32, pieces)) == [("get_weather", holds)]


@pytest.mark.parametrize(
    ("template", "name", "generic"),
    [
        ("{{ messages }}", "think", True),
        ("{% if tools %}<tool_call>", "hermes", False),
        ("{% if tools %}<tool_call><function=x><parameter=", "qwen3_coder", False),
        ("{% if tools %}[TOOL_CALLS]", "mistral_list", False),
        ("{% if tools %}[TOOL_CALLS][ARGS]", "mistral", False),
        ("{% set dsml = '｜DSML｜' %}{{ tools }}<{{ dsml }}function_calls>{{ tool_calls }}", "deepseek_v3_2", False),  # noqa: RUF001
        ("{% set dsml = '｜DSML｜' %}{{ tools }}<{{ dsml }}tool_calls>", "deepseek_v4", False),  # noqa: RUF001
    ],
)
def test_the_template_tells_the_family(template: str, name: str, generic: bool) -> None:
    form = find_form(template)
    assert (form.family.name, form.generic, form.can_call) == (name, generic, True)


def test_a_template_with_tools_in_an_unknown_form_has_none() -> None:
    assert not find_form("{% if tools %}!!").can_call
    assert find_form("{% if tools %}!!", ["<|tool_call_start|>"]).family.name == "lfm2"
    assert find_form("{% if tools %}!!", tool_format="generic").can_call
    assert find_form("{% if tools %}!!", tool_format="mistral").family.calls[0].trigger == "[TOOL_CALLS]"
    assert not find_form("{% if tools %}<tool_call>", tool_format="none").can_call


def test_reasoning_is_read_where_the_model_has_its_tags() -> None:
    assert find_form("").family.reasoning is None
    assert find_form("<think>").family.reasoning is not None
    assert find_form("", ["</think>"]).family.reasoning is not None
    assert find_form("<think>", reasoning_format="none").family.reasoning is None
    assert find_form("", reasoning_format="mistral").opens_reasoning("[INST]a[/INST][THINK]\n")
    assert not find_form("<think>").opens_reasoning("<think>\n\n</think>\n\n")


def test_names_of_formats_are_checked() -> None:
    check_formats("generic", "none")
    with pytest.raises(
        ValueError, match="`tool_format` is 'hermess'; it must be one of auto, none, generic, command_a"
    ):
        check_formats("hermess", "auto")
    with pytest.raises(ValueError, match="`reasoning_format` is 'generic'"):
        check_formats("auto", "generic")


def test_the_page_lists_every_family() -> None:
    page = (Path(__file__).parents[5] / "docs" / "tools.md").read_text()
    assert [family.name for family in FAMILIES if f"`{family.name}`" not in page] == []
