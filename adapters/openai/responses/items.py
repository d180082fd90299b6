"""Items of the Responses API as messages of the IR."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from adapters.calls import read_signature
from adapters.openai.inbound.checks import missing, not_one_of
from adapters.openai.inbound.parts import image_part
from adapters.openai.responses.stored import REFERENCE, Items
from adapters.openai.responses.summary import INTRODUCTION, read_summary
from schemas.errors import UnsupportedFeature
from schemas.ir import Message, Part, TextPart, ToolCall
from schemas.openai import responses as wire

_ROLES = ("system", "developer", "user", "assistant")
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "compaction", REFERENCE)
"""The types of items that have a form in the IR, or that stand for such items."""


def without_foreign_fields(items: Items, known: Collection[str] = ITEMS) -> Items:
    """The items, those of types that are not known here without their fields, which may be of any form."""
    return [
        item if not isinstance(item, dict) or item.get("type") in (None, *known) else {"type": item["type"]}
        for item in items
    ]


def places_without_effect(items: Iterable[wire.Item]) -> tuple[str, ...]:
    """The places of what no model here reads in the items of a request's `input`, each field at its first place.

    These are the reasoning, the phases and the citations of earlier turns. An item's status and a text's
    log-probabilities ask for nothing.
    """
    first: dict[str, str] = {}
    for place, item in enumerate(items):
        if item.type == "reasoning":
            first.setdefault("reasoning", f"input[{place}]")
        if item.phase:
            first.setdefault("phase", f"input[{place}].phase")
        for number, part in enumerate(item.content if isinstance(item.content, tuple) else ()):
            if part.annotations:
                first.setdefault("annotations", f"input[{place}].content[{number}].annotations")
    return tuple(first.values())


def append(messages: list[Message], message: Message | None) -> None:
    """Append a message. Tool calls are items of their own here; in the IR they belong to the assistant's message."""
    if message is None:
        return
    # Parallel calls, and a text before them, become one message, which chat templates need.
    if message.tool_calls and messages and messages[-1].role == "assistant":
        last = messages.pop()
        message = Message("assistant", last.content, tool_calls=(*last.tool_calls, *message.tool_calls))
    messages.append(message)


def read_message(item: wire.Item, param: str) -> Message | None:
    """The message of an item; None for reasoning, which is not sent to a model again.

    Raises:
        schemas.errors.InvalidRequest: the item is wrong, or of a kind that is not supported; `param` names its place.
    """
    if item.type == "message":
        if item.role not in _ROLES:
            raise not_one_of(f"{param}.role", str(item.role), _ROLES)
        if item.content is None:
            raise missing(f"{param}.content")
        return Message(item.role or "", _content(item.content, f"{param}.content"))
    if item.type == "function_call":
        if item.call_id is None or item.name is None:
            raise missing(f"{param}.{'name' if item.name is None else 'call_id'}")
        call = ToolCall(item.call_id, item.name, item.arguments or "{}", read_signature(item.extra_content))
        return Message("assistant", None, tool_calls=(call,))
    if item.type == "function_call_output":
        if item.call_id is None:
            raise missing(f"{param}.call_id")
        return Message("tool", _content(item.output or "", f"{param}.output"), tool_call_id=item.call_id)
    if item.type == "reasoning":
        return None
    if item.type == "compaction" and (summary := read_summary(item.encrypted_content)) is not None:
        return Message("assistant", INTRODUCTION + summary)
    message = f"Items of type '{item.type}' are not supported."
    raise UnsupportedFeature(message, feature=item.type, param=f"{param}.type")


def _content(content: str | tuple[wire.Part, ...], param: str) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    return tuple(_part(part, f"{param}[{place}]") for place, part in enumerate(content))


def _part(part: wire.Part, param: str) -> Part:
    if part.type == "input_image":
        if part.file_id is not None:
            message = "Images of files are not supported: send 'image_url'."
            raise UnsupportedFeature(message, feature="images", param=f"{param}.file_id")
        if part.image_url is None:
            raise missing(f"{param}.image_url")
        return image_part(part.image_url, part.detail)
    # Items of an assistant come back as `output_text` and `refusal`, as they were answered.
    if part.type not in ("input_text", "output_text", "text", "refusal"):
        message = f"Content of type '{part.type}' is not supported."
        raise UnsupportedFeature(message, feature=part.type, param=f"{param}.type")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise missing(f"{param}.text")
    return TextPart(text)
