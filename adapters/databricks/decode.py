"""Request bodies decoded to the IR. One URL serves three tasks, which the fields of the body tell apart."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from adapters.base import Call, Route
from adapters.body import parse
from adapters.databricks.dialects import Dialect
from adapters.databricks.turns import check_turns
from adapters.openai.inbound.checks import missing, refused
from adapters.openai.inbound.decode import read_chat, read_completion, read_fields
from adapters.openai.pooling.embeddings import read_embed
from adapters.openai.responses.decode import COUNT, OPERATION, read_count, read_question, read_response
from schemas import databricks as wire
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, Embed, Generate, Origin, Tokenize

_TASKS = {"messages": "chat", "prompt": "completions", "input": "embeddings"}
"""A field that the body of a task must have -> the task, named as the route that serves it alone."""

CHATS = ("invocations", "served_invocations", "chat", "gateway_chat")
"""The routes that chats come to."""


def read_request(dialect: Dialect, route: Route, body: bytes, call: Call) -> Generate | Embed | Tokenize:
    """The request of any route that runs a model.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the dialect.
    """
    # Parsed once, before the task is known: which struct the body is converted to depends on its fields.
    fields = parse(body)
    # The path names the endpoint, whatever `model` the body has.
    if isinstance(fields, dict) and (model := endpoint(call)) is not None:
        fields["model"] = model
    # Of `invocations` and the `gateway_` routes the body's fields decide; all other routes have one task.
    task = route.name if route.name in (*_TASKS.values(), OPERATION, COUNT) else _task(fields)
    if task in _TASKS.values() and isinstance(fields, dict):
        _check_task(call, str(fields.get("model")), task)
    origin = Origin(dialect.protocol, dialect.name, route.name, body)
    if task == "chat":
        return _chat(dialect, fields, origin, call)
    if task == "completions":
        return _completion(dialect, fields, origin, call)
    if task in (OPERATION, COUNT):
        question, unknown = read_question(dialect, fields)
        return (read_count if task == COUNT else read_response)(dialect, question, origin, call, unknown)
    asked, extra = read_fields(dialect, fields, wire.EmbeddingRequest)
    request = read_embed(dialect, asked, origin, call, extra)
    return replace(request, instruction=asked.instruction, client_request_id=asked.client_request_id)


def checked(dialect: Dialect, request: Generate, call: Call) -> Generate:
    """A plain chat, if it obeys the rules that Databricks adds.

    Raises:
        schemas.errors.InvalidRequest: it does not.
    """
    _check_task(call, request.model, "chat")
    prompt = request.prompts[0]
    if dialect.requests.alternating_roles and isinstance(prompt, ChatPrompt):
        check_turns(prompt.messages)
    return request


def endpoint(call: Call) -> str | None:
    """The endpoint that the path names, or one of its served entities (`endpoint:entity`); None: the body names it."""
    name, served = call.path.get("name"), call.path.get("served")
    return name if served is None else f"{name}:{served}"


def _task(fields: Any) -> str:
    if isinstance(fields, dict):
        # In this order: a chat with a stray `input` is a chat.
        for field, task in _TASKS.items():
            if fields.get(field) is not None:
                return task
    raise InvalidRequest("The body must have one of 'messages' (chat), 'prompt' (completions), 'input' (embeddings).")


def _chat(dialect: Dialect, fields: Any, origin: Origin, call: Call) -> Generate:
    given, extra = read_fields(dialect, fields, wire.ChatRequest)
    request = read_chat(dialect, given, origin, call, extra)
    _check_tools(dialect, given)
    # After `read_chat`, which knows the roles: `check_turns` sees only roles that exist.
    if dialect.requests.alternating_roles:
        check_turns(given.messages)
    return _with_context(request, given)


def _check_tools(dialect: Dialect, given: wire.ChatRequest) -> None:
    """Refuse functions without a description, which Databricks' page requires."""
    for place, tool in enumerate(given.tools or ()):
        if dialect.requests.tool_descriptions and tool.function is not None and not tool.function.description:
            raise missing(f"tools[{place}].function.description")


def _check_task(call: Call, endpoint: str, task: str) -> None:
    """Refuse a chat to an endpoint whose task is declared to be completions, and the other way round."""
    card = call.catalog.find(endpoint)
    if card is None or not card.declared_task or not {card.task, task} <= {"chat", "completions"} or card.task == task:
        return
    fields = {task: field for field, task in _TASKS.items()}
    wanted, sent = fields[card.task], fields[task]
    raise refused(sent, f"The endpoint '{card.name}' has the task llm/v1/{card.task}: send '{wanted}', not '{sent}'.")


def _completion(dialect: Dialect, fields: Any, origin: Origin, call: Call) -> Generate:
    """The request of a completion. Its prompt is a user's message, unless `use_raw_prompt` is set.

    `suffix` is appended to the answer, and never reaches a model.
    """
    given, extra = read_fields(dialect, fields, wire.CompletionRequest)
    request = read_completion(dialect, given, origin, call, extra)
    raw = dialect.defaults.raw_prompts if given.use_raw_prompt is None else given.use_raw_prompt
    request = replace(
        request,
        raw_prompt=raw,
        # Fill-in-the-middle is OpenAI's meaning of `suffix`; here it is `answer_suffix`.
        suffix=None,
        # The tokens of a rendered chat template are not the client's prompt.
        prompt_logprobs=request.prompt_logprobs and raw,
        answer_suffix=given.suffix or "",
    )
    if given.error_behavior == "truncate":
        request = _truncating(request, call)
    return _with_context(request, given)


def _truncating(request: Generate, call: Call) -> Generate:
    """The request with `error_behavior: truncate`: generate as many tokens as the context and the time leave.

    A prompt that fills the context is cut at its beginning so that one token fits. How many tokens fit after a shorter
    prompt only the backend can count: `overflow` asks it to lower the answer's limit instead of refusing the request.
    """
    request = replace(request, overflow="truncate", keeps_partial=True)
    card = call.catalog.find(request.model)
    if card is None or card.context_length is None:
        return request
    # At least one token must be left for the answer.
    room = card.context_length - 1
    limit, cut = request.stopping.max_new_tokens, request.truncate_prompt_tokens
    return replace(
        request,
        stopping=replace(request.stopping, max_new_tokens=None if limit is None else min(limit, room)),
        truncate_prompt_tokens=room if cut is None else min(cut, room),
    )


def _with_context(request: Generate, given: wire.ChatRequest | wire.CompletionRequest) -> Generate:
    """The request with the fields that the SDK adds for the platform's own tables and for external models."""
    context = {"usage_context": given.usage_context, "extra_params": given.extra_params}
    hints = request.hints | {name: value for name, value in context.items() if value is not None}
    return replace(request, client_request_id=given.client_request_id, hints=hints)
