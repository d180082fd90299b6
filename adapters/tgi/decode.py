"""Request bodies to the IR. The dialect's defaults are applied here, so the IR says exactly what to generate."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import msgspec

from adapters.base import Call
from adapters.body import convert, parse, read_plain
from adapters.formats.closed_schemas import closed
from adapters.tgi.checks import check
from adapters.tgi.dialects import Dialect
from adapters.tgi.inputs import read_inputs
from adapters.unknown_fields import Unknown
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest, MalformedBody, ModelNotFound
from schemas.ir import ChatPrompt, Generate, Grammar, Origin, Prompt, Sampling, Stopping, Tokenize
from schemas.tgi import CompatGenerateRequest, GenerateRequest, GrammarSpec, InputPart, Parameters


def default_card(call: Call) -> ModelCard:
    """The model that answers. Requests of TGI name no model, as a TGI server has only one.

    Raises:
        schemas.errors.ModelNotFound: there is no default model.
    """
    default = call.catalog.default
    card = call.catalog.find(default or "")
    if card is None:
        raise ModelNotFound(f"The model '{default}' does not exist." if default else "No model is served here.")
    return card


def read_tokenize(dialect: Dialect, body: bytes, call: Call) -> Tokenize:
    """Decode a body of `/tokenize`: a body of `/generate`, of which only the prompt is used."""
    card = default_card(call)
    request, unknown = _read(dialect, GenerateRequest, body)
    prompt = read_inputs(dialect, request.inputs, images=card.images)
    origin = _origin(dialect, "tokenize", body)
    return Tokenize(id=call.id, model=card.name, prompt=prompt, unknown=unknown.paths, origin=origin)


def read_generate(dialect: Dialect, operation: str, body: bytes, call: Call) -> Generate:
    """Decode a body of `/generate`, `/generate_stream` or `/`, which has a field `stream`."""
    # Only `/` has the field `stream`; on the other routes it is an unknown field.
    type = CompatGenerateRequest if operation == "compat" else GenerateRequest
    return read_given(dialect, operation, *_read(dialect, type, body), body, call)


def read_given(
    dialect: Dialect, operation: str, request: GenerateRequest, extra: Unknown, body: bytes, call: Call
) -> Generate:
    """The request of a body that is decoded, with what of it is unknown.

    Raises:
        schemas.errors.RequestError: it breaks a rule of the dialect.
    """
    stream = operation == "generate_stream" or (isinstance(request, CompatGenerateRequest) and bool(request.stream))
    parameters = request.parameters or Parameters(do_sample=dialect.defaults.bare_do_sample)
    card = default_card(call)
    prompt, grammar = _read_prompt_and_grammar(dialect, request.inputs, parameters, card, stream)
    # `decoder_input_details` implies `details`: the prefill tokens are part of them.
    details = bool(parameters.details or parameters.decoder_input_details)
    top_n, count = parameters.top_n_tokens or 0, parameters.best_of or 1
    return Generate(
        id=call.id,
        model=card.name,
        prompts=(prompt,),
        sampling=_sampling(dialect, parameters, call.id),
        stopping=_stopping(dialect, parameters),
        stream=stream,
        stream_usage=details,  # a TGI client gets token counts with the details
        n=count,
        best_of=count if count > 1 else None,
        truncate_prompt_tokens=parameters.truncate,
        overflow=dialect.requests.overflow,
        echo=_full_text(dialect, parameters, operation),
        raw_prompt=not isinstance(prompt, ChatPrompt),
        # `best_of` compares candidates by their log-probabilities, so it needs them even where the client does not.
        logprobs=(details and dialect.requests.details_logprobs) or top_n > 0 or count > 1,
        logprobs_optional=top_n == 0 and count == 1,
        top_logprobs=top_n,
        prompt_logprobs=bool(parameters.decoder_input_details) and dialect.answers.prefill,
        grammar=grammar,
        lora_adapter=None if parameters.adapter_id == dialect.requests.no_adapter else parameters.adapter_id,
        extra=extra,
        unknown=extra.paths,
        origin=_origin(dialect, operation, body),
    )


# --- plain requests: a text with a few parameters, decoded in one step ---------------------------------------------

_NOTHING = Unknown({}, ())
_RARE = ("adapter_id", "grammar")
"""Parameters that no plain request has."""
_NEVER = Literal[""]
"""A value that is not sent. Null is another one: with it, a parameter of another dialect is an unknown field."""


class PlainRequests:
    """Reads the plain requests of one dialect.

    Args:
        dialect: whose rules hold.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._foreign = sorted(set(Parameters.__struct_fields__) - set(dialect.requests.parameters))
        rare = [(name, None, None) for name in _RARE if name not in self._foreign]
        parameters = _plain(Parameters, [*rare, *((name, _NEVER, None) for name in self._foreign)])
        fields = [("inputs", str), ("parameters", parameters | None, None)]
        self._decode = msgspec.json.Decoder(_plain(GenerateRequest, fields)).decode
        self._decode_compat = msgspec.json.Decoder(_plain(CompatGenerateRequest, fields)).decode

    def read(self, operation: str, body: bytes, call: Call) -> Generate | None:
        """The request of a plain body, as `read_generate` reads it; None: that is to read or to refuse it.

        Raises:
            schemas.errors.RequestError: it breaks a rule of the dialect.
        """
        given = read_plain(self._decode_compat if operation == "compat" else self._decode, body)
        if given is None or any(getattr(given.parameters, name, None) is not None for name in self._foreign):
            return None
        return read_given(self._dialect, operation, given, _NOTHING, body, call)


