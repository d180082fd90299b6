"""Conversations decoded to the IR and encoded from it.

In the protocol the arguments of a call are an object, images are bare base64 beside a message's text, and a tool's
result may name its tool or nothing where the IR has the id of the call.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.calls import OpenCalls, read_arguments
from adapters.outbound import image_url, inexpressible
from schemas import ollama as wire
from schemas.errors import InvalidRequest
from schemas.ir import ImagePart, Message, Part, TextPart, ToolCall

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def read_messages(given: tuple[wire.Message, ...]) -> tuple[Message, ...]:
    """The messages of a conversation.

    Raises:
        schemas.errors.InvalidRequest: a message has an unknown role; the message names its place.
    """
    messages: list[Message] = []
    open_calls = OpenCalls()
    for place, message in enumerate(given):
        role = message.role.lower()
        if role not in _ROLES:
            raise InvalidRequest(f"messages[{place}]: invalid role '{message.role}'", param=f"messages[{place}].role")
        calls = tuple(
            ToolCall(call.id or f"call_{place}_{index}", call.function.name, _json(call.function.arguments))
            for index, call in enumerate(message.tool_calls or ())
        )
        open_calls.add(calls)
        answered = (message.tool_call_id or open_calls.answered(message.tool_name)) if role == "tool" else None
        messages.append(
            Message(
                role,
                _content(message, f"messages[{place}].images"),
                name=message.tool_name,
                tool_calls=calls,
                tool_call_id=answered,
                reasoning=message.thinking or None,
            )
        )
    return tuple(messages)


def read_images(images: tuple[str, ...], param: str) -> tuple[ImagePart, ...]:
    """The images of a message.

    Raises:
        schemas.errors.InvalidRequest: an image is empty.
    """
    for place, image in enumerate(images):
        if not image:
            raise InvalidRequest(f"{param}[{place}]: the image is empty", param=f"{param}[{place}]")
    return tuple(ImagePart(image, "data") for image in images)


def _content(message: wire.Message, param: str) -> str | tuple[Part, ...] | None:
    """The content of a message; Ollama's templates put the images before the text."""
    if not message.images:
        return message.content
    text = (TextPart(message.content),) if message.content else ()
    return (*read_images(message.images, param), *text)


def _json(arguments: dict[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode()


# --- IR to messages -------------------------------------------------------------------------------------------------


def write_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The messages in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express an image.
        schemas.errors.InvalidRequest: the arguments of a tool call are no JSON object.
    """
    tools = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_message(message, tools) for message in messages]


def write_images(images: tuple[ImagePart, ...]) -> list[str]:
    """Images as base64.

    Raises:
        schemas.errors.UnsupportedFeature: an image is a URL, which the protocol has no field for.
    """
    written = []
    for image in images:
        url = image_url(image)
        if not url.startswith("data:"):
            raise inexpressible("image_urls")
        written.append(url.rpartition(";base64,")[2])
    return written


def _message(message: Message, tools: dict[str, str]) -> dict[str, Any]:
    """One message; `tools` has the tool's name of each call's id."""
    content = message.content or ""
    parts: tuple[Part, ...] = (TextPart(content),) if isinstance(content, str) else content
    # The protocol knows no developer.
    fields: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": "".join(part.text for part in parts if isinstance(part, TextPart)),
    }
    optional = {
        "thinking": message.reasoning,
        "images": write_images(tuple(part for part in parts if isinstance(part, ImagePart))),
        "tool_calls": [_call(call, index) for index, call in enumerate(message.tool_calls)],
        "tool_name": (tools.get(message.tool_call_id) if message.tool_call_id else None) or message.name,
        "tool_call_id": message.tool_call_id,
    }
    return fields | {name: value for name, value in optional.items() if value}


def _call(call: ToolCall, index: int) -> dict[str, Any]:
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": read_arguments(call)}}
