"""When a failed request is sent again. Knows nothing of HTTP or streams.

Strategy:
- A request is retried only if the upstream cannot have begun to answer it, so that nothing is generated twice. A
  connection that was reset before the response is the one ambiguous case, and is retried once, unless the transport
  has sent the request twice already (`BackendError.sends`).
- Pauses have full jitter: uniform between 0 and `base * 2^n`, at most `cap` (Marc Brooker, "Exponential Backoff And
  Jitter", AWS Architecture Blog, 2015), and at least the `retry-after` of the upstream. If that is more than `cap`, the
  request is not sent again: another served entity may answer at once, or the client learns how long to wait.
- A token bucket shared by all requests to a backend bounds retries to a fraction of the traffic: an upstream that is
  down gets 1.1 times its load, not three times ("Site Reliability Engineering", chapter 21, "Handling Overload").

tenacity waits and counts. It is entered after the first failure only, so a request that succeeds does not pay for it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from backends.remote.options import Retries
from schemas.errors import BackendError, BackendTimeout, BackendUnavailable, Fault, GatewayError

T = TypeVar("T")

MAX_RETRIES: Mapping[Fault, float] = {
    Fault.CONNECT: math.inf,  # the upstream never saw the request
    Fault.RESET: 1,  # the upstream may have begun: a second reset is likely the request's doing
    Fault.TIMEOUT: 0,  # no time is left
    Fault.MALFORMED: 0,
    Fault.TOO_BIG: 0,
    Fault.IDLE: 0,
    Fault.TRUNCATED: 0,
}
"""How often a request may be sent again after a fault; `Retries.attempts` bounds all. Every fault has a row."""


class RetryBudget:
    """Token bucket for the retries of all requests to a backend: a request adds `ratio` tokens, a retry takes one.

    Args:
        ratio: retries per request.
        capacity: the most tokens that quiet times can save up for a burst. The bucket starts full.
    """

    def __init__(self, ratio: float, capacity: float = 10.0) -> None:
        self._ratio = ratio
        self._capacity = capacity
        # Full at the start, so that the first requests after a restart can be retried. A ratio of 0 turns retries off.
        self.tokens = capacity if ratio else 0.0

    def deposit(self) -> None:
        """Add a request's share."""
        self.tokens = min(self._capacity, self.tokens + self._ratio)

    def withdraw(self) -> bool:
        """Take the token of one retry; False if there is none."""
        if self.tokens < 1.0:  # fractions add up over several requests
            return False
        self.tokens -= 1.0
        return True


def may_retry(error: BaseException, occurrences: int) -> bool:
    """Whether a request that failed with `error` may be sent again.

    Args:
        error: what happened before the first event.
        occurrences: how often the request was sent and failed with this error's fault, this time included.
    """
    if isinstance(error, BackendError) and error.fault is not None:
        # `occurrences` includes this attempt, so 1 allows one retry after the first failure.
        return occurrences <= MAX_RETRIES[error.fault]
    return isinstance(error, BackendUnavailable | BackendTimeout)  # a proxy's status: 408, 502, 503, 504, 529


class Retrier:
    """The retry policy of one backend.

    Args:
        policy: how often and how soon to retry.
        on_failure: called with the error of every failed attempt, once.
        on_retry: called before a request is sent again.
    """

    def __init__(
        self,
        policy: Retries,
        on_failure: Callable[[GatewayError], None] = lambda _: None,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        self._policy = policy
        self._on_failure = on_failure
        self._on_retry = on_retry
        self.budget = RetryBudget(policy.budget)

    async def run(self, attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Return the result of the first attempt that succeeds, or raise the last one's error.

        Args:
            attempt: sends the request once.
            deadline: of the event loop's clock; no pause ends after it.
        """
        # Every request deposits, the successful ones too: the budget is a share of the traffic.
        self.budget.deposit()
        try:
            return await attempt()
        except GatewayError as error:
            self._on_failure(error)
            if not may_retry(error, _sends_of(error)):  # spares tenacity's set-up for errors that are final
                raise
            return await self._retry(partial(self._once, attempt), error, deadline)

    async def _once(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except GatewayError as error:
            self._on_failure(error)
            raise

    async def _retry(self, attempt: Callable[[], Awaitable[T]], first: GatewayError, deadline: float) -> T:
        replay: GatewayError | None = first
        occurrences: Counter[Fault | None] = Counter()

        async def next_attempt() -> T:
            nonlocal replay
            if replay is not None:  # the attempt made before tenacity was entered, so that tenacity counts it
                error, replay = replay, None
                raise error
            self._on_retry()
            return await attempt()

        # Called once per failed attempt. tenacity passes cancellation as well, which `may_retry` refuses.
        def retryable(error: BaseException) -> bool:
            # Counted per fault, so that refused connections do not use up the one retry after a reset.
            fault = error.fault if isinstance(error, BackendError) else None
            occurrences[fault] += _sends_of(error)
            return may_retry(error, occurrences[fault])

        # tenacity calls `retry`, `wait` and `stop` in this order after each failure; `stop` thus knows the pause to
        # come.
        return await AsyncRetrying(
            stop=self._stop(deadline),
            wait=_wait(self._policy),
            retry=retry_if_exception(retryable),
            reraise=True,  # the last error itself, not tenacity's `RetryError`
        )(next_attempt)

    def _stop(self, deadline: float) -> Callable[[RetryCallState], bool]:
        """Stop after `attempts`, when the pause would be too long or end after the deadline, or without budget."""

        def stop(state: RetryCallState) -> bool:
            # An attempt that would start at the deadline could only time out.
            late = asyncio.get_running_loop().time() + state.upcoming_sleep >= deadline
            if state.attempt_number >= self._policy.attempts or late or state.upcoming_sleep > self._policy.cap:
                return True
            # The budget is asked last: it gives a token away, which must then be used.
            return not self.budget.withdraw()

        return stop


def _sends_of(error: BaseException) -> int:
    return error.sends if isinstance(error, BackendError) else 1


def _wait(policy: Retries) -> Callable[[RetryCallState], float]:
    """Full jitter, but at least the pause that the upstream asked for."""
    jitter = wait_random_exponential(multiplier=policy.base, max=policy.cap)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        retry_after = error.retry_after if isinstance(error, GatewayError) else None
        # `retry_after` may exceed `cap`, which ends the retries (`_stop`).
        return max(jitter(state), retry_after or 0.0)

    return wait
