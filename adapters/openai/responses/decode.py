"""Bodies of `/v1/responses` to the internal form, with the conversation that they go on from (`stored`)."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Call
from adapters.dialect import Bound
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import empty, missing, not_one_of, out_of_bounds, refused, too_long
from adapters.openai.inbound.decode import SMALLEST_NUCLEUS
from adapters.openai.inbound.messages import image_part
from adapters.openai.inbound.tools import check_properties
from adapters.openai.responses.stored import REFERENCE, conversation, own_items, referred
from schemas import responses as wire
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    Message,
    Origin,
    Part,
    Sampling,
    Stopping,
    TextPart,
    Tokenize,
    Tool,
    ToolCall,
    ToolChoice,
)

OPERATION = "responses"
"""The route's name."""

COUNT = "input_tokens"
"""That of the route that only counts."""

_BOUNDS = (
    Bound("temperature", 0, 2),
    Bound("top_p", 0, 1),
    Bound("max_output_tokens", 1),
    Bound("max_tool_calls", 1),
    Bound("top_logprobs", 0, 20),
)
_ROLES = ("system", "developer", "user", "assistant")
_NOT_KEPT = ("conversation", "background", "prompt")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = ("reasoning.encrypted_content", _LOGPROBS)


def response(
    dialect: Dialect, given: wire.ResponseRequest, origin: Origin, call: Call, extra: dict[str, Any]
) -> Generate:
    """A question.

    Raises:
        schemas.errors.InvalidRequest: `param` names the field that is wrong.
    """
    _check(given)
    tools = tuple(_tool(dialect, tool, f"tools[{place}]") for place, tool in enumerate(given.tools or ()))
    if len(tools) > dialect.limits.max_tools:
        raise too_long("tools", dialect.limits.max_tools, len(tools))
    scored = _LOGPROBS in (given.include or ())
    before = conversation(call, given.previous_response_id)
    stores = given.store is not False and call.records is not None
    return Generate(
        id=call.id,
        model=given.model or "",
        prompts=(_conversation(given, msgspec.convert(before, tuple[wire.Item, ...]), call),),
        sampling=Sampling(
            do_sample=True,
            temperature=given.temperature,
            top_p=SMALLEST_NUCLEUS if given.top_p == 0 else given.top_p,
        ),
        stopping=Stopping(max_new_tokens=given.max_output_tokens),
        stream=bool(given.stream),
        stream_usage=True,
        stored_items=_items(before, origin, call) if stores else None,
        raw_prompt=False,
        logprobs=scored,
        top_logprobs=(given.top_logprobs or 0) if scored else 0,
        tools=tools,
        tool_choice=_choice(given.tool_choice, tools),
        parallel_tool_calls=given.parallel_tool_calls,
        grammar=_grammar(given.text),
        user=given.safety_identifier or given.user,
        hints=_hints(given),
        extra=extra,
        origin=origin,
    )


def count(dialect: Dialect, given: wire.ResponseRequest, origin: Origin, call: Call, extra: dict[str, Any]) -> Tokenize:
    """A question of which only the length is asked.

    Raises:
        schemas.errors.InvalidRequest: as for `response`.
    """
    asked = response(dialect, given, origin, call, extra)
    none = asked.tool_choice is not None and asked.tool_choice.mode == "none"
    tools = () if none else asked.tools
    return Tokenize(id=asked.id, model=asked.model, prompt=asked.prompts[0], tools=tools, origin=origin)


def _hints(given: wire.ResponseRequest) -> dict[str, Any]:
    hints = {
        "reasoning_effort": given.reasoning.effort if given.reasoning is not None else None,
        "metadata": given.metadata,
        "service_tier": given.service_tier,
    }
    return {name: value for name, value in hints.items() if value is not None}


def _check(given: wire.ResponseRequest) -> None:
    if not given.model:
        raise missing("model")
    for bound in _BOUNDS:
        value = getattr(given, bound.name)
        if value is not None and not bound.holds(value):
            raise out_of_bounds(bound, value)
    for field in _NOT_KEPT:
        if getattr(given, field):
            message = f"The '{field}' parameter is not supported."
            raise UnsupportedFeature(message, feature=field, param=field)
    if given.truncation not in (None, "disabled"):
        message = "The 'truncation' parameter must be 'disabled': a conversation is never cut."
        raise UnsupportedFeature(message, feature="truncation", param="truncation")
    for name in given.include or ():
        if name not in _INCLUDABLE:
            raise UnsupportedFeature(f"'{name}' cannot be included.", feature="include", param="include")


def _items(before: list[dict[str, Any]], origin: Origin, call: Call) -> bytes:
    """The JSON of all items that the answer will answer."""
    return msgspec.json.encode(before + own_items(call, msgspec.json.decode(origin.body)["input"]))


