"""One call of ASGI's `receive` that waits without a task of its own.

Strategy: ASGI gives a body's pieces and reports a disconnect through `receive`, which is a coroutine. A task for each
request that awaits it, or a timeout around it, would cost a twentieth of what the whole request costs. So the coroutine
is driven by hand: `next` gives the future that it waits for, and that future's callback continues it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from litestar.types import HTTPDisconnectEvent, HTTPRequestEvent, Receive

Message = HTTPRequestEvent | HTTPDisconnectEvent


class PendingMessage:
    """One call of ASGI's `receive`, begun. `message` is its result, None as long as it waits."""

    __slots__ = ("_coroutine", "_on_message", "_waits_for", "message")

    def __init__(self, receive: Receive) -> None:
        # `__await__` gives the iterator that a task would drive: its `next` runs `receive` up to the first future.
        self._coroutine = receive().__await__()
        self._waits_for: asyncio.Future[None] | None = None
        self.message: Message | None = None
        self._advance()

    def __await__(self) -> Generator[Any, None, Message]:
        """Wait in the present task."""
        try:
            while self.message is None:
                # The future is yielded to the task exactly as `receive` yielded it, with the mark that tells `await`
                # from a plain `yield` (`_asyncio_future_blocking`) still set.
                yield self._waits_for
                self._advance()
        # A timeout or a cancellation is thrown in at the `yield`, past the inner coroutine: close that, too.
        except BaseException:
            self._coroutine.close()
            raise
        return self.message

    def watch(self, on_message: Callable[[], object]) -> None:
        """Call `on_message` once there is a message, from the event loop or at once. Occupies no task."""
        self._on_message = on_message
        if self.message is not None:
            on_message()
            return
        assert self._waits_for is not None
        # `receive` may wait for several futures in turn: `_wake` watches the next one until there is a message.
        self._waits_for.add_done_callback(self._wake)

    def close(self) -> None:
        """Stop waiting."""
        # Closing runs the `finally` blocks in `receive`: `asyncio.Event.wait` takes its future off the event's waiters.
        self._coroutine.close()
        self._waits_for = None

    def _wake(self, _: object) -> None:
        if self._waits_for is not None:  # None: closed while this callback was already scheduled
            self._advance()
            self.watch(self._on_message)

    def _advance(self) -> None:
        try:
            self._waits_for = next(self._coroutine)
        except StopIteration as end:  # `receive` returned
            self.message = end.value
