"""Circuit breaker: whether a server failed so often in a row that other backends are preferred to it.

An open breaker never blocks requests: a server without an alternative is still asked, and any reply closes the breaker.
There is no half-open state and no timer: health probes (`health_check.py`) do the trial requests.

A failure is the server's own: unreachable, cut off, silent, unreadable, or a 5xx status. A refused request (4xx), a
rate limit (429) and a full queue (503) show that the server works.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.errors import BackendError, Fault, GatewayError

COUNTS: Mapping[Fault, bool] = {
    Fault.CONNECT: True,
    Fault.RESET: True,
    Fault.TIMEOUT: True,
    Fault.MALFORMED: True,
    Fault.TOO_BIG: True,
    Fault.IDLE: True,
    Fault.TRUNCATED: True,
}
"""Whether a fault counts as a failure of the server. Every fault has a row."""


class Breaker:
    """Counts consecutive failures of one server.

    Args:
        threshold: consecutive failures that open the breaker.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.failures = 0

    @property
    def open(self) -> bool:
        """Whether other backends are preferred."""
        return self.failures >= self._threshold

    def record_success(self) -> None:
        """Count a complete answer; one closes the breaker."""
        self.failures = 0

    def record_failure(self, error: GatewayError) -> None:
        """Count an error, unless it is not the server's fault.

        Errors without a fault came as an HTTP status and are counted by `record_status`, or inside a stream that the
        server could still write.
        """
        if isinstance(error, BackendError) and error.fault is not None and COUNTS[error.fault]:
            self.failures += 1

    def record_status(self, status: int) -> None:
        """Count a reply with an error status: a server error is a failure, everything else a sign of life."""
        # 503 is a full queue in OpenAI's documented codes ("The engine is currently overloaded").
        if status >= 500 and status != 503:
            self.failures += 1
        else:
            self.failures = 0