def _conversation(given: wire.ResponseRequest, before: tuple[wire.Item, ...], call: Call) -> ChatPrompt:
    """The messages. What an earlier request's instructions were does not hold any more."""
    messages: list[Message] = []
    if given.instructions:
        messages.append(Message("system", given.instructions))
    for item in before:
        if (message := _item(item, "previous_response_id")) is not None:
            messages.append(_joined(messages, message))
    if isinstance(given.input, str):
        messages.append(Message("user", given.input))
        return ChatPrompt(tuple(messages))
    if not given.input:
        raise empty("input")
    for place, item in enumerate(given.input):
        meant = msgspec.convert(referred(call, item.id or ""), wire.Item) if item.type == REFERENCE else item
        if (message := _item(meant, f"input[{place}]")) is not None:
            messages.append(_joined(messages, message))
    return ChatPrompt(tuple(messages))


def _joined(messages: list[Message], message: Message) -> Message:
    """Calls that the model made at once are items of their own here, and one message in chats."""
    if message.tool_calls and messages and messages[-1].role == "assistant":
        last = messages.pop()
        return Message("assistant", last.content, tool_calls=(*last.tool_calls, *message.tool_calls))
    return message


def _item(item: wire.Item, where: str) -> Message | None:
    if item.type == "message":
        if item.role not in _ROLES:
            raise not_one_of(f"{where}.role", str(item.role), _ROLES)
        if item.content is None:
            raise missing(f"{where}.content")
        return Message(item.role or "", _content(item.content, f"{where}.content"))
    if item.type == "function_call":
        if item.call_id is None or item.name is None:
            raise missing(f"{where}.{'name' if item.name is None else 'call_id'}")
        return Message("assistant", None, tool_calls=(ToolCall(item.call_id, item.name, item.arguments or "{}"),))
    if item.type == "function_call_output":
        if item.call_id is None:
            raise missing(f"{where}.call_id")
        return Message("tool", _content(item.output or "", f"{where}.output"), tool_call_id=item.call_id)
    if item.type == "reasoning":
        return None  # what the model thought is not told to it again
    message = f"Items of type '{item.type}' are not supported."
    raise UnsupportedFeature(message, feature=item.type, param=f"{where}.type")


def _content(content: str | tuple[wire.Part, ...], where: str) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    return tuple(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: wire.Part, where: str) -> Part:
    if part.type == "input_image":
        if part.image_url is None:
            raise missing(f"{where}.image_url")
        return image_part(part.image_url, part.detail)
    if part.type not in ("input_text", "output_text", "text", "refusal"):
        message = f"Content of type '{part.type}' is not supported."
        raise UnsupportedFeature(message, feature=part.type, param=f"{where}.type")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise missing(f"{where}.text")
    return TextPart(text)


def _tool(dialect: Dialect, tool: wire.Tool, where: str) -> Tool:
    if tool.type != "function":
        message = f"Tools of type '{tool.type}' are not supported. Supported types are: 'function'."
        raise UnsupportedFeature(message, feature="tools", param=f"{where}.type")
    if tool.name is None:
        raise missing(f"{where}.name")
    check_properties(dialect, tool.parameters, f"{where}.parameters")
    return Tool(tool.name, tool.description, tool.parameters, tool.strict)


def _choice(given: str | wire.Choice | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    if given is None or (given == "auto" and not tools):
        return None
    if given in ("none", "auto"):
        return ToolChoice(given)  # type: ignore[arg-type]
    if not tools:
        raise refused("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
    if given == "required":
        return ToolChoice("required")
    if isinstance(given, str):
        raise not_one_of("tool_choice", given, ("none", "auto", "required"))
    if given.type == "function" and given.name is not None:
        names: tuple[str, ...] = (given.name,)
    elif given.type == "allowed_tools":
        names = tuple(tool.name or "" for tool in given.tools)
    else:
        raise not_one_of("tool_choice.type", given.type, ("function", "allowed_tools"))
    for name in names:
        if all(tool.name != name for tool in tools):
            raise refused("tool_choice", f"Tool choice '{name}' not found in 'tools' parameter.")
    if given.type == "function":
        return ToolChoice("named", names)
    return ToolChoice("allowed", names, required=given.mode == "required")


def _grammar(text: wire.Text | None) -> Grammar | None:
    format = (text.format if text is not None else None) or wire.Format()
    if format.type == "text":
        return None
    if format.type == "json_object":
        return Grammar("json_object")
    if format.type != "json_schema":
        raise not_one_of("text.format.type", format.type, ("text", "json_schema", "json_object"))
    if format.schema is None:
        raise missing("text.format.schema")
    if format.name is None:
        raise missing("text.format.name")
    return Grammar("json_schema", format.schema, format.name, format.strict)
