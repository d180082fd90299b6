"""Chats with tools as templates without tools get them."""

from __future__ import annotations

import json
from typing import Any

from backends.native.tools.generic import plain_turns

FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def test_the_tools_are_listed_in_the_system_message() -> None:
    user = {"role": "user", "content": "Hi"}
    (system, same) = plain_turns([user], [FUNCTION], takes_system=True)
    assert (system["role"], same) == ("system", user)
    assert json.dumps(FUNCTION["function"]) in system["content"]
    (first, _) = plain_turns([{"role": "system", "content": "Be brief."}, user], [FUNCTION], takes_system=True)
    assert first["content"].startswith("Be brief.\n\nYou can call functions.")


def test_without_system_messages_the_user_lists_them() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "Hi"}]
    for content in ("Hi", parts):
        (turn,) = plain_turns([{"role": "user", "content": content}], [FUNCTION], takes_system=False)
        assert turn["role"] == "user"
        text = (
            turn["content"] if isinstance(turn["content"], str) else "".join(p.get("text", "") for p in turn["content"])
        )
        assert text.startswith("You can call functions.")
        assert text.endswith("\n\nHi")


def test_calls_and_results_are_texts() -> None:
    results = [{"role": "tool", "content": content, "tool_call_id": "1"} for content in ("1", "2")]
    turns = [{"role": "user", "content": "Go"}, call({"a": "é"}), *results, {"role": "user", "content": "And?"}]
    assert plain_turns(turns, [], takes_system=True) == [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'},
        {
            "role": "user",
            "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n\nAnd?",
        },
    ]
    text = call('{"a": 1}') | {"content": "Wait."}
    assert plain_turns([text], [], takes_system=True)[0]["content"].startswith('Wait.\n<tool_call>\n{"name": "f", "arg')


def test_a_chat_without_calls_is_left_alone() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert plain_turns(turns, [], takes_system=False) == turns
