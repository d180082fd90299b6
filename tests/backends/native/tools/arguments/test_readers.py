"""The readers of arguments, where models write more than their templates show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.native.tools.arguments.base import Arguments
from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.arguments.keywords import Keywords
from backends.native.tools.arguments.parameters import Parameters
from backends.native.tools.arguments.scanner import Scanner

PYTHON = Keywords()
BRACES = Keywords(assigns=":", separator=",", quote="<e>", words=("true", "false", "null"), bare_keys=True)
TAGS = Parameters("<p=", ">\n", "\n</p>\n")
SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "n": {"$ref": "#/$defs/number"},
        "either": {"type": ["string", "integer"]},
    },
    "$defs": {"number": {"type": "integer"}},
}


def read(way: Arguments, text: str, pieces: int) -> tuple[Any, str]:
    """The values, and the text behind them."""
    reader, undecided, found = way.reader(SCHEMA), "", ""
    for place in range(0, len(text), pieces):
        undecided += text[place : place + pieces]
        step = reader.read(undecided)
        undecided, found = undecided[step.used :], found + step.json
        if step.done:
            return json.loads(found), undecided + text[place + pieces :]
    return json.loads(found + reader.close()), ""


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize(
    ("way", "text", "values", "rest"),
    [
        (JSON, '{"a": {"b": "}\\"("}}}', {"a": {"b": '}"('}}, "}"),
        (
            PYTHON,
            "text='it\\'s (a)', n=[1, {'k': True}], x=None)]",
            {"text": "it's (a)", "n": [1, {"k": True}], "x": None},
            ")]",
        ),
        (PYTHON, '"one", 2)', {"text": "one", "n": 2}, ")"),
        (PYTHON, 'n="2", text="2", x=true)', {"n": 2, "text": "2", "x": True}, ")"),
        (PYTHON, "text=Paris, London)", {"text": "Paris", "n": "London"}, ")"),
        (PYTHON, ")", {}, ")"),
        (BRACES, "text:<e>a,}b<e>,n:1,x:{k:[<e>c<e>]}}", {"text": "a,}b", "n": 1, "x": {"k": ["c"]}}, "}"),
        (TAGS, "<p=text>\n a\nb \n</p>\n<p=n>\n2\n</p>\n</f>", {"text": " a\nb ", "n": 2}, "\n</f>"),
        (TAGS, "<p=text>\n1\n</p><p=either>\n1\n</p></f>", {"text": "1", "either": 1}, "</f>"),
        (TAGS, "<p=n>True</p><p=x>[1</p></f>", {"n": True, "x": "[1"}, "</f>"),
        (TAGS, "</f>", {}, "</f>"),
    ],
)
def test_arguments_are_read(way: Arguments, text: str, values: Any, rest: str, pieces: int) -> None:
    assert read(way, text, pieces) == (values, rest)


@pytest.mark.parametrize(
    ("text", "values"),
    [("<p=text>\nab", {"text": "a"}), ("<p=n>\n1", {"n": None}), ("<p=te", {}), ("<p=n>1</p>\n", {"n": 1})],
)
def test_arguments_that_end_too_early_are_completed(text: str, values: Any) -> None:
    assert read(TAGS, text, 1000)[0] == values


def test_a_text_is_passed_on_while_it_is_written() -> None:
    reader = TAGS.reader(SCHEMA)
    assert reader.read("<p=text>\n").json == '{"text": "'
    assert reader.read("line\nnext").json == "line\\nnex"


def test_a_scanner_looks_at_each_character_once() -> None:
    scanner = Scanner(stops=",", ends_at=-1)
    text = '"a,\\",", [1, 2])'
    marks = []
    while mark := scanner.scan(text):
        marks.append((mark, scanner.place))
    assert marks == [(",", 8), (")", 16)]
    assert Scanner().scan('{"a": "\\') is None
