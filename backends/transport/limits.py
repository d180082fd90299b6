"""What connections to one upstream may cost."""

from __future__ import annotations

import msgspec


class TransportLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds. Sizes in bytes, times in seconds.

    Attributes:
        connections: open at once; one exchange each, so also the requests that run at once.
        waiting: requests that may wait for a connection; one more is refused.
        keep_alive: how long an idle connection is trusted.
        head: of a response's status line and headers.
        body: of a whole answer. Streams are bounded by event, not in all.
        buffered: of a body that nobody has read yet; then the socket is paused.
        linger: how long the rest of an answer that is already complete may take, for its connection to be used again.
    """

    connections: int = 1024
    waiting: int = 1024
    keep_alive: float = 15.0
    head: int = 64 * 1024
    body: int = 16 * 1024 * 1024
    buffered: int = 64 * 1024
    linger: float = 1.0
