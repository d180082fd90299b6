"""One request's sequences between worker and engine: what was asked, what arrived, what is still to come.

Knows nothing of connections: `link` sends what it hands out and puts in what arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from backends.native.messages import Cancel, Output, Submit
from schemas.errors import GatewayError


class Exchange:
    """The sequences of one request, from submission to their ends.

    What arrives waits here until it is taken, all at once, so that a slow taker gets few large batches. The tokens that
    were asked for bound it.
    """

    def __init__(self, submits: Sequence[Submit], send: Callable[[Submit | Cancel], None]) -> None:
        self.submits = submits
        self._send = send
        self._open = {submit.seq for submit in submits}
        self._waiting: list[Output] = []
        self._news = asyncio.Event()
        self._error: GatewayError | None = None
        self.taken = False
        self.replayed = False

    @property
    def unfinished(self) -> bool:
        """Whether something is still to come."""
        return bool(self._open)

    async def outputs(self) -> list[Output]:
        """All that came since the last call; waits until there is something.

        Raises:
            schemas.errors.BackendError: the engine is gone.
        """
        await self._news.wait()
        if self._waiting:
            self.taken = True
            taken, self._waiting = self._waiting, []
            if self._error is None:
                self._news.clear()
            return taken
        assert self._error is not None
        raise self._error

    def cancel(self, seq: int) -> None:
        """One sequence is not wanted any more."""
        if seq in self._open:
            self._open.discard(seq)
            self._send(Cancel(seq))

    def close(self) -> None:
        """None of them is wanted any more."""
        for seq in tuple(self._open):
            self.cancel(seq)

    def put(self, output: Output) -> None:
        """Something arrived."""
        if output.seq in self._open:
            if output.reason is not None or output.error is not None:
                self._open.discard(output.seq)
            self._waiting.append(output)
            self._news.set()

    def submit(self) -> None:
        """Ask for all of it."""
        for submit in self.submits:
            self._send(submit)

    def rewind(self) -> None:
        """Forget what arrived, to ask again."""
        self.replayed = True
        self._open = {submit.seq for submit in self.submits}
        self._waiting.clear()
        self._news.clear()

    def fail(self, error: GatewayError) -> None:
        """Nothing more will come."""
        self._open.clear()
        self._error = error
        self._news.set()
