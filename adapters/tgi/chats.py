"""Bodies with chats in OpenAI's form that TGI has beside OpenAI's routes: `/chat_tokenize` and `/vertex`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from adapters.base import Call
from adapters.body import convert, parse
from adapters.openai.dialects import OPENAI
from adapters.openai.inbound.decode import read_chat, read_fields
from adapters.tgi.decode import read_fields_of, read_given
from adapters.tgi.dialects import Dialect
from adapters.unknown_fields import Unknown
from schemas.errors import InvalidRequest, MalformedBody
from schemas.ir import Generate, Origin, Tokenize
from schemas.openai.requests import ChatRequest
from schemas.tgi import GenerateRequest, Parameters, VertexRequest


def read_chat_tokenize(dialect: Dialect, body: bytes, call: Call) -> Tokenize:
    """Decode a body of `/chat_tokenize`: a chat, of which only the prompt is used.

    Raises:
        schemas.errors.RequestError: it breaks a rule of the protocol.
    """
    fields = parse(body)
    if not isinstance(fields, dict):
        raise MalformedBody("The request body must be a JSON object.")
    asked = _chat(dialect, fields, call)
    hidden = asked.tool_choice is not None and asked.tool_choice.mode == "none"
    return Tokenize(
        id=asked.id,
        model=asked.model,
        prompt=asked.prompts[0],
        tools=() if hidden else asked.tools,
        hints=asked.hints,
        unread=asked.unread,
        unknown=asked.unknown,
        origin=Origin("tgi", dialect.name, "chat_tokenize", body),
    )


def read_vertex(dialect: Dialect, body: bytes, call: Call) -> Generate:
    """Decode a body of `/vertex`: several prompts, or several chats, with the same parameters.

    TGI itself reads `max_new_tokens` and `seed` of an instance, ignores its other parameters, and always samples.

    Raises:
        schemas.errors.RequestError: an instance breaks a rule of the protocol, or they differ in their parameters.
    """
    given, unknown = convert(parse(body), VertexRequest)
    _check_known(dialect, unknown.paths)
    if not given.instances:
        raise InvalidRequest("`instances` cannot be empty", param="instances")
    asked = [_instance(dialect, each, call) for each in given.instances]
    first = asked[0]
    for place, each in enumerate(asked):
        if _parameters(each) != _parameters(first):
            message = "all `instances` must have the same parameters, and be of one kind"
            raise InvalidRequest(message, param=f"instances[{place}]")
    paths = tuple(f"instances[{place}].{path}" for place, each in enumerate(asked) for path in each.unknown)
    return replace(
        first,
        prompts=tuple(each.prompts[0] for each in asked),
        stream=False,
        extra={},
        unknown=unknown.paths + paths,
        origin=Origin("tgi", dialect.name, "vertex", body),
    )


def _instance(dialect: Dialect, fields: dict[str, Any], call: Call) -> Generate:
    if "inputs" not in fields:
        asked = _chat(dialect, fields, call)
        for part in asked.unread:  # no server is sent the chat itself
            raise InvalidRequest(part.refusal, param=part.param)
        # An answer is a text, which has no room for them.
        if asked.tools or asked.n > 1:
            field = "tools" if asked.tools else "n"
            raise InvalidRequest(f"`{field}` is not supported in `instances`", param=field)
        return asked
    request, unknown = read_fields_of(dialect, GenerateRequest, fields)
    parameters = request.parameters or Parameters()
    if parameters.do_sample is None:
        request = replace(request, parameters=replace(parameters, do_sample=True))
    return read_given(dialect, "vertex", request, Unknown({}, unknown.paths), b"", call)


def _parameters(request: Generate) -> Generate:
    """What all instances of a request have in common."""
    return replace(request, prompts=(), stream=False, extra={}, unknown=(), origin=None)


def _chat(dialect: Dialect, fields: dict[str, Any], call: Call) -> Generate:
    """A chat; one that names no model is for the one that there is."""
    given, extra = read_fields(OPENAI, {"model": ""} | fields, ChatRequest)
    _check_known(dialect, extra.paths)
    return read_chat(OPENAI, given, Origin("openai", OPENAI.name, "chat"), call, extra)


def _check_known(dialect: Dialect, unknown: tuple[str, ...]) -> None:
    if unknown and dialect.requests.strict:
        name = min(unknown)
        raise InvalidRequest(dialect.wording.unknown_field.format(name=name), param=name)
