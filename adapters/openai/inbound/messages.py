"""Messages of a chat decoded to the IR."""

from __future__ import annotations

from itertools import chain

from adapters.calls import read_signature
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import empty, missing, not_one_of, refused
from adapters.openai.inbound.parts import read_part
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Message, Part, TextPart, ToolCall
from schemas.openai import requests as wire


def read_messages(dialect: Dialect, messages: tuple[wire.ChatMessage, ...]) -> ChatPrompt:
    """The prompt of a conversation.

    Raises:
        schemas.errors.InvalidRequest: a message breaks a rule of the protocol; `param` names its field.
    """
    if not messages:
        raise empty("messages")
    read = tuple(_message(dialect, message, f"messages[{place}]") for place, message in enumerate(messages))
    limit = dialect.limits.max_message_chars
    if limit is not None and (length := sum(map(_characters, read))) > limit:
        raise refused("messages", f"Messages length must be in (0, {limit}], but got {length}.")
    return ChatPrompt(read)


def _message(dialect: Dialect, given: wire.ChatMessage, param: str) -> Message:
    if given.role not in dialect.requests.roles:
        raise not_one_of(f"{param}.role", given.role, dialect.requests.roles)
    # Silently left out, they would change the conversation that the model sees.
    if given.function_call is not None:
        field = "function_call"
        raise UnsupportedFeature(f"'{field}' in messages is not supported.", feature=field, param=f"{param}.{field}")
    if given.role == "tool" and given.tool_call_id is None and dialect.requests.tool_call_ids:
        raise missing(f"{param}.tool_call_id")
    return Message(
        role=given.role,
        content=_content(dialect, given, param),
        name=given.name,
        tool_calls=tuple([_tool_call(call, param) for call in given.tool_calls or () if call.type == "function"]),
        tool_call_id=given.tool_call_id,
        # DeepSeek's name and OpenRouter's; vLLM has had both.
        reasoning=given.reasoning_content or given.reasoning,
    )


def _content(dialect: Dialect, given: wire.ChatMessage, param: str) -> str | tuple[Part, ...] | None:
    content = given.content
    if content is None and given.role == "assistant":
        if given.tool_calls or given.audio is not None:
            return None
        content = given.refusal  # an assistant that refused
    if isinstance(content, str):
        if content or dialect.requests.empty_content:
            return content
        raise refused(f"{param}.content", f"Invalid '{param}.content': the content must not be empty.")
    if content is None:
        # OpenAI's sentence. Only an assistant's message may have null.
        message = (
            f"Invalid type for '{param}.content': expected one of a string or array of objects, but got null instead."
        )
        raise InvalidRequest(message, param=f"{param}.content", code="invalid_type")
    if not content:
        raise empty(f"{param}.content")
    parts = [read_part(part, f"{param}.content[{place}]") for place, part in enumerate(content)]
    return tuple(chain.from_iterable(parts))


def _tool_call(call: wire.ToolCall, param: str) -> ToolCall:
    if call.function is None:
        raise missing(f"{param}.tool_calls.function")
    return ToolCall(call.id, call.function.name, call.function.arguments, read_signature(call.extra_content))


def _characters(message: Message) -> int:
    """The characters of text in a message."""
    if isinstance(message.content, tuple):
        return sum(len(part.text) for part in message.content if isinstance(part, TextPart))
    return len(message.content or "")
