"""Bodies of `/v1/responses` decoded to the IR, together with the stored conversation that they continue."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Call
from adapters.dialect import Bound
from adapters.openai.dialects import PENALTIES, Dialect
from adapters.openai.inbound.checks import check_bound, empty, missing, not_one_of
from adapters.openai.inbound.decode import read_model
from adapters.openai.inbound.parts import image_part
from adapters.openai.inbound.tools import choice_of_keyword, choice_of_names, json_schema_grammar, read_tools
from adapters.openai.responses.stored import REFERENCE, Items, conversation_items, input_items, referenced_item
from adapters.unknown_fields import Unknown
from schemas import responses as wire
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    SMALLEST_TOP_P,
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
"""The name of the route that answers."""

COUNT = "input_tokens"
"""The name of the route that counts tokens."""

_BOUNDS = (
    Bound("temperature", 0, 2),
    Bound("top_p", 0, 1),
    Bound("max_output_tokens", 1),
    Bound("max_tool_calls", 1),
    Bound("top_logprobs", 0, 20),
    *PENALTIES,
)
_TRUNCATIONS = ("auto", "disabled")
_ROLES = ("system", "developer", "user", "assistant")
_UNSUPPORTED_FIELDS = ("conversation", "background", "prompt", "moderation", "context_management")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = ("reasoning.encrypted_content", _LOGPROBS)


def read_response(
    dialect: Dialect, given: wire.ResponseRequest, origin: Origin, call: Call, extra: Unknown
) -> Generate:
    """The request of `POST /v1/responses`.

    Args:
        dialect: the dialect whose limits hold.
        given: the body.
        origin: where the request came from, with the bytes of the body.
        call: the HTTP request, with the stored responses.
        extra: the unknown fields of the body.

    Raises:
        schemas.errors.RequestError: a field is wrong (`param` names it), or a stored response is not found.
    """
    _check(given)
    tools = read_tools(dialect, given.tools or ())
    # After the checks that need no storage.
    before = conversation_items(call, given.previous_response_id)
    # `top_logprobs` alone does not ask for them: the items have log-probabilities only if they are included.
    logprobs = _LOGPROBS in (given.include or ())
    return Generate(
        id=call.id,
        model=read_model(dialect, given.model, call),
        prompts=(_conversation(given, msgspec.convert(before, tuple[wire.Item, ...]), call),),
        sampling=_sampling(given),
        stopping=Stopping(max_new_tokens=given.max_output_tokens),
        stream=bool(given.stream),
        stream_usage=True,
        stored_items=_stored_items(given, before, origin, call),
        overflow="drop_turns" if given.truncation == "auto" else dialect.requests.overflow,
        raw_prompt=False,
        logprobs=logprobs,
        top_logprobs=(given.top_logprobs or 0) if logprobs else 0,
        tools=tools,
        tool_choice=_tool_choice(given.tool_choice, tools),
        parallel_tool_calls=given.parallel_tool_calls,
        grammar=_grammar(given.text),
        user=given.safety_identifier or given.user,
        safety_identifier=given.safety_identifier,
        prompt_cache_key=given.prompt_cache_key,
        hints=_hints(given),
        extra=extra,
        unknown=extra.paths,
        origin=origin,
    )


def read_count(dialect: Dialect, given: wire.ResponseRequest, origin: Origin, call: Call, extra: Unknown) -> Tokenize:
    """The request of `POST /v1/responses/input_tokens`, which counts the tokens of the same body.

    Raises:
        schemas.errors.RequestError: as for `read_response`.
    """
    request = read_response(dialect, given, origin, call, extra)
    hidden = request.tool_choice is not None and request.tool_choice.mode == "none"
    tools = () if hidden else request.tools
    return Tokenize(
        id=request.id, model=request.model, prompt=request.prompts[0], tools=tools, unknown=extra.paths, origin=origin
    )


def _sampling(given: wire.ResponseRequest) -> Sampling:
    return Sampling(
        do_sample=True,
        temperature=given.temperature,
        top_p=SMALLEST_TOP_P if given.top_p == 0 else given.top_p,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
    )


def _hints(given: wire.ResponseRequest) -> dict[str, Any]:
    """The fields for the upstream that the IR does not read."""
    hints = {
        "reasoning_effort": given.reasoning.effort if given.reasoning is not None else None,
        "metadata": given.metadata,
        "service_tier": given.service_tier,
        "safety_identifier": given.safety_identifier,
        "prompt_cache_key": given.prompt_cache_key,
    }
    return {name: value for name, value in hints.items() if value is not None}


def _stored_items(given: wire.ResponseRequest, before: Items, origin: Origin, call: Call) -> bytes | None:
    """The JSON of the items `before` and of the input, to store with the answer; None if nothing is to be stored."""
    if given.store is False or call.records is None:
        return None
    # From the raw body, not from the struct: stored items keep fields that the struct does not have.
    return msgspec.json.encode(before + input_items(call, msgspec.json.decode(origin.body)["input"]))


def _check(given: wire.ResponseRequest) -> None:
    for bound in _BOUNDS:
        check_bound(bound, getattr(given, bound.name))
    for field in _UNSUPPORTED_FIELDS:
        if getattr(given, field):
            message = f"The '{field}' parameter is not supported."
            raise UnsupportedFeature(message, feature=field, param=field)
    if given.truncation not in (None, *_TRUNCATIONS):
        raise not_one_of("truncation", given.truncation, _TRUNCATIONS)
    for name in given.include or ():
        if name not in _INCLUDABLE:
            raise UnsupportedFeature(f"'{name}' cannot be included.", feature="include", param="include")


def _conversation(given: wire.ResponseRequest, before: tuple[wire.Item, ...], call: Call) -> ChatPrompt:
    """The messages: the instructions of this request alone, the items `before` it, and its input."""
    messages: list[Message] = []
    # OpenAI's reference: with `previous_response_id` "the instructions from a previous response will not be carried
    # over".
    if given.instructions:
        messages.append(Message("system", given.instructions))
    for item in before:
        _append(messages, _message(item, "previous_response_id"))
    if isinstance(given.input, str):
        # A plain text stands for one user message.
        messages.append(Message("user", given.input))
        return ChatPrompt(tuple(messages))
    if not given.input:
        raise empty("input")
    for place, item in enumerate(given.input):
        # A reference (the AI SDK sends them for stored items) stands for the item that it names.
        resolved = msgspec.convert(referenced_item(call, item.id or ""), wire.Item) if item.type == REFERENCE else item
        _append(messages, _message(resolved, f"input[{place}]"))
    return ChatPrompt(tuple(messages))


def _append(messages: list[Message], message: Message | None) -> None:
    """Append a message. Tool calls are items of their own here; in the IR they belong to the assistant's message."""
    if message is None:
        return
    # Parallel calls, and a text before them, become one message, which chat templates need.
    if message.tool_calls and messages and messages[-1].role == "assistant":
        last = messages.pop()
        message = Message("assistant", last.content, tool_calls=(*last.tool_calls, *message.tool_calls))
    messages.append(message)


