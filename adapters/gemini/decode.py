"""Request bodies decoded to the IR. The protocol always samples, unless the temperature is 0."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from adapters.base import Call
from adapters.body import convert, parse
from adapters.formats.closed_schemas import closed
from adapters.gemini.contents import as_contents, read_conversation
from adapters.gemini.dialects import Dialect
from adapters.gemini.json_schemas import json_schema
from adapters.unknown_fields import Unknown
from schemas import gemini as wire
from schemas.errors import InvalidRequest
from schemas.ir import (
    SMALLEST_TOP_P,
    Embed,
    Generate,
    Grammar,
    Origin,
    Output,
    Prompt,
    Sampling,
    Stopping,
    TextPrompt,
    Tokenize,
    Tool,
    ToolChoice,
)
from schemas.origin import Unread

T = TypeVar("T")

THOUGHTS = Output("thoughts", "thoughts")
"""Among `Generate.outputs`: the answer has the thoughts, which the protocol leaves out by default."""

STREAMS = ("stream", "stream_array")
"""The names of the route of streams: of events, and of a JSON array, which is the default there."""

_GOOGLES_TOOLS = (
    "google_search",
    "google_search_retrieval",
    "google_maps",
    "code_execution",
    "url_context",
    "computer_use",
    "file_search",
    "mcp_servers",
)
_GOOGLES_OPTIONS = ("speech_config", "image_config", "enable_enhanced_civic_answers")
_FREE = frozenset(
    {
        "args",
        "response",
        "parameters",
        "parametersJsonSchema",
        "responseSchema",
        "responseJsonSchema",
        "safetySettings",
    }
)
"""The fields whose names within are the client's own, or are not read."""
_CAMEL = {
    field.name: field.encode_name
    for struct in vars(wire).values()
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    for field in msgspec.structs.fields(struct)
}
"""A field's name in snake case -> in camel case."""
_LEVELS = ("minimal", "low", "medium", "high")
_MODES = ("AUTO", "ANY", "NONE", "VALIDATED")
_ENUM = "text/x.enum"


