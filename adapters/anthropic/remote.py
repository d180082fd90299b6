"""Answers of remotes, whole and streamed, decoded to events.

A stream is complete if and only if it has a stop reason. A client of the same dialect gets the remote's own events;
for all others, blocks of types that the IR does not have are skipped.
"""

from __future__ import annotations

import msgspec

from adapters.anthropic.dialects import Dialect
from adapters.anthropic.relay import relays
from adapters.anthropic.text_runs import learn
from adapters.base import Reply
from adapters.body import UNREADABLE
from adapters.formats.frames import FrameReader
from adapters.formats.sse import EventReader
from adapters.formats.text_runs import TextRuns
from adapters.remote_failures import REFUSED, failure_of, malformed, read_json, retry_after
from schemas import anthropic as wire
from schemas.errors import BackendFailed, ContextLengthExceeded, GatewayError, Incomplete, Overloaded
from schemas.ir import Delta, Event, Events, Finished, Generate, Relayed, Started, ToolDelta, Usage

# Strategy: the documented flow is message_start, then for each block content_block_start, content_block_delta* and
# content_block_stop, then message_delta (stop reason, final usage) and message_stop. The reader enforces the order that
# the IR needs (start first, deltas of started blocks only) and closes at message_stop or at the end of the connection.
_MAX_BLOCKS = 10_000
"""Blocks in one answer; a remote that sends more is malformed."""
_MOST_TRIES = 4
"""Deltas of a stream that later ones may repeat; some servers fill each event up to a length of its own."""
_OVERLOADS = ("overloaded_error", "rate_limit_error")
"""Types of errors within streams that statuses have, too (529 and 429)."""
_TOO_LONG = ("prompt is too long", "exceed context limit", "maximum context length")


