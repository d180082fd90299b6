"""`/v1/responses/compact` by any model: it writes a summary, and an item of the type `compaction` holds that.

Strategy: the conversation is sent as one text, so that a model may be asked that has no tools, and none of them is
called. The item's `encrypted_content` is the summary itself in base64, neither encrypted nor signed: it says nothing
that the client has not sent, and a client could as well write the message that it stands for. So there is nothing to
store, no key to keep, and any gateway can read it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from adapters.base import Reply
from adapters.body import parse
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import empty, missing
from adapters.openai.inbound.decode import read_fields
from adapters.openai.responses.items import append, places_without_effect, read_message
from adapters.openai.responses.response import usage_of
from adapters.openai.responses.stored import Items, normalized
from adapters.openai.responses.summary import write_summary
from schemas.completion import Completion
from schemas.errors import BackendFailed
from schemas.ir import ChatPrompt, FinishReason, Generate, ImagePart, Message, Part, Sampling, TextPart
from schemas.openai import responses as wire
from schemas.origin import Relay

COMPACT = "responses_compact"
"""The name of the route."""

_TASK = (
    "Summarize the conversation that follows, so that it can be continued by somebody who has the summary and the"
    " user's messages only. Keep decisions, facts, names, numbers, paths and code that matter, the results of tools,"
    " and what is still to be done. Do not answer the conversation: write the summary alone."
)
_CUT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


def read_compaction(dialect: Dialect, request: Relay) -> Generate:
    """The request for a summary that a body of the route is.

    Raises:
        schemas.errors.RequestError: the body is wrong, or an item is of a kind that cannot be read.
    """
    given, extra = read_fields(dialect, parse(request.origin.body), wire.CompactRequest)
    if not given.input:
        raise missing("input") if given.input is None else empty("input")
    items = (wire.Item(role="user", content=given.input),) if isinstance(given.input, str) else given.input
    messages: list[Message] = []
    for place, item in enumerate(items):
        append(messages, read_message(item, f"input[{place}]"))
    system = "\n\n".join(text for text in (_TASK, given.instructions) if text)
    return Generate(
        id=request.id,
        model=request.model,
        prompts=(ChatPrompt((Message("system", system), Message("user", _transcript(messages)))),),
        sampling=Sampling(do_sample=True),
        raw_prompt=False,
        flow=request.flow,
        destinations=request.destinations,
        extra=extra,
        unknown=(*extra.paths, *places_without_effect(items)),
        origin=request.origin,
    )


def encode_compaction(request: Generate, answer: Completion, now: int) -> Reply:
    """The answer: the user's messages as they came, and the item with the summary; `now` is Unix time in seconds.

    Raises:
        schemas.errors.BackendFailed: there is no whole summary.
    """
    [choice] = answer.choices
    if choice.reason in _CUT or not choice.text.strip():
        raise BackendFailed("The model wrote no whole summary of the conversation.", code="incomplete_summary")
    item = {"id": f"cmp_{request.id}", "type": "compaction", "encrypted_content": write_summary(choice.text.strip())}
    output = (*_kept(request), item)
    return Reply(msgspec.json.encode(wire.Compaction(f"resp_{request.id}", now, output, usage_of(answer.usage))))


def _kept(request: Generate) -> Items:
    """The messages of all but the assistant, as the client sent them."""
    assert request.origin is not None
    given = msgspec.json.decode(request.origin.body)["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [
        normalized(item, f"{request.id}_in{place}")
        for place, item in enumerate(items)
        if item.get("type", "message") == "message" and item.get("role") != "assistant"
    ]


def _transcript(messages: Iterable[Message]) -> str | tuple[Part, ...]:
    """The conversation as a text, or as parts if it has images."""
    parts: list[Part] = []
    for message in messages:
        content = (TextPart(message.content),) if isinstance(message.content, str) else message.content or ()
        parts += [TextPart(f"[{message.role}]\n"), *content, TextPart("\n")]
        parts += [TextPart(f"[call of {call.name}]\n{call.arguments}\n") for call in message.tool_calls]
    if any(isinstance(part, ImagePart) for part in parts):
        return tuple(parts)
    return "".join(part.text for part in parts if isinstance(part, TextPart))
