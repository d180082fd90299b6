"""Conversations decoded to the IR and encoded from it.

In the protocol a message is a list of parts: texts, images, calls and results of functions, which may lack an id.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.body import UNREADABLE
from adapters.calls import OpenCalls, read_arguments
from adapters.outbound import image_url
from schemas import gemini as wire
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, ImagePart, Message, Part, TextPart, ToolCall
from schemas.origin import Unread

_URL_SAFE = str.maketrans("-_", "+/")
_ROLES = {"user": "user", "model": "assistant", "function": "user", "tool": "user", None: "user", "": "user"}
_ELSEWHERE = ("executable_code", "code_execution_result", "tool_call", "tool_response")
"""Parts that only a server of the same dialect understands."""
_UNSIGNED = "skip_thought_signature_validator"
"""What Google's page on thought signatures has a client send with calls that another model wrote."""


def as_contents(given: tuple[wire.Content, ...] | wire.Content | None) -> tuple[wire.Content, ...]:
    """The messages; one may come without a list."""
    return (given,) if isinstance(given, wire.Content) else given or ()


def read_conversation(
    contents: tuple[wire.Content, ...], system: wire.Content | str | None
) -> tuple[ChatPrompt, tuple[Unread, ...]]:
    """The prompt of a conversation, and what of it the IR cannot express.

    Raises:
        schemas.errors.InvalidRequest: a message or a part breaks a rule of the protocol.
    """
    if not contents:
        raise InvalidRequest("contents is not specified", param="contents")
    messages = [Message("system", text)] if (text := _system(system)) else []
    unread: list[Unread] = []
    open_calls = OpenCalls()
    for place, content in enumerate(contents):
        param = f"contents[{place}]"
        if content.role not in _ROLES:
            raise InvalidRequest("Please use a valid role: user, model.", param=f"{param}.role")
        if not content.parts:
            raise InvalidRequest(f"{param}.parts: must not be empty", param=f"{param}.parts")
        messages += _messages(content, param, open_calls, unread)
    return ChatPrompt(tuple(messages)), tuple(unread)


def _system(system: wire.Content | str | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "\n".join(part.text for part in system.parts if part.text is not None)


def _messages(content: wire.Content, param: str, open_calls: OpenCalls, unread: list[Unread]) -> list[Message]:
    """The messages of a content: results of functions are messages of their own."""
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for place, part in enumerate(content.parts):
        where = f"{param}.parts[{place}]"
        if part.function_call is not None:
            calls.append(_call(part, part.function_call, f"{param}_{place}"))
        elif part.function_response is not None:
            results.append(_result(part.function_response, open_calls))
        elif part.thought:
            thoughts.append(part.text or "")
        elif (read := _part(part, where, unread)) is not None:
            parts.append(read)
    open_calls.add(tuple(calls))
    if _ROLES[content.role] == "assistant":
        return [Message("assistant", _joined(parts), tool_calls=tuple(calls), reasoning="".join(thoughts) or None)]
    # As in the adapters of other protocols: results first, which answer the calls of the message before.
    return [*results, Message("user", _joined(parts))] if parts or not results else results


def _joined(parts: list[Part]) -> str | tuple[Part, ...] | None:
    """Texts alone as one text, as most chat templates expect them."""
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart)) or None
    return tuple(parts)


