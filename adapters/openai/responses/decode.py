"""Bodies of `/v1/responses` decoded to the IR, together with the stored conversation that they continue."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Call
from adapters.dialect import Bound
from adapters.openai.dialects import PENALTIES, Dialect
from adapters.openai.inbound.checks import check_bound, empty, not_one_of, refused
from adapters.openai.inbound.decode import read_model
from adapters.openai.inbound.tools import choice_of_keyword, choice_of_names, json_schema_grammar, read_tools
from adapters.openai.responses.items import append, read_message
from adapters.openai.responses.stored import (
    REFERENCE,
    Items,
    conversation_items,
    input_items,
    no_conversation,
    referenced_item,
)
from adapters.openai.stored.pages import check_metadata
from adapters.openai.words import unknown_words
from adapters.unknown_fields import Unknown
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import (
    SMALLEST_TOP_P,
    ChatPrompt,
    Conversation,
    Generate,
    Grammar,
    Message,
    Origin,
    Sampling,
    Stopping,
    Tokenize,
    Tool,
    ToolChoice,
)
from schemas.openai import responses as wire
from schemas.origin import Unread

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
_SUMMARIES = ("auto", "concise", "detailed")
_UNSUPPORTED_FIELDS = ("prompt", "moderation", "context_management")
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = ("reasoning.encrypted_content", LOGPROBS)
_INCLUDES = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    *INCLUDABLE,
)
"""All that OpenAI's answers may include: mostly results of its own tools."""


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
    if given.background:
        _check_background(given, call)
    # After the checks that need no storage.
    before = _items_before(given, call)
    added = _added_items(given, origin, call)
    # `top_logprobs` alone does not ask for them: the items have log-probabilities only if they are included.
    logprobs = LOGPROBS in (given.include or ())
    return Generate(
        id=call.id,
        model=read_model(dialect, given.model, call),
        prompts=(_messages(given, msgspec.convert(before, tuple[wire.Item, ...]), call),),
        sampling=_sampling(given),
        stopping=Stopping(max_new_tokens=given.max_output_tokens),
        stream=bool(given.stream),
        stream_usage=True,
        stored_items=_stored_items(given, before, added, call),
        conversation=_conversation(given, added),
        detached=bool(given.background),
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
        unread=_unknown_words(given),
        unknown=(*extra.paths, *_without_effect(given)),
        origin=origin,
    )


def read_count(dialect: Dialect, given: wire.ResponseRequest, origin: Origin, call: Call, extra: Unknown) -> Tokenize:
    """The request of `POST /v1/responses/input_tokens`, which counts the tokens of the same body.

    Raises:
        schemas.errors.RequestError: as for `read_response`.
    """
    request = read_response(dialect, given, origin, call, extra)
    hidden = request.tool_choice is not None and request.tool_choice.mode == "none"
    return Tokenize(
        id=request.id,
        model=request.model,
        prompt=request.prompts[0],
        tools=() if hidden else request.tools,
        hints={name: value for name, value in request.hints.items() if name in ("reasoning_effort", "verbosity")},
        # All of the conversation is counted, though some of it may be left out for an answer.
        unread=request.unread,
        unknown=(*request.unknown, *(("truncation",) if request.overflow == "drop_turns" else ())),
        origin=origin,
    )


def _sampling(given: wire.ResponseRequest) -> Sampling:
    return Sampling(
        do_sample=True,
        temperature=given.temperature,
        top_p=SMALLEST_TOP_P if given.top_p == 0 else given.top_p,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
    )


def _without_effect(given: wire.ResponseRequest) -> tuple[str, ...]:
    """The fields that are known, and change nothing here."""
    options = given.stream_options if isinstance(given.stream_options, dict) else {}
    items = () if isinstance(given.input, str) else given.input
    # Reasoning of earlier turns is not sent to a model again.
    thought = next((place for place, item in enumerate(items) if item.type == "reasoning"), None)
    asked = (
        ("include", "reasoning.encrypted_content" in (given.include or ())),
        ("reasoning.summary", given.reasoning is not None and given.reasoning.summary is not None),
        ("stream_options.include_obfuscation", bool(options.get("include_obfuscation"))),
        ("text.format.description", bool(given.text and given.text.format and given.text.format.description)),
    )
    places = tuple(name for name, is_asked in asked if is_asked)
    return places if thought is None else (*places, f"input[{thought}]")


def _hints(given: wire.ResponseRequest) -> dict[str, Any]:
    """The fields for the upstream that the IR does not read."""
    hints = {
        "reasoning_effort": given.reasoning.effort if given.reasoning is not None else None,
        "verbosity": given.text.verbosity if given.text is not None else None,
        "metadata": given.metadata,
        "service_tier": given.service_tier,
        "safety_identifier": given.safety_identifier,
        "prompt_cache_key": given.prompt_cache_key,
    }
    return {name: value for name, value in hints.items() if value is not None}


