"""Conversations, from the protocol's blocks and back to them.

A result of a tool is a block of a user's turn here and a message of its own in the internal form; the system prompt is
a field here and a message there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.body import UNREADABLE
from adapters.outbound import image_url
from schemas import anthropic as wire
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, ImagePart, Message, Part, TextPart, ToolCall

Blocks = list[dict[str, Any]]


def read_conversation(given: wire.CountRequest) -> ChatPrompt:
    """The system prompt and the turns.

    Raises:
        schemas.errors.InvalidRequest: a block is not of a form that the protocol has; the message names its place.
    """
    messages: list[Message] = []
    if given.system:
        messages.append(Message("system", _system(given.system)))
    if not given.messages:
        raise InvalidRequest("messages: at least one message is required", param="messages")
    for place, turn in enumerate(given.messages):
        if turn.role not in ("user", "assistant"):
            raise InvalidRequest(
                f"messages.{place}.role: Input should be 'user' or 'assistant'", param=f"messages.{place}.role"
            )
        read = _user if turn.role == "user" else _assistant
        messages += read(turn, f"messages.{place}.content")
    return ChatPrompt(tuple(messages))


def _system(system: str | tuple[wire.Block, ...]) -> str | tuple[Part, ...]:
    return system if isinstance(system, str) else tuple(_text(block, "system") for block in system)


def _user(turn: wire.Turn, where: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message("user", turn.content)]
    messages: list[Message] = []
    parts: list[Part] = []
    for place, block in enumerate(turn.content):
        if block.type == "tool_result":
            messages.append(_result(block, f"{where}.{place}"))
        else:
            parts.append(_part(block, f"{where}.{place}"))
    return [*messages, Message("user", tuple(parts))] if parts or not messages else messages


def _result(block: wire.Block, where: str) -> Message:
    if block.tool_use_id is None:
        raise InvalidRequest(f"{where}.tool_use_id: Field required", param=f"{where}.tool_use_id")
    content = block.content or ""
    parts = content if isinstance(content, str) else tuple(_part(part, where) for part in content)
    return Message("tool", parts, tool_call_id=block.tool_use_id)


def _assistant(turn: wire.Turn, where: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message("assistant", turn.content)]
    parts: list[Part] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for place, block in enumerate(turn.content):
        if block.type == "tool_use":
            calls.append(_call(block, f"{where}.{place}"))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            parts.append(_part(block, f"{where}.{place}"))
    return [Message("assistant", tuple(parts) or None, tool_calls=tuple(calls), reasoning="".join(thoughts) or None)]


def _call(block: wire.Block, where: str) -> ToolCall:
    for field in ("id", "name"):
        if getattr(block, field) is None:
            raise InvalidRequest(f"{where}.{field}: Field required", param=f"{where}.{field}")
    return ToolCall(block.id or "", block.name or "", msgspec.json.encode(block.input or {}).decode())


def _part(block: wire.Block, where: str) -> Part:
    if block.type == "image":
        return _image(block.source, f"{where}.source")
    return _text(block, where)


def _text(block: wire.Block, where: str) -> TextPart:
    if block.type != "text":
        raise UnsupportedFeature(
            f"{where}.type: blocks of type '{block.type}' are not supported", feature=block.type, param=f"{where}.type"
        )
    if block.text is None:
        raise InvalidRequest(f"{where}.text: Field required", param=f"{where}.text")
    return TextPart(block.text)


def _image(source: wire.Source | None, where: str) -> ImagePart:
    if source is not None and source.type == "base64" and source.data is not None:
        return ImagePart(f"data:{source.media_type or 'image/png'};base64,{source.data}", "data")
    if source is not None and source.type == "url" and source.url is not None:
        return ImagePart(source.url, "url")
    raise InvalidRequest(f"{where}: Input should be a base64 or url source", param=where)


# --- and back ----------------------------------------------------------------------------------------------------


def write_conversation(messages: tuple[Message, ...]) -> tuple[str, Blocks]:
    """The system prompt, "" if there is none, and the turns; neighbours of one role become one turn.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot say it.
    """
    system: list[str] = []
    turns: Blocks = []
    for message in messages:
        if message.role in ("system", "developer"):
            system.append(_plain(message))
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _plain(message: Message) -> str:
    content = message.content or ""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _blocks(message: Message) -> Blocks:
    content = message.content or ""
    parts: tuple[Part, ...] = (TextPart(content),) if isinstance(content, str) else content
    blocks = [_block(part) for part in parts if not isinstance(part, TextPart) or part.text]
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": blocks}]
    calls = message.tool_calls
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)} for call in calls
    ]


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    url = image_url(part)
    if part.kind == "url":
        return {"type": "image", "source": {"type": "url", "url": url}}
    media, _, data = url.removeprefix("data:").rpartition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media or "image/png", "data": data}}


def _object(arguments: str) -> Any:
    try:
        found = msgspec.json.decode(arguments or "{}")
    except UNREADABLE:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest("A tool call's arguments must be a JSON object.", param="messages")
    return found
