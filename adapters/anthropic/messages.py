"""Conversations in the protocol's blocks, decoded to the IR and encoded from it.

In the protocol, a tool's result is a block of a user's turn and the system prompt is a field; in the IR both are
messages of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from adapters.calls import read_arguments, read_signature
from adapters.outbound import image_url
from schemas import anthropic as wire
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, ImagePart, Message, Part, TemplateOptions, TextPart, ToolCall

Blocks = list[dict[str, Any]]
"""Content blocks, or turns, as JSON objects."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
CONTINUED = TemplateOptions(add_generation_prompt=False, continue_final_message=True)
"""Of a conversation whose last turn is the assistant's."""


def read_conversation(given: wire.CountRequest) -> ChatPrompt:
    """The prompt of a conversation: the system prompt and the turns.

    Raises:
        schemas.errors.InvalidRequest: a block breaks a rule of the protocol; the message names its place.
    """
    messages: list[Message] = []
    if given.system:
        messages.append(Message("system", _system(given.system)))
    if not given.messages:
        raise InvalidRequest("messages: at least one message is required", param="messages")
    for place, turn in enumerate(given.messages):
        read = _TURNS.get(turn.role)
        if read is None:
            param = f"messages.{place}.role"
            raise InvalidRequest(f"{param}: Input should be 'user', 'assistant' or 'system'", param=param)
        messages += read(turn, f"messages.{place}.content")
    begun = _begun(given.messages[-1])
    if begun is None:
        return ChatPrompt(tuple(messages))
    if begun and begun != begun.rstrip():
        # Anthropic's rule and words.
        message = "messages: final assistant content cannot end with trailing whitespace"
        raise InvalidRequest(message, param="messages")
    # The answer goes on where the last turn ends; one without text is the answer itself.
    return ChatPrompt(tuple(messages), CONTINUED) if begun else ChatPrompt(tuple(messages[:-1]))


def _begun(turn: wire.Turn) -> str | None:
    """The text that a last turn of the assistant puts at the beginning of the answer; None: it does not."""
    if turn.role != "assistant":
        return None
    if isinstance(turn.content, str):
        return turn.content
    if any(block.type != "text" for block in turn.content):
        return None
    return "".join(block.text or "" for block in turn.content)


def _system(system: str | tuple[wire.Block, ...], param: str = "system") -> str | tuple[Part, ...]:
    return system if isinstance(system, str) else tuple(_text(block, param) for block in system)


def _user(turn: wire.Turn, param: str) -> list[Message]:
    """The messages of a user's turn: its tool results first, which answer the calls of the turn before."""
    if isinstance(turn.content, str):
        return [Message("user", turn.content)]
    messages: list[Message] = []
    parts: list[Part] = []
    for place, block in enumerate(turn.content):
        if block.type == "tool_result":
            messages.append(_result(block, f"{param}.{place}"))
        else:
            parts.append(_part(block, f"{param}.{place}"))
    # Chat templates expect the results right after the calls. A turn of results alone makes no empty user message; a
    # turn without any block does, so that it is not lost.
    return [*messages, Message("user", tuple(parts))] if parts or not messages else messages


def _result(block: wire.Block, param: str) -> Message:
    if block.tool_use_id is None:
        raise InvalidRequest(f"{param}.tool_use_id: Field required", param=f"{param}.tool_use_id")
    content = block.content or ""
    parts = content if isinstance(content, str) else tuple(_part(part, param) for part in content)
    return Message("tool", parts, tool_call_id=block.tool_use_id)


def _assistant(turn: wire.Turn, param: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message("assistant", turn.content)]
    parts: list[Part] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for place, block in enumerate(turn.content):
        if block.type == "tool_use":
            calls.append(_call(block, f"{param}.{place}"))
        elif block.type == "thinking":
            # The signature is not kept: only Anthropic can verify it, and no other model needs it.
            thoughts.append(block.thinking or "")
        # Redacted thinking is encrypted for Anthropic: nothing that a model here could read.
        elif block.type != "redacted_thinking":
            parts.append(_part(block, f"{param}.{place}"))
    # The blocks of a turn may alternate; the IR has texts before calls, as chat templates render them.
    return [Message("assistant", tuple(parts) or None, tool_calls=tuple(calls), reasoning="".join(thoughts) or None)]