def _unknown_words(given: wire.ResponseRequest) -> tuple[Unread, ...]:
    """The words that are not known here: a server that is sent them may know them."""
    return unknown_words(
        (
            ("reasoning.effort", "reasoning_effort", given.reasoning.effort if given.reasoning is not None else None),
            ("text.verbosity", "verbosity", given.text.verbosity if given.text is not None else None),
            ("service_tier", "service_tier", given.service_tier),
        )
    )


def _check_background(given: wire.ResponseRequest, call: Call) -> None:
    if given.store is False:
        raise refused("background", "A response in the background must be stored: 'store' cannot be false.")
    if call.records is None:
        message = "This server stores no responses, so none can be made in the background."
        raise UnsupportedFeature(message, feature="background", param="background")


def conversation_id(given: wire.ResponseRequest) -> str | None:
    """The id of the conversation that a request names."""
    return given.conversation.id if isinstance(given.conversation, wire.ConversationName) else given.conversation


def _items_before(given: wire.ResponseRequest, call: Call) -> Items:
    """The items of the conversation that a request continues, whichever way it names it.

    Raises:
        schemas.errors.RequestError: it is not stored (any more).
    """
    id = conversation_id(given)
    if id is None:
        return conversation_items(call, given.previous_response_id)
    if call.entries is None:
        raise no_conversation(id)
    return [msgspec.json.decode(entry) for entry in call.entries]


def _added_items(given: wire.ResponseRequest, origin: Origin, call: Call) -> Items | None:
    """The items of the input as they are stored; None if nothing stores them."""
    if given.conversation is None and (given.store is False or call.records is None):
        return None
    # From the raw body, not from the struct: stored items keep fields that the struct does not have.
    return input_items(call, msgspec.json.decode(origin.body)["input"])


def _stored_items(given: wire.ResponseRequest, before: Items, added: Items | None, call: Call) -> bytes | None:
    """The JSON of the items `before` and of the input, to store with the answer; None if nothing is to be stored."""
    if given.store is False or call.records is None or added is None:
        return None
    return msgspec.json.encode(before + added)


def _conversation(given: wire.ResponseRequest, added: Items | None) -> Conversation | None:
    id = conversation_id(given)
    return Conversation(id, msgspec.json.encode(added)) if id is not None and added is not None else None


def _check(given: wire.ResponseRequest) -> None:
    for bound in _BOUNDS:
        check_bound(bound, getattr(given, bound.name))
    if given.conversation is not None and given.previous_response_id is not None:
        raise InvalidRequest(
            "Mutually exclusive parameters: give only one of 'previous_response_id' and 'conversation'.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    for field in _UNSUPPORTED_FIELDS:
        if getattr(given, field):
            message = f"The '{field}' parameter is not supported."
            raise UnsupportedFeature(message, feature=field, param=field)
    check_metadata(given.metadata)
    if given.truncation not in (None, *_TRUNCATIONS):
        raise not_one_of("truncation", given.truncation, _TRUNCATIONS)
    if given.reasoning is not None and given.reasoning.summary not in (None, *_SUMMARIES):
        raise not_one_of("reasoning.summary", given.reasoning.summary, _SUMMARIES)
    for place, name in enumerate(given.include or ()):
        if name not in _INCLUDES:
            raise not_one_of(f"include[{place}]", name, _INCLUDES)
        if name not in INCLUDABLE:
            raise UnsupportedFeature(f"'{name}' cannot be included.", feature="include", param="include")


def _messages(given: wire.ResponseRequest, before: tuple[wire.Item, ...], call: Call) -> ChatPrompt:
    """The messages: the instructions of this request alone, the items `before` it, and its input."""
    messages: list[Message] = []
    # OpenAI's reference: with `previous_response_id` "the instructions from a previous response will not be carried
    # over".
    if given.instructions:
        messages.append(Message("system", given.instructions))
    for item in before:
        append(messages, read_message(item, "previous_response_id"))
    if isinstance(given.input, str):
        # A plain text stands for one user message.
        messages.append(Message("user", given.input))
        return ChatPrompt(tuple(messages))
    if not given.input:
        raise empty("input")
    for place, item in enumerate(given.input):
        # A reference (the AI SDK sends them for stored items) stands for the item that it names.
        resolved = msgspec.convert(referenced_item(call, item.id or ""), wire.Item) if item.type == REFERENCE else item
        append(messages, read_message(resolved, f"input[{place}]"))
    return ChatPrompt(tuple(messages))


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
