"""Request bodies to the internal form. One URL serves three tasks: what the body holds says which."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from adapters.base import Call, Route
from adapters.body import parse
from adapters.databricks.dialects import Dialect
from adapters.databricks.turns import check_turns
from adapters.openai.inbound.decode import chat, completion, read_fields
from adapters.openai.inbound.embeddings import embedding
from adapters.openai.responses.decode import COUNT, OPERATION, count, response
from schemas import databricks as wire
from schemas.errors import InvalidRequest
from schemas.ir import Embed, Generate, Origin, Tokenize
from schemas.responses import ResponseRequest

_TASKS = {"messages": "chat", "prompt": "completions", "input": "embeddings"}


def read_request(dialect: Dialect, route: Route, body: bytes, call: Call) -> Generate | Embed | Tokenize:
    """A request of any route that runs something.

    Raises:
        schemas.errors.RequestError: it is not one we can read.
    """
    fields = parse(body)
    if isinstance(fields, dict) and "name" in call.path:
        fields["model"] = _endpoint(call)
    task = route.name if route.name in (*_TASKS.values(), OPERATION, COUNT) else _task(fields)
    origin = Origin(dialect.protocol, dialect.name, route.name, body)
    if task == "chat":
        return _chat(dialect, fields, origin, call)
    if task == "completions":
        return _completion(dialect, fields, origin, call)
    if task in (OPERATION, COUNT):
        question, unknown = read_fields(dialect, fields, ResponseRequest)
        return (count if task == COUNT else response)(dialect, question, origin, call, unknown)
    asked, extra = read_fields(dialect, fields, wire.EmbeddingRequest)
    request = embedding(asked, origin, call, extra)
    return replace(request, instruction=asked.instruction, client_request_id=asked.client_request_id)


def _endpoint(call: Call) -> str:
    """What the path names: an endpoint, or one served entity of it."""
    name, served = call.path["name"], call.path.get("served")
    return name if served is None else f"{name}:{served}"


def _task(fields: Any) -> str:
    if isinstance(fields, dict):
        for field, task in _TASKS.items():
            if fields.get(field) is not None:
                return task
    raise InvalidRequest("The body must have one of 'messages' (chat), 'prompt' (completions), 'input' (embeddings).")


def _chat(dialect: Dialect, fields: Any, origin: Origin, call: Call) -> Generate:
    given, extra = read_fields(dialect, fields, wire.ChatRequest)
    request = chat(dialect, given, origin, call, extra)
    if dialect.requests.alternating_roles:
        check_turns(given.messages)
    return _with_context(request, given)


def _completion(dialect: Dialect, fields: Any, origin: Origin, call: Call) -> Generate:
    """A completion. Unless told otherwise its prompt is what a user says, and not raw text.

    "suffix" is appended to the answer by the encoder, and never reaches a model.
    """
    given, extra = read_fields(dialect, fields, wire.CompletionRequest)
    request = completion(dialect, given, origin, call, extra)
    raw = dialect.defaults.raw_prompts if given.use_raw_prompt is None else given.use_raw_prompt
    request = replace(
        request,
        raw_prompt=raw,
        suffix=None,
        # What a template made of the prompt is not the client's to see.
        prompt_logprobs=request.prompt_logprobs and raw,
        answer_suffix=given.suffix or "",
    )
    if given.error_behavior == "truncate":
        request = _truncating(request, call)
    return _with_context(request, given)


def _truncating(request: Generate, call: Call) -> Generate:
    """As many tokens as possible, where prompt and answer exceed the context.

    A prompt that fills it is cut at its beginning so that one token fits; how many more fit after a prompt only the
    backend can count: `overflow` asks it to lower the answer's limit instead of refusing the request.
    """
    request = replace(request, overflow="truncate")
    card = call.catalog.cards.get(request.model)
    if card is None or card.context_length is None:
        return request
    room = card.context_length - 1
    limit, cut = request.stopping.max_new_tokens, request.truncate_prompt_tokens
    return replace(
        request,
        stopping=replace(request.stopping, max_new_tokens=None if limit is None else min(limit, room)),
        truncate_prompt_tokens=room if cut is None else min(cut, room),
    )


def _with_context(request: Generate, given: wire.ChatRequest | wire.CompletionRequest) -> Generate:
    """What the SDK sends along for the platform's own tables, and for models served elsewhere."""
    context = {"usage_context": given.usage_context, "extra_params": given.extra_params}
    told = {name: value for name, value in context.items() if value is not None}
    return replace(request, client_request_id=given.client_request_id, hints=request.hints | told)
