"""What backends tell of their work on a request while they do it, to whoever listens: metrics and traces.

The listener is found in a context variable, as the current span is in OpenTelemetry: a request's task sets it, and
work that nobody listens to (health checks, shadows) has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

import msgspec


class Upstream(msgspec.Struct, frozen=True):
    """A server that a backend asks.

    Attributes:
        backend: the backend's name.
        provider: the protocol that the server speaks, as OpenTelemetry's `gen_ai.provider.name` has it.
        address, port: of the server's URL.
    """

    backend: str
    provider: str
    address: str
    port: int


class Phases(msgspec.Struct, frozen=True, gc=False):
    """One sequence's way through an engine. Times are seconds of the machine's monotonic clock.

    Attributes:
        queued: the engine received it.
        admitted: it came into the batch for the first time.
        first_token, last_token: the steps ended that made them.
        tokens: how many it generated.
    """

    queued: float
    admitted: float
    first_token: float
    last_token: float
    tokens: int


class Attempt(Protocol):
    """One request that is sent to an upstream.

    Attributes:
        headers: to send with it, beside the protocol's own.
    """

    headers: tuple[tuple[str, str], ...]

    def answered(self, status: int) -> None:
        """The head of the answer has arrived."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes; `error` says why, if the answer is not complete. Later calls have no effect."""
        ...


class Observer(Protocol):
    """Listens to the work on one request."""

    def attempt(self, upstream: Upstream, model: str) -> Attempt:
        """A request for `model` is about to be sent."""
        ...

    def retried(self, backend: str) -> None:
        """A request to a backend failed and is sent again."""
        ...

    def engine_ran(self, sequences: Sequence[Phases]) -> None:
        """An engine generated these sequences, to their ends or until they were cancelled."""
        ...


OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)
"""The listener of the request that is being worked on."""


class _Unobserved:
    """The attempt to which nobody listens."""

    headers: tuple[tuple[str, str], ...] = ()

    def answered(self, status: int) -> None:
        """Do nothing."""

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing."""


_UNOBSERVED = _Unobserved()


def attempt(upstream: Upstream, model: str) -> Attempt:
    """Tell the listener, if there is one, of a request that is about to be sent."""
    observer = OBSERVER.get()
    return _UNOBSERVED if observer is None else observer.attempt(upstream, model)


def retried(backend: str) -> None:
    """Tell the listener, if there is one, that a request to a backend is sent again."""
    if (observer := OBSERVER.get()) is not None:
        observer.retried(backend)
