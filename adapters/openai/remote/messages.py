"""Conversations in the protocol's messages, encoded from the IR."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from adapters.calls import written_signature
from adapters.outbound import image_url, images_after_results
from schemas.ir import Message, Part, TextPart, ToolCall


def write_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The messages of a chat. Tools' messages have no images: OpenAI refuses them there."""
    return [_write(message) for message in images_after_results(messages)]


_more = attrgetter("name", "tool_calls", "tool_call_id", "reasoning")
_NOTHING_MORE = _more(Message("user"))


def _write(message: Message) -> dict[str, Any]:
    content = message.content
    if _more(message) == _NOTHING_MORE and not isinstance(content, tuple):
        return {"role": message.role, "content": content}
    fields = {
        "role": message.role,
        "content": [write_part(part) for part in content] if isinstance(content, tuple) else content,
        "name": message.name,
        "tool_calls": [_tool_call(call) for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    # `content` must be present, null beside tool calls.
    return {name: value for name, value in fields.items() if value is not None or name == "content"}


def write_part(part: Part) -> dict[str, Any]:
    """One part of a message's content."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.kind == "embeddings":
        grid = {} if part.grid is None else {"image_grid_thw": part.grid}
        return {"type": "image_embeds", "image_embeds": {"image_embeds": part.ref, **grid} if grid else part.ref}
    detail = {} if part.detail is None else {"detail": part.detail}
    return {"type": "image_url", "image_url": {"url": image_url(part), **detail}}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    fields = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return fields if call.signature is None else fields | {"extra_content": written_signature(call.signature)}