def _message(item: wire.Item, param: str) -> Message | None:
    """The message of an item; None for reasoning, which is not sent to a model again."""
    if item.type == "message":
        if item.role not in _ROLES:
            raise not_one_of(f"{param}.role", str(item.role), _ROLES)
        if item.content is None:
            raise missing(f"{param}.content")
        return Message(item.role or "", _content(item.content, f"{param}.content"))
    if item.type == "function_call":
        if item.call_id is None or item.name is None:
            raise missing(f"{param}.{'name' if item.name is None else 'call_id'}")
        return Message("assistant", None, tool_calls=(ToolCall(item.call_id, item.name, item.arguments or "{}"),))
    if item.type == "function_call_output":
        if item.call_id is None:
            raise missing(f"{param}.call_id")
        return Message("tool", _content(item.output or "", f"{param}.output"), tool_call_id=item.call_id)
    if item.type == "reasoning":
        return None
    message = f"Items of type '{item.type}' are not supported."
    raise UnsupportedFeature(message, feature=item.type, param=f"{param}.type")


def _content(content: str | tuple[wire.Part, ...], param: str) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    return tuple(_part(part, f"{param}[{place}]") for place, part in enumerate(content))


def _part(part: wire.Part, param: str) -> Part:
    if part.type == "input_image":
        if part.image_url is None:
            raise missing(f"{param}.image_url")
        return image_part(part.image_url, part.detail)
    # Items of an assistant come back as `output_text` and `refusal`, as they were answered.
    if part.type not in ("input_text", "output_text", "text", "refusal"):
        message = f"Content of type '{part.type}' is not supported."
        raise UnsupportedFeature(message, feature=part.type, param=f"{param}.type")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise missing(f"{param}.text")
    return TextPart(text)


def _tool_choice(given: str | wire.Choice | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    if given is None:
        return None
    if isinstance(given, str):
        return choice_of_keyword(given, tools)
    if given.type == "function" and given.name is not None:
        return choice_of_names("function", (given.name,), None, tools)
    if given.type == "allowed_tools":
        return choice_of_names("allowed_tools", tuple(tool.name or "" for tool in given.tools), given.mode, tools)
    raise not_one_of("tool_choice.type", given.type, ("function", "allowed_tools"))


def _grammar(text: wire.Text | None) -> Grammar | None:
    if text is None or text.format is None or text.format.type == "text":
        return None
    if text.format.type == "json_object":
        return Grammar("json_object")
    if text.format.type != "json_schema":
        raise not_one_of("text.format.type", text.format.type, ("text", "json_schema", "json_object"))
    return json_schema_grammar(text.format, "text.format")
