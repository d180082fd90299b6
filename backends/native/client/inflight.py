"""One request's sequences between worker and engine: what was asked, what arrived, what is still to come.

Knows nothing of connections: `link` sends what it hands out and puts in what arrives.

If the engine dies, the next one is asked again for what is unfinished. A sequence's tokens follow from what was asked,
its seed included, so the next engine begins with those that have arrived already: they are compared, and only what
comes after them is news. For the same reason a sequence that kills engines kills each at the same place: one that was
behind the place it had come to before, or got beyond it, did not do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from backends.native.protocol.messages import Cancel, Output, Submit
from schemas.errors import BackendFailed, GatewayError

_DEAD = "The engine stopped while it was answering."
_MOST_ENGINES = 5
"""That may die under a request, wherever it was: what uses up memory may do so somewhere else each time."""


class Diverged(BackendFailed):
    """The next engine does not say what the last one had said: near ties fall otherwise in another batch."""


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
        self._arrived: dict[int, list[int]] = {submit.seq: [] for submit in submits}
        self._repeated: dict[int, int] = {}  # how many of a sequence's arrived tokens the next engine has repeated
        self._deaths: dict[int, int] = {}  # how many engines died while a sequence was at the place where it is
        self._engines = 0
        self.asked = False

    @property
    def suspect(self) -> bool:
        """Whether two engines died while one of its sequences was where it is now."""
        return any(self._deaths.get(seq, 0) > 1 for seq in self._open)

    @property
    def unfinished(self) -> bool:
        """Whether something is still to come."""
        return bool(self._open)

    async def outputs(self) -> list[Output]:
        """All that came since the last call; waits until there is something.

        Raises:
            Diverged: what was said before its engine died does not hold any more.
            schemas.errors.BackendError: the engine is gone.
        """
        await self._news.wait()
        if self._waiting:
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

    def _news_of(self, output: Output) -> Output | None:
        """What an output says beyond what has arrived; None if that is nothing."""
        arrived, begin = self._arrived[output.seq], self._repeated[output.seq]
        repeated = arrived[begin : begin + len(output.ids)]
        if tuple(repeated) != output.ids[: len(repeated)]:
            self.close()
            self.fail(Diverged(_DEAD, code="engine_dead"))
            return None
        self._repeated[output.seq] = end = begin + len(repeated)
        if end < len(arrived) and output.reason is None and output.error is None:
            return None
        del self._repeated[output.seq]
        fresh = output.ids[len(repeated) :]
        if not fresh and output.reason is None and output.error is None:
            return None
        return msgspec.structs.replace(
            output, ids=fresh, logprobs=output.logprobs[len(repeated) :], prompt=(), cached_tokens=0
        )

    def put(self, output: Output) -> None:
        """Something arrived."""
        news = self._news_of(output) if output.seq in self._repeated else output
        if news is None or news.seq not in self._open:
            return
        self._deaths.pop(news.seq, None)
        self._arrived[news.seq] += news.ids
        if news.reason is not None or news.error is not None:
            self._open.discard(news.seq)
        self._waiting.append(news)
        self._news.set()

    def submit(self) -> None:
        """Ask for what has not ended."""
        self.asked = True
        for submit in self.submits:
            if submit.seq in self._open:
                self._send(msgspec.structs.replace(submit, again=True) if self._engines else submit)

    def rewind(self) -> bool:
        """The engine is gone. The next will be asked for what is unfinished, and begin with what has arrived.

        Returns:
            Whether this request may be what killed it and one before.
        """
        if not self.asked:
            return False
        self.asked = False
        self._engines += 1
        if self._engines == _MOST_ENGINES:
            self.fail_dead()
        there = [seq for seq in self._open if seq not in self._repeated]
        for seq in there:
            self._deaths[seq] = self._deaths.get(seq, 0) + 1
        self._repeated = {seq: 0 for seq in self._open if self._arrived[seq]}
        return any(self._deaths[seq] > 1 for seq in there)

    def fail_dead(self) -> None:
        """No engine will be asked any more."""
        self.fail(BackendFailed(_DEAD, code="engine_dead"))

    def fail(self, error: GatewayError) -> None:
        """Nothing more will come."""
        self._open.clear()
        self._error = error
        self._news.set()