def _part(part: wire.Part, where: str, unread: list[Unread]) -> Part | None:
    """A text or an image; None for what only a server of the dialect understands, which is named in `unread`."""
    if part.text is not None:
        return TextPart(part.text)
    if part.inline_data is not None:
        blob = part.inline_data
        if blob.mime_type.startswith("image/"):
            # Protocol buffers take both alphabets of base64, and Google's SDKs write the one for URLs.
            return ImagePart(f"data:{blob.mime_type};base64,{blob.data.translate(_URL_SAFE)}", "data")
        _not_read(unread, f"{where}.inlineData", blob.mime_type, f"data of type '{blob.mime_type}' is not supported")
    elif part.file_data is not None:
        uri, type = part.file_data.file_uri, part.file_data.mime_type or "image/"
        if uri.startswith(("http://", "https://")) and type.startswith("image/"):
            return ImagePart(uri, "url")
        _not_read(unread, f"{where}.fileData", "files", "files are not supported, but images by their address")
    else:
        kind = next((name for name in _ELSEWHERE if getattr(part, name) is not None), "empty")
        if kind == "empty":
            raise InvalidRequest(f"{where}: required oneof field 'data' must have one initialized field", param=where)
        _not_read(unread, where, kind, f"parts with '{kind}' are not supported")
    return None


def _not_read(unread: list[Unread], param: str, feature: str, refusal: str) -> None:
    unread.append(Unread(param, feature, f"{param}: {refusal}"))


def _call(part: wire.Part, call: wire.FunctionCall, place: str) -> ToolCall:
    id = call.id or f"call_{place}".replace("[", "_").replace("]", "").replace(".", "_")
    # Google's SDKs send the word for calls that have no signature.
    signature = part.thought_signature if part.thought_signature != _UNSIGNED else None
    return ToolCall(id, call.name, msgspec.json.encode(call.args or {}).decode(), signature)


def _result(result: wire.FunctionResponse, open_calls: OpenCalls) -> Message:
    response = result.response or {}
    # SDKs wrap what a function returned, because the field is an object.
    value = response.get("output", response.get("result")) if len(response) == 1 else None
    text = value if isinstance(value, str) else msgspec.json.encode(response).decode()
    id = result.id or open_calls.answered(result.name)
    return Message("tool", text, name=result.name, tool_call_id=id)


# --- IR to contents -------------------------------------------------------------------------------------------------


def write_conversation(messages: tuple[Message, ...]) -> dict[str, Any]:
    """The fields of a request that hold the conversation. Adjacent messages of one role become one.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express an image.
        schemas.errors.InvalidRequest: the arguments of a tool call are no JSON object.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    for message in messages:
        if message.role in ("system", "developer"):
            system += _parts(message)
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _response(message, names) if message.role == "tool" else _parts(message)
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return {"contents": contents} | ({"systemInstruction": {"parts": system}} if system else {})


def _parts(message: Message) -> list[dict[str, Any]]:
    content = message.content or ""
    parts: tuple[Part, ...] = (TextPart(content),) if isinstance(content, str) else content
    written: list[dict[str, Any]] = [{"text": message.reasoning, "thought": True}] if message.reasoning else []
    written += [_written(part) for part in parts if not isinstance(part, TextPart) or part.text]
    written += [
        {
            "functionCall": {"id": call.id, "name": call.name, "args": read_arguments(call)},
            "thoughtSignature": call.signature or _UNSIGNED,
        }
        for call in message.tool_calls
    ]
    return written or [{"text": ""}]


def _written(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"text": part.text}
    url = image_url(part)
    if part.kind == "url":
        return {"fileData": {"fileUri": url}}
    media, _, data = url.removeprefix("data:").rpartition(";base64,")
    return {"inlineData": {"mimeType": media or "image/png", "data": data}}


def _response(message: Message, names: dict[str, str]) -> list[dict[str, Any]]:
    """A function's result, in the object that Google's SDKs put it into, and its images, which that has no room for."""
    content, images = message.content or "", []
    if not isinstance(content, str):
        images = [_written(part) for part in content if not isinstance(part, TextPart)]
        content = "".join(part.text for part in content if isinstance(part, TextPart))
    try:
        response = msgspec.json.decode(content, type=dict[str, Any])
    except UNREADABLE:
        response = {"result": content}
    name = names.get(message.tool_call_id or "") or message.name or ""
    id = {"id": message.tool_call_id} if message.tool_call_id else {}
    return [{"functionResponse": {"name": name, "response": response} | id}, *images]
