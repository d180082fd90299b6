"""The interface of traces: the spans of a request, and what begins and sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from backends.observation import Phases, Upstream

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
"""What a span says."""


class UpstreamSpan(Protocol):
    """The span of one request to an upstream; `headers` are its context, for the upstream."""

    headers: tuple[tuple[str, str], ...]

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        ...

    def end(self, outcome: str) -> None:
        """Note the end and the outcome, "ok" or what failed."""
        ...


class Trace(Protocol):
    """The spans of one request; `id` is its trace's."""

    id: str

    def attempt(self, upstream: Upstream, name: str) -> UpstreamSpan:
        """Begin the span of a request to an upstream."""
        ...

    def engine_ran(self, sequences: Sequence[Phases]) -> None:
        """Note how sequences went through an engine."""
        ...

    def end(self, name: str, attributes: Attributes, answer: Attributes, *, failed: bool) -> None:
        """End all spans.

        Args:
            name: of the spans of engines.
            attributes: of the request's own span.
            answer: of every span that is about the answer: model, tokens, finish reasons.
            failed: whether the request failed, and not by its client's doing.
        """
        ...


class Traces(Protocol):
    """Begins the spans of requests, and sends them."""

    def begin(self, name: str, headers: Mapping[str, str], began: float, attributes: Attributes) -> Trace:
        """Begin the span of a request.

        Args:
            name: of the span.
            headers: the request's; they say which trace it belongs to.
            began: when, on the monotonic clock.
            attributes: known now; the sampler sees them.
        """
        ...

    def close(self) -> None:
        """Send the spans that are left, as far as the collector takes them in a moment."""
        ...
