"""Messages and tools in the form that chat templates expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.chat_template.template import CallStyle, ChatTemplate
from schemas.ir import Message, TextPart, Tool, ToolCall


def turns(messages: Sequence[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Messages as chat templates expect them, without absent fields: many would write None for them.

    The role `developer` becomes `system` for templates that do not know it. A function's result gets its name, which
    OpenAI's messages leave to its id.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_turn(message, names, template) for message in messages]


def _turn(message: Message, names: Mapping[str, str], template: ChatTemplate) -> dict[str, Any]:
    style = template.call_style
    content = _content(message, template.wants_parts)
    if content is None and message.tool_calls and style.empty_content:
        content = [] if template.wants_parts else ""
    answered = names.get(message.tool_call_id or "") if message.role == "tool" else None
    turn = {
        "role": "system" if message.role == "developer" and not template.knows_developer else message.role,
        "content": content,
        "name": message.name or answered,
        "tool_calls": [_tool_call(call, style) for call in message.tool_calls] or None,
        "tool_call_id": None if message.tool_call_id is None else style.id(message.tool_call_id),
        "reasoning_content": message.reasoning,
    }
    return {name: value for name, value in turn.items() if value is not None}


def _tool_call(call: ToolCall, style: CallStyle) -> dict[str, Any]:
    function = {"name": call.name, "arguments": style.arguments(call.arguments)}
    return {"id": style.id(call.id), "type": "function", "function": function}


def _content(message: Message, parts: bool) -> str | list[dict[str, str]] | None:
    """The content as one string, which most templates expect; as a list with `parts` or if there are images."""
    content = message.content
    if isinstance(content, str) and parts:
        content = (TextPart(content),)
    if content is None or isinstance(content, str):
        return content
    # Text parts alone become one string, which every template without parts can render.
    if not parts and all(isinstance(part, TextPart) for part in content):
        return "".join(part.text for part in content if isinstance(part, TextPart))
    # Templates need no pixels: for an image they write its placeholder.
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in content
    ]


def function(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    # Templates go through the properties, also of a function that has none.
    parameters = tool.parameters or {"type": "object", "properties": {}}
    fields = {"name": tool.name, "description": tool.description or "", "parameters": parameters}
    return {"type": "function", "function": fields}


def strings_in(value: Any) -> list[str]:
    """All strings in a JSON value, except keys."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in strings_in(each)]
