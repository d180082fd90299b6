"""Calls of tools, for protocols whose arguments are objects instead of texts, or whose results name no call."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from adapters.body import UNREADABLE
from schemas.errors import BackendFailed, InvalidRequest
from schemas.ir import FinishReason
from schemas.openai.extra_content import ExtraContent, GoogleContent
from schemas.prompts import ToolCall

CUTTING = frozenset({FinishReason.LENGTH, FinishReason.STOP_STRING, FinishReason.CONTENT_FILTER})
"""The finish reasons of answers whose last call may be incomplete."""


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


def read_signature(given: ExtraContent | UnsetType | None) -> str | None:
    """The signature of a call in its field `extra_content`."""
    return given.google.thought_signature if isinstance(given, ExtraContent) and given.google is not None else None


def written_signature(signature: str | None) -> ExtraContent | UnsetType:
    """The `extra_content` that holds the signature of a call; none without one."""
    return UNSET if signature is None else ExtraContent(GoogleContent(signature))


def read_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call in a conversation, for a remote.

    Raises:
        schemas.errors.InvalidRequest: they are no JSON object.
    """
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except UNREADABLE:
        raise InvalidRequest("A tool call's arguments must be a JSON object.", param="messages") from None


def written_arguments(call: ToolCall, *, truncated: bool) -> msgspec.Raw:
    """The arguments of a call in an answer, as the model wrote them. A truncated call has none: half an object is none.

    Raises:
        schemas.errors.BackendFailed: the call is whole and its arguments are no JSON object.
    """
    arguments = (call.arguments or "{}").encode()
    try:
        msgspec.json.decode(arguments, type=dict)
    except UNREADABLE:
        if not truncated:
            raise BackendFailed("The model's call of a tool is not a JSON object.", code="bad_tool_call") from None
        return msgspec.Raw(b"{}")
    return msgspec.Raw(arguments)