_TURNS: dict[str, Callable[[wire.Turn, str], list[Message]]] = {
    "user": _user,
    "assistant": _assistant,
    # An instruction within the conversation.
    "system": lambda turn, param: [Message("system", _system(turn.content, param))],
}
"""The role of a turn -> the reader of its messages."""


def _call(block: wire.Block, param: str) -> ToolCall:
    for field in ("id", "name"):
        if getattr(block, field) is None:
            raise InvalidRequest(f"{param}.{field}: Field required", param=f"{param}.{field}")
    if block.input is not None and not isinstance(block.input, dict):
        raise InvalidRequest(f"{param}.input: Input should be a valid dictionary", param=f"{param}.input")
    arguments = msgspec.json.encode(block.input or {}).decode()
    return ToolCall(block.id or "", block.name or "", arguments, read_signature(block.extra_content))


def _part(block: wire.Block, param: str) -> Part:
    if block.type == "image":
        return _image(block.source, f"{param}.source")
    return _text(block, param)


def _text(block: wire.Block, param: str) -> TextPart:
    if block.type != "text":
        raise UnsupportedFeature(
            f"{param}.type: blocks of type '{block.type}' are not supported", feature=block.type, param=f"{param}.type"
        )
    if block.text is None:
        raise InvalidRequest(f"{param}.text: Field required", param=f"{param}.text")
    return TextPart(block.text)


def _image(source: wire.Source | None, param: str) -> ImagePart:
    if source is not None and source.type == "base64" and source.data is not None:
        return ImagePart(f"data:{source.media_type or 'image/png'};base64,{source.data}", "data")
    if source is not None and source.type == "url" and source.url is not None:
        return ImagePart(source.url, "url")
    raise InvalidRequest(f"{param}: Input should be a base64 or url source", param=param)


# --- IR to blocks -------------------------------------------------------------------------------------------------


def write_conversation(messages: tuple[Message, ...]) -> tuple[str, Blocks]:
    """The system prompt ("" if there is none) and the turns. Adjacent messages of one role become one turn.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express an image.
        schemas.errors.InvalidRequest: the arguments of a tool call are no JSON object.
    """
    system: list[str] = []
    turns: Blocks = []
    for message in messages:
        # Wherever it stands: the protocol has one system prompt, outside of the conversation.
        if message.role in ("system", "developer"):
            system.append(_plain_text(message))
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:  # the API refuses a turn without any
            continue
        # Tool results are user turns here. Several results of parallel calls, and the user's next message, must share
        # one turn: the API refuses a `tool_use` whose `tool_result` is not in the very next turn.
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _plain_text(message: Message) -> str:
    content = message.content or ""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _blocks(message: Message) -> Blocks:
    content = message.content or ""
    parts: tuple[Part, ...] = (TextPart(content),) if isinstance(content, str) else content
    # The API refuses text blocks of whitespace alone.
    blocks = [_block(part) for part in parts if not isinstance(part, TextPart) or part.text.strip()]
    if message.reasoning:
        # The API refuses thinking without its own signature, which conversations of other protocols do not carry.
        blocks.insert(0, {"type": "text", "text": f"<thinking>\n{message.reasoning}\n</thinking>"})
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": _id(message.tool_call_id or ""), "content": blocks}]
    return blocks + [
        {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": read_arguments(call)}
        for call in message.tool_calls
    ]


def _id(given: str) -> str:
    """The id of a call, of the characters that the API takes; other models write others (`functions.f:0`)."""
    return _FOREIGN.sub("_", given)


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    url = image_url(part)
    if part.kind == "url":
        return {"type": "image", "source": {"type": "url", "url": url}}
    # From the right: a media type may have parameters of its own (`image/png;name=a;base64,`).
    media, _, data = url.removeprefix("data:").rpartition(";base64,")
    media = "image/jpeg" if media == "image/jpg" else media or "image/png"  # the former is a common mistake
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
