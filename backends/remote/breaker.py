"""Whether a server has failed so often in a row that others are to be preferred.

It ejects nobody: a server that is the only one is asked all the same, so that nothing stays shut by mistake. What
counts is the server's own failure (not reached, cut, silent, unreadable, 5xx); a refusal of a request (4xx), a limit
(429) or a full queue (503) shows that it lives.
"""

from __future__ import annotations

from schemas.errors import GatewayError

TRANSPORT = frozenset(
    {
        "upstream_connect",
        "upstream_reset",
        "upstream_timeout",
        "upstream_malformed",
        "upstream_too_big",
        "stream_idle",
        "truncated",
    }
)
"""Codes of errors that are the transport's or the stream's, not a reply."""


class Breaker:
    """Counts failures in a row.

    Args:
        threshold: so many open it.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.failures = 0

    @property
    def open(self) -> bool:
        """Whether others are to be preferred."""
        return self.failures >= self._threshold

    def succeeded(self) -> None:
        """It answered; one answer heals."""
        self.failures = 0

    def failed(self, error: GatewayError) -> None:
        """It did not; errors that are no failure of the server's change nothing."""
        if error.code in TRANSPORT:
            self.failures += 1

    def replied(self, status: int) -> None:
        """It replied with an error status."""
        if status >= 500 and status != 503:
            self.failures += 1
        else:
            self.failures = 0
