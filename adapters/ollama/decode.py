"""Request bodies decoded to the IR.

The protocol samples, unless the temperature is 0. What a request leaves open is the model's own default, as Ollama's
are those of a model's file.
"""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec

from adapters.base import Call, Reply
from adapters.body import read
from adapters.ollama.answers import empty_answer
from adapters.ollama.dialects import Dialect
from adapters.ollama.messages import read_images, read_messages
from adapters.unknown_fields import Unknown
from schemas import ollama as wire
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest, ModelNotFound, UnsupportedFeature
from schemas.ir import (
    SMALLEST_TOP_P,
    ChatPrompt,
    Embed,
    Generate,
    Grammar,
    Message,
    Origin,
    Part,
    Prompt,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    Tool,
)
from schemas.origin import Unread

T = TypeVar("T")

LATEST = ":latest"
"""The tag that a name without one stands for."""
_EFFORTS = ("low", "medium", "high", "max")
_RUNNER = (
    "repeat_last_n",
    "num_keep",
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
)
"""Options that have no effect here: a model is loaded as the configuration says."""


def read_chat(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Generate | Reply:
    """The request of `POST /api/chat`; the answer, if it only loads or unloads a model.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra = read(body, wire.ChatRequest)
    if not given.messages:
        return _loaded(given, origin, call)
    tools = tuple(_tool(tool, place) for place, tool in enumerate(given.tools or ()))
    return _generate(dialect, given, extra, origin, call, ChatPrompt(read_messages(given.messages)), tools=tools)


def read_generate(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Generate | Reply:
    """The request of `POST /api/generate`; the answer, if it only loads or unloads a model.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra = read(body, wire.GenerateRequest)
    if not given.prompt and not given.images and not given.suffix:
        return _loaded(given, origin, call)
    if given.raw and (given.template or given.system or given.context):
        raise InvalidRequest("raw mode does not support template, system, or context", param="raw")
    # Templates are Go's, and the ids are those of the model that Ollama would have run: both are for Ollama alone.
    unread = tuple(
        Unread(name, name, f"the field '{name}' is not supported")
        for name in ("template", "context")
        if getattr(given, name)
    )
    prompt = _prompt(given)
    return _generate(dialect, given, extra, origin, call, prompt, suffix=given.suffix or None, unread=unread)


def read_embed(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Embed:
    """The request of `POST /api/embed`.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra = read(body, wire.EmbedRequest)
    inputs = (given.input,) if isinstance(given.input, str) else given.input or ()
    if not inputs or not all(inputs):
        raise InvalidRequest("input must be a text that is not empty, or a list of such texts", param="input")
    if len(inputs) > dialect.limits.max_inputs:
        raise InvalidRequest(f"input must have at most {dialect.limits.max_inputs} texts", param="input")
    if given.dimensions is not None and given.dimensions < 0:
        raise InvalidRequest("dimensions must not be negative", param="dimensions")
    ignored = (*extra.paths, *_ignored_options(given.options), *_set(given, "truncate", "keep_alive"))
    return _embed(dialect, given.model, inputs, given.dimensions or None, (extra, ignored), origin, call)


def read_embeddings(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Embed:
    """The request of `POST /api/embeddings`, the older form.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra = read(body, wire.EmbeddingsRequest)
    if not given.prompt:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    ignored = (*extra.paths, *_ignored_options(given.options), *_set(given, "keep_alive"))
    return _embed(dialect, given.model, (given.prompt,), None, (extra, ignored), origin, call)


def find_model(name: str, call: Call) -> tuple[str, ModelCard]:
    """The endpoint of a model's name, with or without the tag `latest`, and what is known of it.

    Raises:
        schemas.errors.InvalidRequest: there is no name.
        schemas.errors.ModelNotFound: there is no such endpoint.
    """
    if not name:
        raise InvalidRequest("model is required", param="model")
    for known in (name, name.removesuffix(LATEST)):
        if (card := call.catalog.find(known)) is not None:
            return known, card
    raise ModelNotFound(f"model '{name}' not found", param="model")


def _generate(
    dialect: Dialect,
    given: wire.ChatRequest | wire.GenerateRequest,
    extra: Unknown,
    origin: Origin,
    call: Call,
    prompt: Prompt,
    *,
    tools: tuple[Tool, ...] = (),
    suffix: str | None = None,
    unread: tuple[Unread, ...] = (),
) -> Generate:
    options = given.options or wire.Options()
    _check(dialect, given, options)
    # A prompt that is too long is refused: that is what `truncate: false` asks for. A chat can lose its oldest turns.
    shortens = given.truncate is True and isinstance(prompt, ChatPrompt)
    unmet = ("truncate",) if given.truncate and not shortens else ()
    ignored = (*extra.paths, *_ignored_options(options), *_set(given, "keep_alive", "shift"), *unmet)
    _refuse_ignored(dialect, ignored)
    top = given.top_logprobs or 0
    return Generate(
        id=call.id,
        model=find_model(given.model, call)[0],
        prompts=(prompt,),
        sampling=_sampling(options),
        stopping=_stopping(options),
        stream=given.stream is not False,
        stream_usage=True,
        raw_prompt=isinstance(prompt, TextPrompt),
        suffix=suffix,
        logprobs=bool(given.logprobs),
        top_logprobs=top if given.logprobs else 0,
        tools=tools,
        overflow="drop_turns" if shortens else "refuse",
        grammar=_grammar(given.format),
        hints=_hints(given.think),
        extra=extra,
        unread=unread,
        unknown=ignored,
        origin=origin,
    )


def _loaded(given: wire.ChatRequest | wire.GenerateRequest, origin: Origin, call: Call) -> Reply:
    """The answer to a request without a prompt, with which clients load a model before they need it, or unload it."""
    name, _ = find_model(given.model, call)
    # The models of an endpoint are everybody's, so that no client can unload them.
    if given.keep_alive is not None and str(given.keep_alive).rstrip("smh") in ("0", "0.0"):
        raise UnsupportedFeature(
            f"model '{name}' cannot be unloaded by a request: an administrator puts models to sleep",
            feature="keep_alive",
            param="keep_alive",
        )
    return empty_answer(name, origin.operation, time.time())


def _prompt(given: wire.GenerateRequest) -> Prompt:
    """The prompt of `/api/generate`: a chat of one message, or the text itself if `raw` or a `suffix` asks for it."""
    images, text = read_images(given.images or (), "images"), given.prompt or ""
    if given.raw or given.suffix:
        return TextPrompt(text, images)
    parts: tuple[Part, ...] = (*images, TextPart(text))
    system = (Message("system", given.system),) if given.system else ()
    return ChatPrompt((*system, Message("user", parts if images else text)))


def _check(dialect: Dialect, given: wire.ChatRequest | wire.GenerateRequest, options: wire.Options) -> None:
    top = given.top_logprobs
    if top is not None and not 0 <= top <= dialect.limits.max_top_logprobs:
        raise InvalidRequest(
            f"top_logprobs must be between 0 and {dialect.limits.max_top_logprobs}", param="top_logprobs"
        )
    for field, high in (
        ("temperature", dialect.limits.max_temperature),
        ("top_p", 1.0),
        ("min_p", 1.0),
        ("typical_p", 1.0),
    ):
        value = getattr(options, field)
        if value is not None and not 0 <= value <= high:
            raise InvalidRequest(f"{field} must be between 0 and {high:g}", param=f"options.{field}")
    if options.repeat_penalty is not None and options.repeat_penalty <= 0:
        raise InvalidRequest("repeat_penalty must be above 0", param="options.repeat_penalty")
    # -1 and -2 are Ollama's words for "until the model ends" and "until the context is full".
    if options.num_predict == 0 or (options.num_predict is not None and options.num_predict < -2):
        raise InvalidRequest("num_predict must be above 0, or -1 or -2", param="options.num_predict")
    if isinstance(given.think, str) and given.think not in _EFFORTS:
        raise InvalidRequest(
            f'invalid think value: "{given.think}" (must be "high", "medium", "low", "max", true, or false)',
            param="think",
        )


def _sampling(options: wire.Options) -> Sampling:
    seed = options.seed
    return Sampling(
        do_sample=True,
        temperature=options.temperature,
        # 0 turns these off; -1 likewise, as llama.cpp reads it.
        top_k=options.top_k if options.top_k is not None and options.top_k > 0 else None,
        top_p=SMALLEST_TOP_P if options.top_p == 0 else options.top_p,
        min_p=options.min_p or None,
        typical_p=None if options.typical_p in (None, 0, 1) else options.typical_p,
        repetition_penalty=None if options.repeat_penalty in (None, 1) else options.repeat_penalty,
        presence_penalty=options.presence_penalty or None,
        frequency_penalty=options.frequency_penalty or None,
        # -1 asks for any seed. Other negative ones are the same 64 bits, unsigned.
        seed=None if seed in (None, -1) else seed % 2**64,
    )


def _stopping(options: wire.Options) -> Stopping:
    limit, stop = options.num_predict, options.stop or ()
    return Stopping(
        max_new_tokens=limit if limit is not None and limit > 0 else None,
        stop=tuple(text for text in ((stop,) if isinstance(stop, str) else stop) if text),
    )


def _grammar(format: object) -> Grammar | None:
    if format is None or format == "":
        return None
    if format == "json":
        return Grammar("json_object")
    if isinstance(format, dict):
        return Grammar("json_schema", format)
    raise InvalidRequest(f'invalid format: "{format}"; expected "json" or a valid JSON Schema object', param="format")


def _hints(think: bool | str | None) -> dict[str, str]:
    """How hard the model is to think. The protocol's `true` names no effort: the usual one is meant."""
    if think is None or think == "":
        return {}
    return {"reasoning_effort": think if isinstance(think, str) else "medium" if think else "none"}


def _tool(tool: wire.Tool, place: int) -> Tool:
    if tool.type not in (None, "", "function"):
        raise UnsupportedFeature(
            f"tools of type '{tool.type}' are not supported", feature=str(tool.type), param=f"tools[{place}].type"
        )
    function = tool.function
    return Tool(function.name, function.description, function.parameters)


def _embed(
    dialect: Dialect,
    model: str,
    inputs: tuple[str, ...],
    dimensions: int | None,
    unread: tuple[Unknown, tuple[str, ...]],
    origin: Origin,
    call: Call,
) -> Embed:
    extra, ignored = unread
    _refuse_ignored(dialect, ignored)
    return Embed(
        id=call.id,
        model=find_model(model, call)[0],
        inputs=tuple(map(TextPrompt, inputs)),
        dimensions=dimensions,
        extra=extra,
        unknown=ignored,
        origin=origin,
    )


def _ignored_options(options: wire.Options | None) -> tuple[str, ...]:
    """The options that were set and have no effect."""
    return () if options is None else tuple(f"options.{name}" for name in _set(options, *_RUNNER))


def _set(struct: msgspec.Struct, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if getattr(struct, name) is not None)


def _refuse_ignored(dialect: Dialect, ignored: tuple[str, ...]) -> None:
    if ignored and dialect.requests.strict:
        raise InvalidRequest(f"the field '{min(ignored)}' has no effect here", param=min(ignored))
