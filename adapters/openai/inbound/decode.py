"""Bodies of chats and completions decoded to the IR. The dialect's defaults and limits are applied here.

OpenAI's API always samples, unless the temperature is 0.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from adapters.base import Call
from adapters.body import convert
from adapters.openai.dialects import HINTS, Dialect
from adapters.openai.inbound.checks import check, check_chat, check_completion, empty, missing, refused
from adapters.openai.inbound.extensions import (
    own_chat_fields,
    own_fields,
    prompt_scores,
    read_grammar,
    template_options,
)
from adapters.openai.inbound.functions import uses_functions, with_tools
from adapters.openai.inbound.messages import read_messages
from adapters.openai.inbound.parts import unread_parts
from adapters.openai.inbound.tools import read_tool_choice, read_tools, unread_tools, unread_words
from adapters.unknown_fields import Unknown
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import SMALLEST_TOP_P, Generate, Origin, Sampling, Stopping, TextPrompt, TokensPrompt
from schemas.openai import requests as wire

T = TypeVar("T")

_UNSUPPORTED_FIELDS = {
    "functions": "The 'functions' parameter is deprecated and not supported. Use 'tools' instead.",
    "function_call": "The 'function_call' parameter is deprecated and not supported. Use 'tool_choice' instead.",
}
"""Fields of a chat in their first form, where the dialect does not have it -> the refusal."""


def read_fields(dialect: Dialect, fields: Any, type: type[T]) -> tuple[T, Unknown]:
    """Convert a parsed body to a `type` struct.

    Returns:
        The struct, and the fields of the body that the dialect does not know.

    Raises:
        schemas.errors.RequestError: a field is wrong, or unknown where the dialect is strict.
    """
    # MindIE knows fewer fields than the struct has. Those it does not know must not be checked either, so they are
    # taken out before the conversion, and count as unknown.
    known = dialect.requests.chat_fields
    hidden: dict[str, Any] = {}  # fields that the struct has and the dialect does not know
    if known is not None and isinstance(fields, dict) and issubclass(type, wire.ChatRequest):
        hidden = {name: value for name, value in fields.items() if name not in known}
        fields = {name: value for name, value in fields.items() if name in known}
    given, unknown = convert(fields, type)
    if hidden:
        unknown = Unknown(hidden | unknown, tuple(hidden) + unknown.paths)
    if dialect.requests.strict and (unknown or unknown.paths):
        # The first by name, so that the message does not depend on the order of the body.
        name = min({*unknown, *unknown.paths})
        raise InvalidRequest(dialect.wording.unknown_field.format(name=name), param=name)
    return given, unknown


def read_chat(dialect: Dialect, given: wire.ChatRequest, origin: Origin, call: Call, extra: Unknown) -> Generate:
    """The request of a chat; `extra` are the unknown fields of its body.

    Raises:
        schemas.errors.InvalidRequest: a field is wrong; `param` names it.
    """
    check(dialect, given)
    check_chat(dialect, given)
    functions = dialect.requests.functions and uses_functions(given)
    if dialect.requests.functions:
        given = with_tools(given)
    _refuse_unsupported(given)
    tools = read_tools(dialect, given.tools) if given.tools else ()
    others = unread_tools(given.tools) if given.tools else ()
    unread = (
        *own_fields(given),
        *own_chat_fields(given),
        *unread_words(given),
        *others,
        *unread_parts(given.messages),
    )
    stream = dialect.defaults.stream_default if given.stream is None else given.stream
    # `max_tokens` is deprecated in favour of `max_completion_tokens`, which wins.
    limit = given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens
    options = given.stream_options or wire.StreamOptions()
    return Generate(
        id=call.id,
        model=read_model(dialect, given.model, call),
        prompts=(replace(read_messages(dialect, given.messages), template=template_options(given)),),
        sampling=_sampling(given),
        stopping=_stopping(dialect, given, dialect.defaults.chat_max_tokens if limit is None else limit),
        stream=stream,
        stream_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        n=given.n or 1,
        best_of=_best_of(given),
        truncate_prompt_tokens=given.truncate_prompt_tokens,
        overflow=dialect.requests.overflow,
        raw_prompt=False,
        logprobs=bool(given.logprobs),
        top_logprobs=given.top_logprobs or 0,
        tools=tools,
        tool_choice=None
        if given.tool_choice is None
        else read_tool_choice(given.tool_choice, tools, others=bool(others)),
        parallel_tool_calls=given.parallel_tool_calls,
        legacy_functions=functions,
        grammar=read_grammar(given),
        user=given.user,
        safety_identifier=given.safety_identifier,
        prompt_cache_key=given.prompt_cache_key,
        hints=_hints(given),
        extra=extra,
        prompt_scores=prompt_scores(given),
        returns_ids=given.return_token_ids is True,
        unread=unread,
        # A stream of what is not read here (calls of custom tools, sounds) cannot be put together to what is stored.
        stored_items=origin.body if given.store and call.keeps and not (stream and unread) else None,
        unknown=extra.paths + _without_effect(given, call),
        origin=origin,
    )


def read_completion(
    dialect: Dialect, given: wire.CompletionRequest, origin: Origin, call: Call, extra: Unknown
) -> Generate:
    """The request of a completion, of one prompt or several; `extra` are the unknown fields of its body.

    Raises:
        schemas.errors.InvalidRequest: a field is wrong; `param` names it.
    """
    check(dialect, given)
    check_completion(dialect, given)
    limit = given.max_tokens
    options = given.stream_options or wire.StreamOptions()
    logprobs, echo = given.logprobs is not None, bool(given.echo)
    return Generate(
        id=call.id,
        model=read_model(dialect, given.model, call),
        prompts=read_prompts(given.prompt, "prompt"),
        sampling=_sampling(given),
        stopping=_stopping(dialect, given, dialect.defaults.completion_max_tokens if limit is None else limit),
        stream=dialect.defaults.stream_default if given.stream is None else given.stream,
        stream_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        n=given.n or 1,
        best_of=_best_of(given),
        truncate_prompt_tokens=given.truncate_prompt_tokens,
        overflow=dialect.requests.overflow,
        echo=echo,
        suffix=given.suffix or None,
        raw_prompt=dialect.defaults.raw_prompts,
        logprobs=logprobs,
        top_logprobs=given.logprobs or 0,
        # OpenAI's rule: log-probabilities of an echoed prompt come with it.
        prompt_logprobs=logprobs and echo,
        grammar=read_grammar(given),
        user=given.user,
        hints=_hints(given),
        extra=extra,
        prompt_scores=prompt_scores(given),
        returns_ids=given.return_token_ids is True,
        unread=own_fields(given) + unread_words(given),
        unknown=extra.paths + _without_effect(given, call),
        origin=origin,
    )


def read_prompts(
    given: str | tuple[str | int | tuple[int, ...], ...], param: str
) -> tuple[TextPrompt | TokensPrompt, ...]:
    """The prompts of a text, several texts, a list of token ids, or several such lists.

    Raises:
        schemas.errors.InvalidRequest: there is none, they are of different kinds, or a number is no token id.
    """
    if isinstance(given, str):
        return (TextPrompt(given),)
    if not given:
        raise empty(param)
    # One JSON array has four meanings; the type of its first item decides, and the others must agree. bool is no int
    # here: msgspec has refused it.
    first = given[0]
    if any(type(item) is not type(first) for item in given):
        raise refused(param, f"Invalid '{param}': texts, token ids and lists of token ids cannot be mixed.")
    if isinstance(first, str):
        return tuple(TextPrompt(text) for text in given)  # type: ignore[arg-type]
    lists: Any = (given,) if isinstance(first, int) else given
    for ids in lists:
        if not ids:
            raise empty(param)
        # The bound of a type, not of a vocabulary: whether the model has the id, only the backend knows.
        if min(ids) < 0 or max(ids) >= 2**31:
            raise refused(param, f"Invalid '{param}': token ids must be between 0 and {2**31 - 1}.")
    return tuple(TokensPrompt(ids) for ids in lists)


def read_model(dialect: Dialect, name: str | None, call: Call) -> str:
    """The name of the model that a request is for.

    Raises:
        schemas.errors.InvalidRequest: the request names none.
    """
    if name is not None and call.catalog.default is not None and call.catalog.find(name) is None:
        for pattern in dialect.requests.default_models:
            if fnmatchcase(name, pattern):
                return call.catalog.default
    if not name:
        raise missing("model")
    return name


def _refuse_unsupported(given: wire.ChatRequest) -> None:
    for field, message in _UNSUPPORTED_FIELDS.items():
        if getattr(given, field) is not None:
            raise UnsupportedFeature(message, feature=field, param=field)


def _best_of(given: wire.GenerationRequest) -> int | None:
    # `best_of` equal to `n` selects nothing.
    return given.best_of if (given.best_of or 1) > (given.n or 1) else None


_SAMPLING = tuple(name for name in Sampling.__struct_fields__ if name in wire.GenerationRequest.__struct_fields__)
"""The fields with the name of a parameter of the IR, which is their meaning, too."""
_SAMPLING_VALUES = attrgetter(*_SAMPLING)
_NO_SAMPLING = (None,) * len(_SAMPLING)
# OpenAI's default is a temperature of 1; the IR's default without any parameter would be greedy.
_SAMPLES = Sampling(do_sample=True)


def _sampling(given: wire.GenerationRequest) -> Sampling:
    values = _SAMPLING_VALUES(given)
    if values == _NO_SAMPLING:
        return _SAMPLES
    fields: dict[str, Any] = dict(zip(_SAMPLING, values, strict=True))
    fields["do_sample"] = True
    fields["top_k"] = given.top_k if given.top_k is not None and given.top_k > 0 else None  # vLLM: -1 and 0 turn it off
    # OpenAI takes 0 as "the most likely token alone"; the IR's interval is open at 0.
    fields["top_p"] = SMALLEST_TOP_P if given.top_p == 0 else given.top_p
    fields["min_p"] = given.min_p or None
    fields["logit_bias"] = tuple([(int(token), bias) for token, bias in (given.logit_bias or {}).items()])
    fields["bad_words"] = (given.bad_words,) if isinstance(given.bad_words, str) else given.bad_words or ()
    fields["seed"] = None if given.seed is None else given.seed % 2**64  # a negative seed is its two's complement
    return Sampling(**fields)


def _stopping(dialect: Dialect, given: wire.GenerationRequest, limit: int | None) -> Stopping:
    if dialect.limits.max_iter_times is not None:
        limit = min(dialect.limits.max_iter_times if limit is None else limit, dialect.limits.max_iter_times)
    return Stopping(
        max_new_tokens=limit,
        min_new_tokens=given.min_tokens or 0,
        stop=(given.stop,) if isinstance(given.stop, str) else given.stop or (),
        stop_token_ids=given.stop_token_ids or (),
        ignore_eos=bool(given.ignore_eos),
        include_stop=bool(given.include_stop_str_in_output),
    )


_MAY_HAVE_NONE = attrgetter(
    "response_format", "structured_outputs", "stream_options", "guided_whitespace_pattern", "priority"
)
"""The fields that have no effect themselves, or that hold such fields."""
_NONE = (None,) * 5


def _without_effect(given: wire.GenerationRequest, call: Call) -> tuple[str, ...]:
    """The fields that are known, and change nothing but where the body is sent on."""
    messages = given.messages if isinstance(given, wire.ChatRequest) else ()
    # An assistant answers or refuses: of both, the answer is what it said.
    refused = None
    for place, each in enumerate(messages):
        if each.refusal and each.content:
            refused = place
            break
    if refused is None and _MAY_HAVE_NONE(given) == _NONE and not (isinstance(given, wire.ChatRequest) and given.store):
        return ()
    schema = given.response_format.json_schema if given.response_format is not None else None
    outputs = given.structured_outputs or wire.StructuredOutputs()
    options = given.stream_options or wire.StreamOptions()
    asked = (
        (f"messages[{refused}].refusal", refused is not None),
        ("store", isinstance(given, wire.ChatRequest) and given.store and not call.keeps),
        ("stream_options.include_obfuscation", options.include_obfuscation),
        ("response_format.json_schema.description", schema is not None and schema.description),
        # vLLM's. JSON has canonical whitespace here, and objects have the properties that their schema allows.
        ("guided_whitespace_pattern", given.guided_whitespace_pattern),
        ("structured_outputs.whitespace_pattern", outputs.whitespace_pattern),
        ("structured_outputs.disable_any_whitespace", outputs.disable_any_whitespace),
        ("structured_outputs.disable_additional_properties", outputs.disable_additional_properties),
        ("priority", given.priority),
    )
    return tuple(name for name, value in asked if value)


def _hints(given: wire.GenerationRequest) -> dict[str, Any]:
    return {name: value for name in _hint_names(type(given)) if (value := getattr(given, name)) is not None}


@cache
def _hint_names(type: type[wire.GenerationRequest]) -> tuple[str, ...]:
    return tuple(name for name in HINTS if name in type.__struct_fields__)