def _plain(base: type[msgspec.Struct], fields: list[Any]) -> Any:
    """The same struct with narrower fields, and without unknown ones."""
    return msgspec.defstruct(f"Plain{base.__name__}", fields, bases=(base,), frozen=True, forbid_unknown_fields=True)


# --- parts of requests ----------------------------------------------------------------------------------------------


def _read_prompt_and_grammar(
    dialect: Dialect, inputs: str | tuple[InputPart, ...], parameters: Parameters, card: ModelCard, stream: bool
) -> tuple[Prompt, Grammar | None]:
    try:
        check(dialect, parameters, stream=stream, context_length=card.context_length)
        return read_inputs(dialect, inputs, images=card.images), read_grammar(parameters.grammar)
    except InvalidRequest as error:
        # TGI answers a refused request for a stream with a frame. Whether it is one is known only here, after decoding.
        error.streamed = stream
        raise


def _origin(dialect: Dialect, operation: str, body: bytes) -> Origin:
    return Origin("tgi", dialect.name, operation, body)


def _read(dialect: Dialect, type: type[GenerateRequest], body: bytes) -> tuple[GenerateRequest, Unknown]:
    return read_fields_of(dialect, type, parse(body))


def read_fields_of(dialect: Dialect, type: type[GenerateRequest], fields: Any) -> tuple[GenerateRequest, Unknown]:
    """Convert a parsed body to the request and its unknown fields, in which "parameters" holds the unknown parameters.

    Raises:
        schemas.errors.RequestError: a field is wrong, or unknown where the dialect is strict.
    """
    unknown: dict[str, Any] = {}
    # A parameter of another dialect (`top_n_tokens` at 0.9) is unknown here: it is neither checked nor applied.
    if isinstance(fields, dict) and isinstance(given := fields.get("parameters"), dict):
        known = {name: value for name, value in given.items() if name in dialect.requests.parameters}
        if len(known) < len(given):
            unknown = {name: value for name, value in given.items() if name not in known}
            fields["parameters"] = known
    request, extra = convert(fields, type)
    # Clients send all parameters that they know, with null for those that are not set.
    paths = extra.paths + tuple(f"parameters.{name}" for name, value in unknown.items() if value is not None)
    if paths and dialect.requests.strict:
        name = min(paths)
        raise InvalidRequest(dialect.wording.unknown_field.format(name=name), param=name)
    return request, Unknown(extra | ({"parameters": unknown} if unknown else {}), paths)


