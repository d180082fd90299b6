"""Thoughts in Google's OpenAI form: read out of the text wherever the stream is cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adapters.base import Reply
from adapters.fold import fold
from adapters.openai import ADAPTER
from adapters.openai.remote.thoughts import ThoughtReader, has_thought
from schemas.ir import ChatPrompt, Generate, Message

FLAG = {"google": {"thought": True}}
REQUEST = Generate(id="r", model="m", prompts=(ChatPrompt((Message("user", "Hi"),)),))


def read(*pieces: tuple[str, bool]) -> tuple[str, str]:
    """The text and the thoughts of pieces of content, each flagged or not."""
    reader = ThoughtReader()
    found = [reader.feed(text, flagged=flagged) for text, flagged in pieces]
    return "".join(text for text, _ in found), "".join(thought for _, thought in found) + reader.close()


def test_content_in_one_piece() -> None:
    assert read(("<thought>Hm. </thou</thought>Yes.", True)) == ("Yes.", "Hm. </thou")


def test_every_cut_of_thoughts_and_text() -> None:
    thoughts, rest = "<thought>Hm. </thou", "</thought>Yes <thought>"
    for first in range(1, len(thoughts)):
        for second in range(1, len(rest)):
            pieces = (
                (thoughts[:first], True),
                (thoughts[first:], True),
                (rest[:second], False),
                (rest[second:], False),
            )
            assert read(*pieces) == ("Yes <thought>", "Hm. </thou")


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([("<thought>a</thought>b", False)], ("<thought>a</thought>b", "")),  # the model wrote the tag
        ([("a", True), ("b", True), ("c", False)], ("c", "ab")),
        ([("<thought>a", True), ("b</thou", False)], ("", "ab</thou")),  # cut by the limit
        ([("<tho", True)], ("", "<tho")),
        ([("<thought>a", True), ("</thought>b", False), ("<thought>c</thought>d", True)], ("bd", "ac")),
        ([("", True), ("<thought>a</thought>", True), ("b", False)], ("b", "a")),
    ],
)
def test_forms(pieces: list[tuple[str, bool]], said: tuple[str, str]) -> None:
    assert read(*pieces) == said


@pytest.mark.parametrize("extra", [None, "x", {}, {"google": None}, {"google": {"thought": "yes"}}, {"other": 1}])
def test_other_extra_content_flags_nothing(extra: Any) -> None:
    assert not has_thought(extra)
    message = {"content": "<thought>a</thought>b", "extra_content": extra}
    assert whole(message) == ("<thought>a</thought>b", "")


def whole(message: dict[str, Any]) -> tuple[str, str]:
    answer = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    client = ADAPTER.client(ADAPTER.dialects["openai"])
    (choice,) = fold(client.decode(REQUEST, Reply(msgspec.json.encode(answer)))).choices
    return choice.text, choice.reasoning


def test_a_whole_answer() -> None:
    assert whole({"content": "<thought>Hm.</thought>Yes.", "extra_content": FLAG}) == ("Yes.", "Hm.")
