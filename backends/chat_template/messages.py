"""Messages and tools in the form that chat templates expect."""

from __future__ import annotations

import json
from typing import Any

from backends.chat_template.template import ChatTemplate
from schemas.ir import Message, TextPart, Tool, ToolCall


def turn(message: Message, template: ChatTemplate) -> dict[str, Any]:
    """A message as chat templates expect it, without absent fields: many would write None for them.

    The role `developer` becomes `system` for templates that do not know it.
    """
    turn = {
        "role": "system" if message.role == "developer" and not template.knows_developer else message.role,
        "content": _content(message, template.wants_parts),
        "name": message.name,
        "tool_calls": list(map(_tool_call, message.tool_calls)) or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    return {name: value for name, value in turn.items() if value is not None}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


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


def _arguments(text: str) -> Any:
    """A call's arguments, decoded, because templates serialize them; text that is not JSON stays as it is."""
    try:
        # OpenAI's `arguments` is JSON in a string. Templates apply `tojson`, which would quote such a string once more.
        return json.loads(text)
    except ValueError:
        return text


def function(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    fields = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters or {}}
    return {"type": "function", "function": fields}


def strings_in(value: Any) -> list[str]:
    """All strings in a JSON value, except keys."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in strings_in(each)]
