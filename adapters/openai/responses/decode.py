"""Bodies of `/v1/responses` decoded to the IR, together with the stored conversation that they continue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from adapters.base import Call
from adapters.dialect import Bound
from adapters.openai.dialects import PENALTIES, Dialect
from adapters.openai.inbound.checks import check_bound, empty, missing, refused
from adapters.openai.inbound.decode import read_fields, read_model
from adapters.openai.inbound.tools import (
    choice_of_keyword,
    choice_of_names,
    json_schema_grammar,
    read_tools,
    unread_tools,
)
from adapters.openai.responses.items import ITEMS, append, places_without_effect, read_message, without_foreign_fields
from adapters.openai.responses.stored import (
    REFERENCE,
    Items,
    conversation_items,
    input_items,
    no_conversation,
    referenced_item,
    whole_conversation,
)
from adapters.openai.stored.pages import check_metadata
from adapters.openai.words import TOOL_CHOICES, unknown_word, unknown_words
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
_FORMATS = ("text", "json_schema", "json_object")
_CHOICES = ("function", "allowed_tools")
_UNSUPPORTED_FIELDS = ("prompt", "moderation", "context_management")
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDABLE = (ENCRYPTED, LOGPROBS)
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


def read_question(dialect: Dialect, fields: Any) -> tuple[wire.ResponseRequest, Unknown]:
    """The body of a request, and its unknown fields. Items and tools of types that are not known may have any fields.

    Raises:
        schemas.errors.RequestError: a field is wrong, or unknown where the dialect is strict.
    """
    if isinstance(fields, dict):
        lists = {name: given for name in ("input", "tools") if isinstance(given := fields.get(name), list)}
        known = {"input": ITEMS, "tools": ("function",)}
        fields = fields | {name: without_foreign_fields(given, known[name]) for name, given in lists.items()}
    return read_fields(dialect, fields, wire.ResponseRequest)


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
    unread = [*unread_tools(given.tools or ()), *_unread(given)]
    tools = read_tools(dialect, given.tools or ())
    others = len(tools) < len(given.tools or ())
    if given.background:
        _check_background(given, call)
    # After the checks that need no storage.
    before = _items_before(given, call)
    added = _added_items(given, origin, call)
    prompt = _messages(given, before, call, unread)
    # `top_logprobs` alone does not ask for them: the items have log-probabilities only if they are included.
    logprobs = LOGPROBS in (given.include or ())
    return Generate(
        id=call.id,
        model=read_model(dialect, given.model, call),
        prompts=(prompt,),
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
        tool_choice=_tool_choice(given.tool_choice, tools, others=others),
        parallel_tool_calls=given.parallel_tool_calls,
        grammar=_grammar(given.text),
        user=given.safety_identifier or given.user,
        safety_identifier=given.safety_identifier,
        prompt_cache_key=given.prompt_cache_key,
        hints=_hints(given),
        extra=extra,
        unread=tuple(unread),
        unknown=(*extra.paths, *_without_effect(given)),
        origin=_with_items(origin, given, before, call),
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
        origin=request.origin,
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
    asked = (
        ("include", ENCRYPTED in (given.include or ())),
        ("reasoning.summary", given.reasoning is not None and given.reasoning.summary is not None),
        ("stream_options.include_obfuscation", bool(options.get("include_obfuscation"))),
        ("text.format.description", bool(given.text and given.text.format and given.text.format.description)),
    )
    return (*(name for name, is_asked in asked if is_asked), *places_without_effect(_own_items(given)))


def _hints(given: wire.ResponseRequest) -> dict[str, Any]:
    """The fields for the upstream that the IR does not read."""
    hints = {
        "reasoning_effort": given.reasoning.effort if given.reasoning is not None else None,
        "verbosity": given.text.verbosity if given.text is not None else None,
        "metadata": given.metadata,
        "service_tier": given.service_tier,
        "safety_identifier": given.safety_identifier,
        "prompt_cache_key": given.prompt_cache_key,
        "prompt_cache_options": given.prompt_cache_options,
        "prompt_cache_retention": given.prompt_cache_retention,
    }
    return {name: value for name, value in hints.items() if value is not None}


def _unread(given: wire.ResponseRequest) -> Iterator[Unread]:
    """What a server that is sent the body may know, and nobody else."""
    reasoning, text, choice = given.reasoning or wire.Reasoning(), given.text or wire.Text(), given.tool_choice
    yield from unknown_words(
        (
            ("reasoning.effort", "reasoning_effort", reasoning.effort),
            ("text.verbosity", "verbosity", text.verbosity),
            ("service_tier", "service_tier", given.service_tier),
            ("prompt_cache_retention", "prompt_cache_retention", given.prompt_cache_retention),
        )
    )
    words = [
        ("reasoning.summary", "reasoning_summary", reasoning.summary, _SUMMARIES),
        ("truncation", "truncation", given.truncation, _TRUNCATIONS),
        ("text.format.type", "grammar", text.format.type if text.format is not None else None, _FORMATS),
        ("tool_choice", "tools", choice, TOOL_CHOICES)
        if isinstance(choice, str)
        else ("tool_choice.type", "tools", choice.type if choice is not None else None, _CHOICES),
        *((f"include[{place}]", "include", name, _INCLUDES) for place, name in enumerate(given.include or ())),
    ]
    for param, feature, word, known in words:
        if word is not None and word not in known:
            yield unknown_word(param, feature, word, known)
    for name in given.include or ():
        if name in _INCLUDES and name not in INCLUDABLE:
            yield Unread("include", "include", f"'{name}' cannot be included.")
    for field in _UNSUPPORTED_FIELDS:
        if getattr(given, field):
            yield Unread(field, field, f"The '{field}' parameter is not supported.")


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
    return input_items(call, _input_of(origin))


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
    check_metadata(given.metadata)


def _messages(given: wire.ResponseRequest, before: Items, call: Call, unread: list[Unread]) -> ChatPrompt:
    """The messages: the instructions of this request alone, the items `before` it, and its input.

    Items that the IR cannot express are added to `unread`.
    """
    messages: list[Message] = []
    # OpenAI's reference: with `previous_response_id` "the instructions from a previous response will not be carried
    # over".
    if given.instructions:
        messages.append(Message("system", given.instructions))
    for stored in before:
        _append_stored(messages, stored, "previous_response_id", unread)
    if isinstance(given.input, str):
        # A plain text stands for one user message.
        messages.append(Message("user", given.input))
        return ChatPrompt(tuple(messages))
    if given.input is None and not (before or given.prompt):
        raise missing("input")
    if given.input == ():
        raise empty("input")
    for place, item in enumerate(_own_items(given)):
        # A reference (the AI SDK sends them for stored items) stands for the item that it names.
        if item.type == REFERENCE:
            _append_stored(messages, referenced_item(call, item.id or ""), f"input[{place}]", unread)
        else:
            _append(messages, item, f"input[{place}]", unread)
    return ChatPrompt(tuple(messages))


def _append(messages: list[Message], item: wire.Item, param: str, unread: list[Unread]) -> None:
    try:
        append(messages, read_message(item, param))
    except UnsupportedFeature as error:
        unread.append(Unread(error.param or param, error.feature, error.message, error.code))


def _append_stored(messages: list[Message], item: dict[str, Any], param: str, unread: list[Unread]) -> None:
    [known] = without_foreign_fields([item])
    try:
        read = msgspec.convert(known, wire.Item)
    except msgspec.ValidationError:  # a server's own form of it
        refusal = f"An item of type '{item.get('type')}' that another server made cannot be read here."
        unread.append(Unread(param, "items", refusal))
    else:
        _append(messages, read, param, unread)


def _with_items(origin: Origin, given: wire.ResponseRequest, before: Items, call: Call) -> Origin:
    """The origin with all items of the conversation, if the body has some of them by their names alone."""
    refers = any(item.type == REFERENCE for item in _own_items(given))
    if not (before or refers):
        return origin
    return replace(origin, items=whole_conversation(call, before, _input_of(origin)))


def _own_items(given: wire.ResponseRequest) -> tuple[wire.Item, ...]:
    """The items of the request's own input; none where that is a text, or absent."""
    return () if given.input is None or isinstance(given.input, str) else given.input


def _input_of(origin: Origin) -> Any:
    """The input as the body has it; [] where that has none."""
    given = msgspec.json.decode(origin.body).get("input")
    return [] if given is None else given


def _tool_choice(given: str | wire.Choice | None, tools: tuple[Tool, ...], *, others: bool) -> ToolChoice | None:
    """The choice; with `others` beside the functions, it is the business of a server that is sent the body."""
    if given is None or (given if isinstance(given, str) else given.type) not in (*TOOL_CHOICES, *_CHOICES):
        return None
    if others:
        return ToolChoice("auto")
    if isinstance(given, str):
        return choice_of_keyword(given, tools)
    if given.type == "function":
        if given.name is None:
            raise missing("tool_choice.name")
        return choice_of_names("function", (given.name,), None, tools)
    return choice_of_names("allowed_tools", tuple(tool.name or "" for tool in given.tools), given.mode, tools)


def _grammar(text: wire.Text | None) -> Grammar | None:
    if text is None or text.format is None or text.format.type not in ("json_object", "json_schema"):
        return None
    if text.format.type == "json_object":
        return Grammar("json_object")
    return json_schema_grammar(text.format, "text.format")
