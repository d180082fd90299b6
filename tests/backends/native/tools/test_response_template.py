"""Response templates that come with a model: read like transformers reads them, at every cut, and never run."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from backends.native.demo import WEIGHTS
from backends.native.text.codec import TextCodec
from backends.native.tools.families.table import find_form
from backends.native.tools.response_template import NotRead, read_response_template
from schemas.ir import FinishReason
from tests.backends.native.tools.written import CALLS, calls_of, read, written

WHOLE = {"type": "function", "function": "{content}"}
PARTS = {"type": "function", "function": {"name": "{content.tool}", "arguments": "{content.input}"}}
EACH = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}
CALL = {"open": "[CALL]", "close": "[/CALL]", "repeats": True, "content": "json", "transform": WHOLE}
TEMPLATE: dict[str, Any] = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "[HM]", "close": "[/HM]"},
        "content": {"close": "<|end|>", "repeats": True, "join": ""},
        "tool_calls": CALL,
    },
}


def template(**fields: Any) -> dict[str, Any]:
    return TEMPLATE | {"fields": TEMPLATE["fields"] | fields}


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls",
    [
        CALL,
        CALL | {"open": ["[CALL]"], "transform": PARTS},
        CALL | {"transform": EACH, "transform_each": True, "repeats": False},
        CALL | {"open": "<call>\n", "close": "\n</call>"},
    ],
)
def test_answers_are_read_as_transformers_reads_them(calls: dict[str, Any]) -> None:
    from transformers.utils.chat_parsing import parse_response

    own = template(tool_calls=calls)
    family = read_response_template(own)
    answer = "[HM]\nWell, 1 < 2.\n[/HM]\n\nI look it up."
    for text in (f"{answer}\n{written(family.calls[0])}", answer, "Hello [1] [HX]"):
        expected = parse_response(text, own, prefix="")
        for pieces in ([text], list(text)):
            found = read(family, pieces)
            made = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls_of(found)]
            listed = expected.get("tool_calls", [])
            shown = [each for call in listed for each in (call if isinstance(call, list) else [call])]
            assert found.text == expected.get("content", "")
            assert (found.reasoning or None) == expected.get("reasoning_content")
            assert [_named(call["function"]) for call in shown] == [_named(call["function"]) for call in made]


def _named(function: dict[str, Any]) -> tuple[str, Any]:
    return function["name"], function["arguments"]


@pytest.mark.slow
def test_a_limit_leaves_no_markup() -> None:
    family = read_response_template(TEMPLATE)
    text = written(family.calls[0], CALLS[:1])
    for limit in range(2, len(text)):
        assert read(family, text[:limit], FinishReason.LENGTH).text == ""


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("[CALL]", "version"),
        (TEMPLATE | {"version": 2}, "version"),
        (TEMPLATE | {"fields": {"tool_calls": "json"}}, "no object"),
        (template(tool_calls=CALL | {"content": "xml-inline"}), "not JSON"),
        (template(tool_calls=CALL | {"content_args": {"unquoted_keys": True}}), "not JSON"),
        (template(tool_calls={"open_pattern": "(a+)+b", "content": "json"}), "regular expression"),
        (template(tool_calls=CALL | {"open": ["a", "b"]}), "single text"),
        (template(tool_calls=CALL | {"open": "x" * 300}), "single text"),
        (template(tool_calls=CALL | {"transform": {"function": {"name": "f"}}}), "not members"),
        (template(tool_calls=CALL | {"transform": {"type": "function"}}), "no function"),
        (template(reasoning_content={"open": "[HM]"}), "single text"),
    ],
)
def test_other_forms_are_not_read(own: Any, why: str) -> None:
    with pytest.raises(NotRead, match=why):
        read_response_template(own)


def test_it_is_the_row_where_no_other_is_found() -> None:
    own = read_response_template(TEMPLATE)
    form = find_form("{{ tools }}", own=own)
    assert (form.family.name, form.can_call, form.generic) == ("response_template", True, False)
    assert form.family.reasoning is not None
    assert find_form("{{ tools }}<tool_call>", own=own).family.name == "hermes"
    assert find_form("{{ tools }}", tool_format="none", own=own).family.calls == ()
    assert find_form("{{ tools }}", reasoning_format="none", own=own).family.reasoning is None


@pytest.mark.slow
def test_it_is_found_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    copytree(WEIGHTS, folder, ignore=lambda *_: ["model.safetensors"])
    (folder / "chat_template.jinja").write_text("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())
    tokens["added_tokens"] = [each for each in tokens["added_tokens"] if "tool_call" not in each["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    for own, name in ((TEMPLATE, "response_template"), ({"version": 9}, "think")):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"response_template": own}))
        codec = TextCodec.load(str(folder))
        assert codec.form.family.name == name
        codec.close()
