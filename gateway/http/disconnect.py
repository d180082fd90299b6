"""ASGI's `receive`, run by hand as far as it goes.

Mostly what it has to give is there already, or it waits for a client that does not leave. asyncio's own means, a
timeout and a task for each request, would be a twentieth of all that a request costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

Message = dict[str, Any]


class Reception:
    """One call of `receive`, begun. `message` is what came of it, None as long as it waits."""

    __slots__ = ("_gone", "_steps", "_waits", "message")

    def __init__(self, receive: Callable[[], Awaitable[Message]]) -> None:
        self._steps = receive().__await__()
        self._waits: asyncio.Future[None] | None = None
        self.message: Message | None = None
        self._go_on()

    def __await__(self) -> Generator[Any, None, Message]:
        """Wait in the present task."""
        try:
            while self.message is None:
                yield self._waits
                self._go_on()
        except BaseException:
            self._steps.close()
            raise
        return self.message

    def watch(self, gone: Callable[[], None]) -> None:
        """Wait in no task, and call `gone` when there is a message."""
        self._gone = gone
        self._look()

    def close(self) -> None:
        """Wait no longer."""
        self._steps.close()
        self._waits = None

    def _look(self) -> None:
        if self.message is not None:
            self._gone()
            return
        assert self._waits is not None
        self._waits.add_done_callback(self._wake)

    def _wake(self, _: Any) -> None:
        if self._waits is not None:  # else it was closed when this was already on its way
            self._go_on()
            self._look()

    def _go_on(self) -> None:
        try:
            self._waits = next(self._steps)
        except StopIteration as end:
            self.message = end.value
