"""What a body asks for and the IR has no form for: only a remote that is sent the body itself can honour it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas import anthropic as wire

_CLEARS = "clear_thinking_"
Found = Iterator[tuple[str, str]]
"""Names of fields, each with its place."""


def fields_without_effect(given: wire.CountRequest) -> tuple[str, ...]:
    """The places of the known fields that change nothing here, each field once, at its first place.

    Prompts are cached without being asked (`cache_control`), models here read neither citations of earlier turns nor
    signed and encrypted thinking, and nothing tells them of a failed tool but the text of its result.
    """
    first: dict[str, str] = {}
    for name, place in _fields(given):
        first.setdefault(name, place)
    return tuple(first.values())


def only_clears_thinking(context_management: Any) -> bool:
    """Whether `context_management` asks for nothing but to forget thoughts of earlier turns, as Claude Code does."""
    if not isinstance(context_management, dict) or {*context_management} != {"edits"}:
        return False
    edits = context_management["edits"]
    clears = [isinstance(edit, dict) and str(edit.get("type")).startswith(_CLEARS) for edit in edits or ()]
    return isinstance(edits, list) and all(clears)


def _fields(given: wire.CountRequest) -> Found:
    if given.cache_control is not None:
        yield "cache_control", "cache_control"
    if given.context_management and only_clears_thinking(given.context_management):
        yield "context_management", "context_management"
    if (given.thinking or {}).get("display") is not None:
        yield "display", "thinking.display"
    for place, tool in enumerate(given.tools or ()):
        if tool.cache_control is not None:
            yield "cache_control", f"tools[{place}].cache_control"
    yield from _of_blocks(given.system, "system")
    for place, turn in enumerate(given.messages):
        yield from _of_blocks(turn.content, f"messages[{place}].content")


def _of_blocks(content: str | tuple[wire.Block, ...] | None, param: str) -> Found:
    if content is None or isinstance(content, str):
        return
    for place, block in enumerate(content):
        where = f"{param}[{place}]"
        # "" is the signature of thinking that a model here wrote, and "direct" says that the model itself called.
        asked = {
            "cache_control": block.cache_control is not None,
            "citations": bool(block.citations),
            "signature": bool(block.signature),
            "data": bool(block.data),
            "caller": isinstance(block.caller, dict) and block.caller.get("type") != "direct",
            "is_error": bool(block.is_error),
        }
        yield from ((name, f"{where}.{name}") for name, is_asked in asked.items() if is_asked)
        yield from _of_blocks(block.content, f"{where}.content")