class StreamReader(FrameReader):
    """Reader of one stream. Whatever follows the end of the stream is ignored."""

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        super().__init__()
        self._dialect = dialect
        self._request = request
        self._relays = relays(dialect, request)
        self._early: list[Event] = []  # relayed events before message_start
        self._calls: dict[int, int] = {}  # index of a tool_use block -> index of the tool call
        self._open_call: ToolDelta | None = None  # the arguments of the open call if none are streamed
        self._begun: set[int] = set()  # indices of the blocks that were started
        self._usage = wire.RemoteUsage()
        self._reason: str | None = None
        self._stop: str | None = None
        self._started = self._ended = False
        self._events = EventReader()
        self._frames = self._events
        self._runs: TextRuns | None = None
        self._example: tuple[bytes, wire.RemoteEvent] | None = None  # that later events may repeat with other texts
        self._tries = _MOST_TRIES

    def framed_runs(self) -> tuple[TextRuns, bool] | None:
        """What runs look like, and whether they are relayed as they came (`adapters.optional.FramedRunDecoder`)."""
        runs = self._learned()
        return None if runs is None else (runs, self._relays)

    def pass_by(self, texts: int) -> None:
        """Do nothing: the server counts the tokens."""

    def _learned(self) -> TextRuns | None:
        """What events have around their texts, learned from the last delta; None where no event begins."""
        example, self._example = self._example, None
        if example is not None:
            self._tries -= 1
            self._runs = learn(*example) or self._runs
        return None if self._ended or not self._events.between_events else self._runs

    def close(self) -> Events:
        """The events that end the stream, once the connection was closed or `message_stop` was read."""
        if self._ended:
            return ()
        if self._reason is None:
            raise Incomplete("The backend's answer ended before it was finished.")
        self._ended = True
        return (*self._end_call(), *_end(self._dialect, self._request, self._reason, self._stop, self._usage))

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if not data or self._ended:
            return
        event = read_json(data, wire.RemoteEvent)
        if self._relays and event.type != "error":
            # The IR's first event is `Started`, so what comes before is held back.
            if len(self._early) >= _MAX_BLOCKS:
                raise malformed("no message_start")
            self._early.append(Relayed(data))
            if self._started or event.type == "message_start":
                out += self._early
                self._early = []
        self._event(event, out)
        if event.type == "content_block_delta" and self._tries:
            self._example = data, event

    def _event(self, event: wire.RemoteEvent, out: list[Event]) -> None:
        match event.type:
            case "message_start" if not self._started:
                message = event.message or wire.RemoteMessage()
                self._count(message.usage)
                self._started = True
                out.append(Started(message.model or self._request.model, _prompt_tokens(self._usage)))
            # May come at any point, even first: Anthropic sends it where HTTP would have answered 529.
            case "error":
                raise _event_failure(event.error)
            # A backend's first event must be `Started`. A stream may have any number of pings, also before it.
            case _ if not self._started and event.type != "ping":
                raise malformed("an event before message_start")
            case "content_block_start":
                self._block(event, out)
            case "content_block_delta":
                self._delta(event, out)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self._reason, self._stop = event.delta.stop_reason, event.delta.stop_sequence
            case "content_block_stop":
                out += self._end_call()
            # Other events match no case: the API's versioning policy demands that clients "handle unknown event types
            # gracefully".
            case "message_stop":
                out.extend(self.close())

    def _block(self, event: wire.RemoteEvent, out: list[Event]) -> None:
        block = event.content_block
        # The bound keeps `_begun` and `_calls` finite if a server never ends.
        if block is None or len(self._begun) >= _MAX_BLOCKS or event.index in self._begun:
            raise malformed("a content block that is empty, repeated or one too many")
        self._begun.add(event.index)
        out += self._end_call()
        if block.type == "tool_use":
            # Blocks are numbered together, tool calls of the IR by themselves: block 2 may be call 0.
            self._calls[event.index] = call = len(self._calls)
            self._open_call = ToolDelta(call, arguments=_arguments(block))
            out.append(Delta(tool_calls=(ToolDelta(call, block.id, block.name),)))
        # Anthropic starts blocks empty; other servers of the protocol put the first text into the start.
        elif delta := _text(block):
            out.append(delta)

    def _end_call(self) -> Events:
        """The arguments of the open call, which came with its start or are none; nothing if they were streamed."""
        call, self._open_call = self._open_call, None
        return () if call is None else (Delta(tool_calls=(call,)),)

    def _delta(self, event: wire.RemoteEvent, out: list[Event]) -> None:
        delta = event.delta
        if delta is None or event.index not in self._begun:
            raise malformed("a delta of no content block")
        if isinstance(delta.text, str) and delta.text:
            out.append(Delta(text=delta.text))
        elif isinstance(delta.thinking, str) and delta.thinking:
            out.append(Delta(reasoning=delta.thinking))
        # Of another block (a server tool) it is ignored, as are signatures and citations.
        elif isinstance(delta.partial_json, str) and delta.partial_json and event.index in self._calls:
            call = self._calls[event.index]
            if self._open_call is not None and self._open_call.index == call:
                self._open_call = None
            out.append(Delta(tool_calls=(ToolDelta(call, arguments=delta.partial_json),)))

    def _count(self, usage: wire.RemoteUsage | None) -> None:
        """Take over the counts of an event. Later counts are cumulative, and absent ones leave the earlier counts."""
        if usage is not None:
            counts = {name: value for name, value in msgspec.structs.asdict(usage).items() if value is not None}
            self._usage = msgspec.structs.replace(self._usage, **counts)


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.BackendError: the answer is not finished, or malformed.
    """
    answer = read_json(reply.body, wire.RemoteMessage)
    # A stop reason is the only sign that a whole answer is finished.
    if answer.stop_reason is None:
        raise Incomplete("The backend's answer ended before it was finished.")
    relayed = (Relayed(reply.body),) if relays(dialect, request) else ()
    events: list[Event] = [*relayed, Started(answer.model or request.model, _prompt_tokens(answer.usage))]
    calls = 0
    for block in answer.content:
        if block.type == "tool_use":
            events.append(Delta(tool_calls=(ToolDelta(calls, block.id, block.name, _arguments(block)),)))
            calls += 1
        elif delta := _text(block):
            events.append(delta)
    return (*events, *_end(dialect, request, answer.stop_reason, answer.stop_sequence, answer.usage))


def _text(block: wire.RemoteBlock) -> Delta | None:
    """What a block of text or thinking adds; None for one without any, and for types that the IR does not have."""
    if block.type == "text" and isinstance(block.text, str) and block.text:
        return Delta(text=block.text)
    if block.type == "thinking" and isinstance(block.thinking, str) and block.thinking:
        return Delta(reasoning=block.thinking)
    return None


def _arguments(block: wire.RemoteBlock) -> str:
    """The arguments of a call: the IR has their JSON text, as OpenAI has it."""
    return msgspec.json.encode(block.input or {}).decode()


def read_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status. Its message reaches the client only if the client is at fault."""
    try:
        message = msgspec.json.decode(reply.body, type=wire.ErrorAnswer).error.message
    except UNREADABLE:
        message = REFUSED
    # The protocol has no code for it, so Anthropic's sentences decide, and those of servers that use OpenAI's.
    if reply.status == 400 and any(sign in message for sign in _TOO_LONG):
        return ContextLengthExceeded(message)
    return failure_of(reply.status, message, retry_after(reply.headers))


def _end(dialect: Dialect, request: Generate, reason: str, stop: str | None, usage: wire.RemoteUsage) -> Events:
    """The last events of an answer.

    Raises:
        schemas.errors.BackendFailed: the stop reason is unknown.
    """
    # An unknown reason could be a new kind of failure; it must not pass for a normal end.
    if reason not in dialect.remote.reasons:
        raise malformed("an end for an unknown reason")
    generated = usage.output_tokens
    # The protocol names the stop sequence that it leaves out.
    text = stop or "" if request.stopping.include_stop else ""
    finished = Finished(text=text, reason=dialect.remote.reasons[reason], generated=generated, stop=stop)
    cached = usage.cache_read_input_tokens or None
    return (finished, Usage(_prompt_tokens(usage) or 0, generated or 0, cached_tokens=cached))


def _prompt_tokens(usage: wire.RemoteUsage) -> int | None:
    """The length of the prompt, whose cached tokens the protocol counts apart; None where it is not known."""
    if usage.input_tokens is None:
        return None
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def _event_failure(error: wire.Error | None) -> GatewayError:
    kind = error.type if error is not None else "api_error"
    if kind in _OVERLOADS:
        return Overloaded("The backend is overloaded.")
    # The remote's type is text that it controls: at most 64 characters of it become the code.
    return BackendFailed("The backend failed while it was answering.", code=f"upstream_{kind}"[:64])