def read_generate(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Generate:
    """The request of `:generateContent` and `:streamGenerateContent`.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra = _read(body, wire.GenerateRequest)
    config = given.generation_config or wire.GenerationConfig()
    _check(dialect, config)
    prompt, unread = read_conversation(as_contents(given.contents), given.system_instruction)
    ignored = (*extra.paths, *_without_effect(given))
    _refuse(dialect, ignored)
    tools = _tools(given)
    thinking = config.thinking_config
    return Generate(
        id=call.id,
        model=model_of(call),
        prompts=(prompt,),
        sampling=_sampling(config),
        stopping=Stopping(max_new_tokens=config.max_output_tokens, stop=config.stop_sequences or ()),
        n=config.candidate_count or 1,
        stream=origin.operation in STREAMS,
        stream_usage=True,
        raw_prompt=False,
        logprobs=bool(config.response_logprobs),
        top_logprobs=(config.logprobs or 0) if config.response_logprobs else 0,
        tools=tools,
        tool_choice=_choice(given.tool_config, tools),
        grammar=_grammar(config),
        hints=_hints(thinking),
        outputs=(THOUGHTS,) if thinking is not None and thinking.include_thoughts else (),
        extra=extra,
        unread=(*unread, *_elsewhere(given, config), *_unknown_words(given, config)),
        unknown=ignored,
        origin=origin,
    )


def read_count(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Tokenize:
    """The request of `:countTokens`.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra = _read(body, wire.CountRequest)
    whole = given.generate_content_request or wire.GenerateRequest(contents=as_contents(given.contents))
    prompt: Prompt
    unread: tuple[Unread, ...] = ()
    card = call.catalog.find(model_of(call))
    if card is not None and card.task == "embeddings":  # a model of texts, without a form for conversations
        prompt = TextPrompt("".join(map(_text, as_contents(whole.contents))))
    else:
        prompt, unread = read_conversation(as_contents(whole.contents), whole.system_instruction)
    _refuse(dialect, extra.paths)
    return Tokenize(
        id=call.id,
        model=model_of(call),
        prompt=prompt,
        tools=_tools(whole),
        unread=unread,
        unknown=extra.paths,
        origin=origin,
    )


def read_embed(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Embed:
    """The request of `:embedContent` and `:batchEmbedContents`.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    extra: Unknown
    if origin.operation == "batch_embed":
        batch, extra = _read(body, wire.BatchRequest)
        requests = batch.requests
    else:
        one, extra = _read(body, wire.EmbedRequest)
        requests = (one,)
    if not 0 < len(requests) <= dialect.limits.max_inputs:
        raise _invalid("requests", f"must have 1 to {dialect.limits.max_inputs} items")
    sizes = {request.output_dimensionality for request in requests}
    if len(sizes) > 1:
        raise _invalid("requests", "outputDimensionality must be the same in all requests")
    ignored = (
        *extra.paths,
        *(_camel(name) for name in ("task_type", "title") if any(getattr(request, name) for request in requests)),
    )
    _refuse(dialect, ignored)
    return Embed(
        id=call.id,
        model=model_of(call),
        inputs=tuple(TextPrompt(_text(request.content)) for request in requests),
        dimensions=sizes.pop(),
        extra=extra,
        unknown=ignored,
        origin=origin,
    )


def model_of(call: Call) -> str:
    """The model that the path names."""
    return call.path["model"]


def _read(body: bytes, type: type[T]) -> tuple[T, Unknown]:
    """Decode a body, whose names may be in camel or in snake case: protocol buffers read both, and SDKs send both."""
    return convert(_camel_cased(parse(body)), type)


def _camel_cased(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel_cased(item) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {_CAMEL.get(name, name): inner for name, inner in value.items()}
    return {name: inner if name in _FREE else _camel_cased(inner) for name, inner in renamed.items()}


def _check(dialect: Dialect, config: wire.GenerationConfig) -> None:
    limits = dialect.limits
    for name, low, high in (
        ("temperature", 0, limits.max_temperature),
        ("top_p", 0, 1),
        ("top_k", 0, float("inf")),
        ("candidate_count", 1, limits.max_candidates),
        ("max_output_tokens", 1, float("inf")),
        ("logprobs", 0, limits.max_logprobs),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
    ):
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            interval = f"at least {low}" if high == float("inf") else f"from {low} to {high:g}"
            raise _invalid(f"generationConfig.{_camel(name)}", f"must be {interval}, got {value:g}")
    stops = config.stop_sequences or ()
    if len(stops) > limits.max_stops or not all(stops):
        raise _invalid("generationConfig.stopSequences", f"at most {limits.max_stops}, none of them empty")
    if config.logprobs and not config.response_logprobs:
        raise _invalid("generationConfig.logprobs", "needs responseLogprobs")


def _sampling(config: wire.GenerationConfig) -> Sampling:
    return Sampling(
        do_sample=True,
        temperature=config.temperature,
        # A number with a fraction on the wire; 0 turns it off.
        top_k=int(config.top_k) or None if config.top_k is not None else None,
        top_p=SMALLEST_TOP_P if config.top_p == 0 else config.top_p,
        presence_penalty=config.presence_penalty or None,
        frequency_penalty=config.frequency_penalty or None,
        # Signed on the wire: the same 64 bits, unsigned.
        seed=None if config.seed is None else config.seed % 2**64,
    )


def _grammar(config: wire.GenerationConfig) -> Grammar | None:
    own = config.response_schema
    schema = config.response_json_schema if own is None else closed(json_schema(own))
    kind = config.response_mime_type or "text/plain"
    if kind == _ENUM:
        values = (schema or {}).get("enum")
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            raise _invalid("generationConfig.responseSchema", f"'{_ENUM}' needs an enum of texts")
        return Grammar("regex", "|".join(map(re.escape, values)))
    if kind == "application/json":
        return Grammar("json_object") if schema is None else Grammar("json_schema", schema)
    if kind != "text/plain":
        raise _invalid("generationConfig.responseMimeType", f"allowed are text/plain, application/json and {_ENUM}")
    if schema is not None:
        raise _invalid("generationConfig.responseSchema", "needs responseMimeType 'application/json'")
    return None


def _tools(given: wire.GenerateRequest) -> tuple[Tool, ...]:
    declared = (function for tool in given.tools or () for function in tool.function_declarations or ())
    return tuple(Tool(function.name, function.description, _parameters(function)) for function in declared)


def _parameters(function: wire.FunctionDeclaration) -> dict[str, Any] | None:
    if function.parameters_json_schema is not None:
        return function.parameters_json_schema
    return None if function.parameters is None else json_schema(function.parameters)


def _choice(config: wire.ToolConfig | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    calling = config.function_calling_config if config is not None else None
    if calling is None or calling.mode not in _MODES:
        return None
    names = calling.allowed_function_names or ()
    param = "toolConfig.functionCallingConfig"
    if unknown := set(names) - {tool.name for tool in tools}:
        raise _invalid(f"{param}.allowedFunctionNames", f"there is no function '{min(unknown)}'")
    if calling.mode == "ANY":
        if not tools:
            raise _invalid(param, "mode ANY needs functionDeclarations")
        if len(names) == 1:
            return ToolChoice("named", names)
        return ToolChoice("allowed", names, required=True) if names else ToolChoice("required")
    if calling.mode == "VALIDATED" and names:
        return ToolChoice("allowed", names)
    return ToolChoice("none" if calling.mode == "NONE" else "auto")


def _hints(thinking: wire.ThinkingConfig | None) -> dict[str, Any]:
    """How hard the model is to think."""
    if thinking is None:
        return {}
    level, budget = (thinking.thinking_level or "").lower(), thinking.thinking_budget
    if level in _LEVELS:
        return {"reasoning_effort": level}
    if budget is not None and budget > 0:
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}
    # -1 leaves it to the model.
    return {"reasoning_effort": "none"} if budget == 0 else {}


def _elsewhere(given: wire.GenerateRequest, config: wire.GenerationConfig) -> tuple[Unread, ...]:
    """What only a server of the client's own dialect can honour."""
    found = [f"generationConfig.{_camel(name)}" for name in _GOOGLES_OPTIONS if getattr(config, name) is not None]
    if set(config.response_modalities or ()) - {"TEXT", "text", "MODALITY_UNSPECIFIED"}:
        found.append("generationConfig.responseModalities")
    if given.cached_content:
        found.append("cachedContent")
    found += [
        f"tools[{place}].{_camel(name)}"
        for place, tool in enumerate(given.tools or ())
        for name in _GOOGLES_TOOLS
        if getattr(tool, name) is not None
    ]
    return tuple(Unread(name, name.rpartition(".")[2], f"{name}: this field is not supported") for name in found)


def _unknown_words(given: wire.GenerateRequest, config: wire.GenerationConfig) -> tuple[Unread, ...]:
    """The words that are not known here: a server of the client's own dialect may be newer."""
    level = config.thinking_config.thinking_level if config.thinking_config else None
    calling = given.tool_config.function_calling_config if given.tool_config else None
    mode = calling.mode if calling is not None else None
    found: list[Unread] = []
    if level is not None and level.lower() not in (*_LEVELS, "thinking_level_unspecified"):
        param = "generationConfig.thinkingConfig.thinkingLevel"
        found.append(Unread(param, "thinkingLevel", f"{param}: '{level}' is no level"))
    if mode not in (None, "", "MODE_UNSPECIFIED", *_MODES):
        param = "toolConfig.functionCallingConfig.mode"
        found.append(Unread(param, "mode", f"{param}: '{mode}' is no mode"))
    return tuple(found)


def _without_effect(given: wire.GenerateRequest) -> tuple[str, ...]:
    """The fields that are known, and change nothing but where the client's own body is sent on."""
    asked: list[tuple[str, Any]] = [
        (_camel(name), getattr(given, name)) for name in ("safety_settings", "service_tier", "store")
    ]
    tools = given.tool_config or wire.ToolConfig()
    contents = (given.contents,) if isinstance(given.contents, wire.Content) else given.contents
    asked += [
        ("toolConfig.retrievalConfig", tools.retrieval_config),
        ("toolConfig.includeServerSideToolInvocations", tools.include_server_side_tool_invocations),
        ("generationConfig.mediaResolution", given.generation_config and given.generation_config.media_resolution),
    ]
    asked += [
        (f"contents[{place}].parts[{within}].{_camel(name)}", getattr(part, name))
        for place, content in enumerate(contents)
        for within, part in enumerate(content.parts)
        for name in ("video_metadata", "media_resolution")
    ]
    return tuple(name for name, value in asked if value not in (None, (), [], {}, False))


def _text(content: wire.Content) -> str:
    texts = [part.text for part in content.parts]
    if not texts or any(text is None for text in texts) or not "".join(text or "" for text in texts):
        raise _invalid("content", "must have parts of text that is not empty")
    return "".join(text or "" for text in texts)


def _refuse(dialect: Dialect, ignored: tuple[str, ...]) -> None:
    if ignored and dialect.requests.strict:
        name = min(ignored)
        raise InvalidRequest(f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.', param=name)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _invalid(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {why}", param=param)