def _sampling(dialect: Dialect, given: Parameters, id: str) -> Sampling:
    typical_p = given.typical_p if "typical_p" not in dialect.requests.ineffective else None
    do_sample, temperature = given.do_sample, given.temperature
    if dialect.requests.warpers_sample:
        # TGI samples if `do_sample` is set or any warper is; a temperature of 1 is no warper.
        warped = temperature not in (None, 1.0) or given.top_k or given.top_p or typical_p
        do_sample = bool(do_sample or warped)
        temperature = temperature if do_sample else None
    draws = given.seed is None and dialect.defaults.always_seeded
    return Sampling(
        do_sample=do_sample,
        temperature=temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        typical_p=typical_p,
        repetition_penalty=given.repetition_penalty,
        frequency_penalty=given.frequency_penalty,
        seed=_drawn_seed(id) if draws else given.seed,
        seed_drawn=draws,
        watermark=bool(given.watermark) and "watermark" not in dialect.requests.ineffective,
    )


def _drawn_seed(id: str) -> int:
    """A seed for a request without one. MindIE's page: "the system draws one", and the answer has it.

    It is derived from the request's id, so that decoding is deterministic, and has 63 bits and is not 0, so that every
    dialect accepts it in another request.
    """
    # `>> 1`: 63 bits. `| 1`: never 0.
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest()) >> 1 | 1


def _stopping(dialect: Dialect, given: Parameters) -> Stopping:
    limit = given.max_new_tokens or dialect.defaults.default_max_new_tokens
    if dialect.limits.max_iter_times is not None:
        # The cap holds also where the request sets no limit.
        limit = min(limit or dialect.limits.max_iter_times, dialect.limits.max_iter_times)
    stop = (given.stop,) if isinstance(given.stop, str) else given.stop or ()
    return Stopping(max_new_tokens=limit, stop=stop, include_stop=dialect.answers.include_stop)


def _full_text(dialect: Dialect, given: Parameters, operation: str) -> bool:
    if given.return_full_text is None:
        return operation == "compat" and dialect.defaults.compat_full_text
    return given.return_full_text


def read_grammar(spec: GrammarSpec | None) -> Grammar | None:
    """Decode a grammar.

    Raises:
        schemas.errors.InvalidRequest: the value does not fit the type.
    """
    if spec is None:
        return None
    if spec.type == "regex":
        if not isinstance(spec.value, str):
            raise _invalid_grammar("a regex must be a string")
        return Grammar("regex", spec.value)
    if spec.type == "json_schema":
        if not isinstance(spec.value, dict):
            raise _invalid_grammar("missing field `schema`")
        name, strict = spec.value.get("name"), spec.value.get("strict")
        return Grammar("json_schema", _schema(spec.value.get("schema")), _typed(name, str), _typed(strict, bool))
    # TGI's "json" and "json_object" are the same: the value is the schema.
    return Grammar("json_schema", _schema(spec.value))


def _schema(value: Any) -> dict[str, Any]:
    if isinstance(value, str):  # TGI takes a string as the JSON of the schema
        try:
            value = parse(value.encode())
        except MalformedBody:
            raise _invalid_grammar("the schema is not JSON") from None
    if not isinstance(value, dict):
        raise _invalid_grammar("a schema must be an object")
    # The message and the rule are the router's.
    if "properties" not in value:
        raise _invalid_grammar("Grammar must have a 'properties' field")
    return closed(value)


def _typed(value: Any, type: type) -> Any:
    if value is not None and not isinstance(value, type):
        raise _invalid_grammar("`name` must be a string and `strict` a boolean")
    return value


def _invalid_grammar(why: str) -> InvalidRequest:
    return InvalidRequest(f"grammar is not valid: {why}", param="parameters.grammar")
