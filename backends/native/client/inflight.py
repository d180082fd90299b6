"""One request's sequences between worker and engine: submitted, received so far, still unfinished.

Does no I/O: a link to an engine sends what a request submits, and `EngineClient` delivers the outputs that arrive.

Strategy:
- Outputs are buffered until the reader takes all of them at once, so that a slow reader gets few large batches.
- A sequence's next token is a function of its `Submit`, the seed included, and of its tokens so far. After an engine
  crash the request is submitted to another engine with the tokens that were received: that engine computes them as it
  does a prompt, in a few steps, and goes on behind them.
- For the same reason a poison request crashes every engine at the same token. Crashes are counted per sequence; each
  new token resets the count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from backends.native.protocol.blocks import prompt_keys
from backends.native.protocol.messages import Cancel, Output, Submit
from backends.observation import Phases
from schemas.errors import BackendFailed, GatewayError

_ENGINE_DEAD = "The engine stopped while it was answering."
_QUARANTINE_CRASHES = 2
"""Engine crashes at one token after which a request is quarantined."""
_MAX_CRASHES = 5
"""Engine crashes after which a request fails, at whatever tokens: one that exhausts memory may crash anywhere."""


class Link(Protocol):
    """What a request needs of the link to its engine.

    `in_flight` counts the sequences that were submitted over it and whose request has not left it.
    """

    in_flight: int

    def send(self, message: Submit | Cancel) -> None:
        """Send a message, if there is an engine."""
        ...


@dataclass(slots=True, eq=False)
class _Sequence:
    """A sequence of the request.

    Attributes:
        submit: the message that asks for it.
        received: its token ids so far, from all engines.
        crashes: engines that died while the sequence was at its present token.
        finished: it ended, failed or was cancelled.
        times: when the engine that made its first token received and admitted it.
        first_token, last_token: when the steps ended that made them.
    """

    submit: Submit
    received: list[int] = field(default_factory=list)
    crashes: int = 0
    finished: bool = False
    times: tuple[float, ...] = ()
    first_token: float = 0.0
    last_token: float = 0.0


class InFlightRequest:
    """The sequences of one request, from submission to their ends.

    `link` leads to the engine that was asked; None: none was yet, or it died. The buffer of outputs is bounded by the
    tokens that the request asked for.

    Args:
        submits: one message per sequence.
        conversation: what the requests of a conversation share, if the request is of one.
        destinations: names of the engines that an endpoint picker has chosen, the best one first.
    """

    def __init__(
        self, submits: Sequence[Submit], conversation: str | None = None, destinations: Sequence[str] = ()
    ) -> None:
        self.conversation = conversation
        self.destinations = destinations
        self._block_keys: list[bytes] | None = None
        self.link: Link | None = None
        self._sequences = {submit.seq: _Sequence(submit) for submit in submits}
        self.seqs = tuple(self._sequences)
        self._buffer: list[Output] = []
        self._arrived = asyncio.Event()  # set while the buffer holds outputs, and for good by an error
        self._error: GatewayError | None = None
        self._crashes = 0

    @property
    def unfinished(self) -> bool:
        """Whether outputs are still expected."""
        return not all(sequence.finished for sequence in self._sequences.values())

    @property
    def quarantined(self) -> bool:
        """Whether two engines died while one of its sequences was at its present token."""
        return any(each.crashes >= _QUARANTINE_CRASHES for each in self._sequences.values() if not each.finished)

    @property
    def was_interrupted(self) -> bool:
        """Whether an engine died while one of its sequences was at its present token."""
        return any(each.crashes > 0 for each in self._sequences.values() if not each.finished)

    @property
    def lora_adapter(self) -> str:
        """The LoRA adapter of its sequences; empty: none."""
        return next((each.submit.lora_adapter for each in self._sequences.values()), "")

    def name_blocks(self, size: int) -> list[bytes]:
        """The keys of the blocks that its first prompt may find cached, of `size` tokens each; 0: blocks have no keys.

        They are computed once, and handed on to the engine, which needs them, too.
        """
        if self._block_keys is None:
            first = next(iter(self._sequences.values())).submit
            self._block_keys = prompt_keys(first, size) if size else []
            joined = b"".join(self._block_keys)
            for sequence in self._sequences.values():
                # All choices of a prompt have one tuple.
                if sequence.submit.prompt is first.prompt:
                    sequence.submit = replace(sequence.submit, block_keys=joined)
        return self._block_keys

    async def outputs(self) -> list[Output]:
        """Take all outputs since the last call; wait for at least one.

        Raises:
            schemas.errors.BackendError: the engine is gone, and the request with it.
        """
        # Buffered outputs come before the error, so that no token is lost that the engine had generated before it died.
        await self._arrived.wait()
        if self._buffer:
            taken, self._buffer = self._buffer, []
            # With an error the event stays set: the next call raises without waiting.
            if self._error is None:
                self._arrived.clear()
            return taken
        assert self._error is not None
        raise self._error

    def submit(self, link: Link) -> None:
        """Submit all unfinished sequences to the engine of `link`."""
        self.link = link
        link.in_flight += len(self.seqs)
        for sequence in self._sequences.values():
            if not sequence.finished:
                submit = sequence.submit
                if self._crashes:
                    # `again` lets the sequence into a full queue: it was admitted once, and must not fail as
                    # `Overloaded` now.
                    submit = replace(submit, again=True, received=tuple(sequence.received))
                link.send(submit)

    def leave(self) -> None:
        """Have no engine any more; the one that was asked drops the unfinished sequences, if it still runs."""
        if (link := self.link) is not None:
            self.link = None
            link.in_flight -= len(self.seqs)
            for seq, sequence in self._sequences.items():
                if not sequence.finished:
                    link.send(Cancel(seq))

    def deliver(self, output: Output, at: float = 0.0, clock: float = 0.0) -> None:
        """Buffer an output of the present engine.

        Args:
            output: the output.
            at: when its step ended, on this machine's clock.
            clock: what this machine's clock shows when the engine's shows 0.
        """
        sequence = self._sequences[output.seq]
        # The sequence was cancelled while this output was on its way.
        if sequence.finished:
            return
        # A new token: the sequence has passed the place where engines died.
        sequence.crashes = 0
        sequence.received += output.ids
        sequence.finished = output.reason is not None or output.error is not None
        if output.times and not sequence.times:
            sequence.times, sequence.first_token = tuple(time + clock for time in output.times), at
        if output.ids:
            sequence.last_token = at
        self._buffer.append(output)
        self._arrived.set()

    @property
    def phases(self) -> list[Phases]:
        """How the sequences went through the engine, of those that it has given a token."""
        return [
            Phases(each.times[0], each.times[1], each.first_token, each.last_token, len(each.received))
            for each in self._sequences.values()
            if each.times and each.received
        ]

    def cancel(self, seq: int) -> None:
        """Cancel one sequence; a finished one is ignored."""
        sequence = self._sequences[seq]
        if not sequence.finished:
            # Marked before the send, so that `deliver` drops outputs which cross the `Cancel`.
            sequence.finished = True
            if self.link is not None:
                self.link.send(Cancel(seq))

    def close(self) -> None:
        """Cancel all unfinished sequences, and leave the engine."""
        for seq in self.seqs:
            self.cancel(seq)
        self.leave()

    def engine_died(self) -> bool:
        """Leave the engine, and count its crash.

        Returns:
            Whether this request may be the poison: two engines died with one of its sequences at the same token.
        """
        # The request waited for its trial or for an engine, so the dead engine never had it.
        if self.link is None:
            return False
        self.leave()
        self._crashes += 1
        # `reject` finishes all sequences, so the loop below counts nothing for them.
        if self._crashes == _MAX_CRASHES:
            self.reject()
        may_be_poison = False
        for sequence in self._sequences.values():
            if sequence.finished:
                continue
            sequence.crashes += 1
            may_be_poison |= sequence.crashes >= _QUARANTINE_CRASHES
        return may_be_poison

    def reject(self) -> None:
        """Fail the request as one whose engine died; no other engine is asked."""
        self.fail(BackendFailed(_ENGINE_DEAD, code="engine_dead"))

    def fail(self, error: GatewayError) -> None:
        """End all sequences; `outputs` raises `error` once the buffer is empty."""
        for sequence in self._sequences.values():
            sequence.finished = True
        self._error = error
        self._arrived.set()
