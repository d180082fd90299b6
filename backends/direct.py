"""Asking a server without a task: in one callback of the event loop, with another callback for the answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from adapters.optional import RunWriter
from backends.observation import Observer
from backends.transport.outbox import Outbox
from schemas.completion import Completion
from schemas.ir import Events, Generate, TokenIds


class WholeSink(Protocol):
    """Takes a whole answer: `prepare`, `settle` and `end`. `go_on` and `end` are each the last call."""

    def prepare(self, answer: Completion, token_ids: TokenIds) -> bool:
        """Take the answer, without sending it, and where its token ids come from.

        Returns:
            False: nothing was taken, and a task is to go on.
        """
        ...

    def settle(self) -> None:
        """Count the answer."""
        ...

    def end(self) -> None:
        """Send the answer."""
        ...

    def go_on(self) -> None:
        """Have a task go on, of which nothing was taken."""
        ...


class StreamSink(Protocol):
    """Takes a streamed answer where it arrives. `go_on`, `end` and `fail` are each the last call.

    Attributes:
        full: whether nothing may be given now; `DirectExchange.resume` is to be called once that is over.
        outbox: where chunks of the transfer coding (RFC 9112, section 7.1) may be written, unless it is full, once it
            has begun: as they came, or what `run_writer` writes.
    """

    full: bool
    outbox: Outbox

    def begin(self, events: Events) -> bool:
        """Take the first events; False: nothing was taken of them, and a task is to go on."""
        ...

    def take(self, events: Events) -> None:
        """Take more events, the last of which are to be counted before this returns."""
        ...

    def take_rest(self, events: Events) -> None:
        """Take more events, likewise, that came with the first ones: no time has passed between them."""
        ...

    def note_times(self, times: list[float]) -> None:
        """Count reads with texts that were written there: when they came, on the monotonic clock, in seconds."""
        ...

    def run_writer(self, choice: int) -> RunWriter | None:
        """What writes texts of a choice for it, until more events are taken (`adapters.optional.RunEncoder`)."""
        ...

    def end(self) -> None:
        """The answer is complete."""
        ...

    def fail(self, error: Exception) -> None:
        """The answer is not, or the sink has raised this itself."""
        ...

    def go_on(self) -> None:
        """Have a task go on, of which nothing was taken."""
        ...


class DirectExchange(Protocol):
    """A connection lent to a request, to which nothing was sent yet. `send` or `put_back` must follow."""

    def send(self) -> None:
        """Send the request. `hear` or `hear_stream` must follow in the same turn of the event loop."""
        ...

    def hear(self, observer: Observer, sink: WholeSink) -> None:
        """Give the answer to the sink, if the request was not for a stream."""
        ...

    def hear_stream(self, observer: Observer, sink: StreamSink) -> None:
        """Give the stream to the sink."""
        ...

    def put_back(self) -> None:
        """Send nothing."""
        ...

    def get_ready(self) -> None:
        """Make what reads a stream, for which the server does not wait: it was asked already."""
        ...

    def pause(self) -> None:
        """Wait for nothing more of a stream: its sink is full."""
        ...

    def resume(self) -> None:
        """Go on with a stream."""
        ...

    def leave(self) -> None:
        """End a stream whose client has left. Its sink is called no more."""
        ...

    def hand_over(self) -> Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]:
        """Leave what was sent to a task, and call nobody any more.

        Returns:
            What the coroutine of that task, which asks the backend as ever, is to be wrapped in.
        """
        ...


@runtime_checkable
class AsksDirectly(Protocol):
    """A backend that can be asked without a task."""

    def exchange(self, request: Generate) -> DirectExchange | None:
        """An exchange for a plain request; None: it is to be asked in a task."""
        ...
