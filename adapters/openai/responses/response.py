"""The response object: the request's parameters as it repeats them, its status and its usage."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Record
from adapters.objects import Append
from adapters.openai.responses.stored import CONVERSATION, Items, entries_of, make_record, places_of
from schemas.ir import FinishReason, Generate, Usage
from schemas.openai import responses as wire

INCOMPLETE_REASONS = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}
"""The finish reasons that make a response incomplete -> the protocol's word."""

_ANSWERED = ("completed", "incomplete")
"""The statuses of responses that become a part of their conversation."""


# Read from the client's own bytes, because the IR does not keep them in the client's form: schemas and tool choices
# come back exactly as they were written.
class _RepeatedFields(msgspec.Struct, frozen=True):
    """The fields of a request that its response repeats."""

    instructions: str | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"null")
    tool_choice: Any = None
    tools: tuple[dict[str, Any], ...] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    user: str | None = None


class _Ended(msgspec.Struct, frozen=True):
    """The fields of a response that decide what is stored."""

    id: str
    # What a remote sends may lack both.
    status: str | None = None
    output: Items | None = None


def own_fields(request: Generate) -> dict[str, Any]:
    """The fields of a response that are the gateway's, whoever answers: what it is stored as."""
    return _own_fields(request, _asked(request))


def _asked(request: Generate) -> _RepeatedFields:
    return msgspec.json.decode(request.origin.body if request.origin else b"{}", type=_RepeatedFields)


def _own_fields(request: Generate, asked: _RepeatedFields) -> dict[str, Any]:
    return {
        "id": f"resp_{request.id}",
        "background": request.detached,
        "conversation": wire.ConversationName(request.conversation.id) if request.conversation is not None else None,
        "previous_response_id": asked.previous_response_id,
        "store": request.stored_items is not None,
    }


def new_response(request: Generate, model: str, created: int, output: tuple[wire.Output, ...] = ()) -> wire.Response:
    """A response in progress; `created` is Unix time in seconds."""
    asked, sampling = _asked(request), request.sampling
    return wire.Response(
        **_own_fields(request, asked),
        created_at=created,
        status="in_progress",
        instructions=asked.instructions,
        max_output_tokens=request.stopping.max_new_tokens,
        max_tool_calls=asked.max_tool_calls,
        model=model,
        output=output,
        # The default is true.
        parallel_tool_calls=request.parallel_tool_calls is not False,
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        prompt_cache_key=asked.prompt_cache_key,
        reasoning=wire.Reasoning(request.hints.get("reasoning_effort")),
        safety_identifier=asked.safety_identifier,
        service_tier="default",
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        text=_raw_or(asked.text, b'{"format":{"type":"text"}}'),
        tool_choice=asked.tool_choice or "auto",
        tools=tuple(map(_tool, asked.tools or ())),
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        truncation=asked.truncation or "disabled",
        user=asked.user,
        metadata=asked.metadata or {},
        top_logprobs=asked.top_logprobs or 0,
    )


def ended(response: wire.Response, reason: FinishReason, usage: Usage, now: int) -> wire.Response:
    """The response with its final status. The last item of an incomplete response is incomplete, too."""
    response = msgspec.structs.replace(response, usage=usage_of(usage))
    incomplete = INCOMPLETE_REASONS.get(reason)
    if incomplete is None:
        return msgspec.structs.replace(response, status="completed", completed_at=now)
    output = response.output
    if output:
        # The item in which the answer was cut off is the last one; those before it are complete.
        output = (*output[:-1], msgspec.structs.replace(output[-1], status="incomplete"))
    return msgspec.structs.replace(
        response, status="incomplete", incomplete_details=wire.Incomplete(incomplete), output=output
    )


def record_of(request: Generate, body: bytes) -> Record | None:
    """What to store of a response, and of its conversation; None if the client or the gateway stores nothing."""
    if request.stored_items is None and request.conversation is None:
        return None
    response, append = msgspec.json.decode(body, type=_Ended), None
    output = response.output or []
    if (conversation := request.conversation) is not None and response.status in _ANSWERED:
        # All that is new in the conversation: the input of this turn and the answer.
        items = [*msgspec.json.decode(conversation.items), *output]
        append = Append(CONVERSATION, conversation.id, entries_of(items))
    if request.stored_items is None:
        return None if append is None else Record(response.id, None, append=append)
    record = make_record(response.id, body, request.stored_items)
    return msgspec.structs.replace(record, append=append, also=places_of(response.id, output))


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    """A tool as the client wrote it. A function's optional fields are required in a response, and nullable."""
    optional = ("parameters", "strict") if given.get("type") == "function" else ()
    return given | {name: None for name in optional if name not in given}


def _raw_or(given: msgspec.Raw, default: bytes) -> msgspec.Raw:
    """The JSON of a field as the client wrote it; `default` where it is absent or null."""
    return msgspec.Raw(default) if bytes(given) == b"null" else given


def usage_of(usage: Usage) -> wire.Usage:
    """Token counts in the protocol's form."""
    return wire.Usage(
        usage.prompt_tokens,
        wire.InputDetails(usage.cached_tokens or 0),
        usage.completion_tokens,
        wire.OutputDetails(usage.reasoning_tokens or 0),
        usage.total_tokens,
    )
