"""Calls of tools that have no result yet, for protocols whose results name a tool and not the call."""

from __future__ import annotations

from schemas.prompts import ToolCall


class OpenCalls:
    """The calls of a conversation without a result, the oldest first."""

    def __init__(self) -> None:
        self._calls: list[ToolCall] = []

    def add(self, calls: tuple[ToolCall, ...]) -> None:
        """Remember the calls of a message."""
        self._calls += calls

    def answered(self, name: str | None) -> str | None:
        """The id of the oldest call of a tool, or of any tool, which has its result now; None if there is none."""
        found = next((call for call in self._calls if name in (None, "", call.name)), None)
        if found is not None:
            self._calls.remove(found)
        return None if found is None else found.id
