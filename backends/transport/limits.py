"""Bounds on the connections to one upstream."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
# The upper bound is for infinity alone: timers and deadlines that are sent cannot express it.
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class TransportLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds. Sizes in bytes, times in seconds.

    Attributes:
        connections: open at once. A connection carries one exchange at a time, so this bounds concurrent requests, too.
            Over HTTP/2, one connection carries all; this bounds its exchanges, of which it has 100 at most.
        waiting: requests that may wait for a connection; one more is refused.
        queue_timeout: how long a request may wait for a connection; then it is refused, so that under overload the
            upstream works on requests whose clients still wait.
        short_first: let short requests (prompt and `max_tokens`) overtake long ones that wait.
        keep_alive: how long an idle connection may be reused. Choose less than the upstream's own keep-alive timeout: a
            connection that the upstream closes is dropped at once, but a request that crosses the close is sent twice.
        head: size of a response's status line and headers.
        body: size of the body of an answer that is not streamed. Of streams, each event is bounded.
        buffered: received bytes of a body that the caller has not read; above it the socket is not read
            (back-pressure).
        linger: how long the end of the body may take after a complete answer, for its connection to be reused.
    """

    connections: Count = 1024  # each is a file descriptor as well
    waiting: Annotated[int, msgspec.Meta(ge=0)] = 1024
    queue_timeout: Seconds = 10.0
    short_first: bool = False
    keep_alive: NotNegative = 60.0
    head: Count = 64 * 1024
    body: Count = 16 * 1024 * 1024  # whole answers with many log-probabilities reach megabytes
    buffered: Count = 64 * 1024
    linger: NotNegative = 1.0
