"""Accumulates the chunks of a stream to a whole answer by the protocol's rules, as the SDKs do.

Texts and arguments concatenate, log-probabilities follow one another, tool calls are distinguished by `index`.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def chunks(stream: bytes) -> list[Json]:
    """The chunks of a complete stream."""
    *lines, last = [line for line in stream.decode().split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def folded(stream: bytes, *, role_in_every_delta: bool = False) -> Json:
    """The whole answer that the chunks of a stream make up."""
    head: Json = {}
    usage: Json | None = None
    choices: dict[int, Json] = {}
    for chunk in chunks(stream):
        for piece in chunk.pop("choices"):
            choice = choices.setdefault(piece["index"], {"index": piece["index"]})
            assert "finish_reason" not in choice or choice["finish_reason"] is None, "it had ended"
            if "delta" in piece:
                _message(choice.setdefault("message", {}), piece["delta"], again=role_in_every_delta)
            else:
                choice["text"] = choice.get("text", "") + piece["text"]
            if "logprobs" in piece:
                choice["logprobs"] = _logprobs(choice.get("logprobs"), piece["logprobs"])
            choice["finish_reason"] = piece["finish_reason"]
        usage = chunk.pop("usage", None)
        assert head in ({}, chunk), "every chunk has the same head"
        head = chunk
    head["object"] = head["object"].removesuffix(".chunk")
    return head | {"usage": usage, "choices": [choices[index] for index in sorted(choices)]}


def _message(message: Json, delta: Json, *, again: bool) -> None:
    for name in ("content", "refusal", "reasoning_content"):
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + delta[name]
        elif name in delta:
            message.setdefault(name, None)
    if "role" in delta:
        assert again or "role" not in message, "the role is written once"
        message["role"] = delta["role"]
    for piece in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if piece["index"] == len(calls):
            calls.append({"id": piece["id"], "type": piece["type"], "function": {"name": "", "arguments": ""}})
        else:
            assert not {"id", "type"} & piece.keys(), "a call is named once"
        for name, text in piece["function"].items():
            calls[piece["index"]]["function"][name] += text


def _logprobs(before: Json | None, more: Json | None) -> Json | None:
    if before is None or more is None:
        return before if more is None else more
    return {name: _concatenated(before[name], more[name]) for name in more}


def _concatenated(before: list[Any] | None, more: list[Any] | None) -> list[Any] | None:
    return before if more is None else [*(before or ()), *more]
