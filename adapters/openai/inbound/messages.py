"""Conversations to the internal form."""

from __future__ import annotations

from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import empty, missing, not_one_of, refused
from schemas.errors import UnsupportedFeature
from schemas.ir import ChatPrompt, ImagePart, Message, Part, TextPart, ToolCall
from schemas.openai import requests as wire

_REMOTE = ("http://", "https://")


def read_messages(dialect: Dialect, messages: tuple[wire.ChatMessage, ...]) -> ChatPrompt:
    """The conversation.

    Raises:
        schemas.errors.InvalidRequest: a message is not of a form that the protocol has; `param` names its field.
    """
    if not messages:
        raise empty("messages")
    read = tuple(_message(dialect, message, f"messages[{place}]") for place, message in enumerate(messages))
    limit = dialect.limits.max_message_chars
    if limit is not None:
        length = sum(map(_length, read))
        if length > limit:
            raise refused("messages", f"Messages length must be in (0, {limit}], but got {length}.")
    return ChatPrompt(read)


def image_part(url: str, detail: str | None = None) -> ImagePart:
    """A picture by reference: a URL, a `data:` URL, MindIE's bare base64 or local path."""
    if url.startswith(_REMOTE):
        return ImagePart(url, "url", detail)
    # Base64 of a JPEG begins like an absolute path, of a PNG with its magic's own letters.
    if url.startswith(("data:", "iVBORw0KGgo")) or (url.startswith("/9j/") and "." not in url):
        return ImagePart(url, "data", detail)
    return ImagePart(url, "path", detail)


def _message(dialect: Dialect, given: wire.ChatMessage, where: str) -> Message:
    if given.role not in dialect.requests.roles:
        raise not_one_of(f"{where}.role", given.role, dialect.requests.roles)
    if given.function_call is not None or given.audio is not None:
        field = "audio" if given.function_call is None else "function_call"
        raise UnsupportedFeature(f"'{field}' in messages is not supported.", feature=field, param=f"{where}.{field}")
    if given.role == "tool" and given.tool_call_id is None:
        raise missing(f"{where}.tool_call_id")
    return Message(
        role=given.role,
        content=_content(dialect, given, where),
        name=given.name,
        tool_calls=tuple([_tool_call(call, f"{where}.tool_calls") for call in given.tool_calls or ()]),
        tool_call_id=given.tool_call_id,
        reasoning=given.reasoning_content or given.reasoning,
    )


def _content(dialect: Dialect, given: wire.ChatMessage, where: str) -> str | tuple[Part, ...] | None:
    content = given.content
    if content is None and given.role == "assistant":
        if given.tool_calls:
            return None
        content = given.refusal  # what the model said then was its refusal
    if isinstance(content, str):
        if content or dialect.requests.empty_content:
            return content
        raise refused(f"{where}.content", f"Invalid '{where}.content': the content must not be empty.")
    if content is None:
        message = f"Invalid type for '{where}.content': expected one of a string or array of objects, but got null."
        raise refused(f"{where}.content", message)
    if not content:
        raise empty(f"{where}.content")
    return tuple(_part(part, f"{where}.content[{place}]") for place, part in enumerate(content))


def _part(part: wire.ContentPart, where: str) -> Part:
    if part.type == "image_url":
        if part.image_url is None:
            raise missing(f"{where}.image_url")
        if isinstance(part.image_url, str):
            return image_part(part.image_url)
        return image_part(part.image_url.url, part.image_url.detail)
    if part.type not in ("text", "refusal"):
        message = (
            f"Content of type '{part.type}' is not supported. Supported types are: 'text', 'image_url', 'refusal'."
        )
        raise UnsupportedFeature(message, feature=part.type, param=f"{where}.type")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise missing(f"{where}.{part.type}")
    return TextPart(text)


def _tool_call(call: wire.ToolCall, where: str) -> ToolCall:
    if call.type != "function":
        raise not_one_of(f"{where}.type", call.type, ("function",))
    return ToolCall(call.id, call.function.name, call.function.arguments)


def _length(message: Message) -> int:
    """In characters of text."""
    if isinstance(message.content, tuple):
        return sum(len(part.text) for part in message.content if isinstance(part, TextPart))
    return len(message.content or "")
