"""When a request that was not answered is sent again. Nothing here knows of HTTP or of streams.

Only what an upstream did not begin to answer is asked again, because nothing may be generated twice. tenacity does the
waiting and counting, and costs nothing until something failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_random_exponential,
)

from backends.remote.options import Retries
from schemas.errors import BackendTimeout, BackendUnavailable, GatewayError

T = TypeVar("T")


class Budget:
    """How many retries all requests together may still make: each request adds `ratio`, each retry takes 1.

    Args:
        ratio: retries per request.
        most: what a quiet time can save up, for a burst.
    """

    def __init__(self, ratio: float, most: float = 10.0) -> None:
        self._ratio = ratio
        self._most = most
        self.left = most if ratio else 0.0

    def earn(self) -> None:
        """A request came."""
        self.left = min(self._most, self.left + self._ratio)

    def spend(self) -> bool:
        """Whether there may be one more retry, which is then accounted for."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


def again_after(error: BaseException, resets: int) -> bool:
    """Whether a request that failed so may be sent again.

    Args:
        error: what happened before the first event.
        resets: how often the upstream has now broken the connection, having perhaps begun.
    """
    if isinstance(error, BackendUnavailable):  # not reached, 502, 503
        return error.code != "upstream_reset" or resets <= 1
    return isinstance(error, BackendTimeout) and error.code is None  # 504; a deadline of ours has passed


class Retrier:
    """The policy of one backend.

    Args:
        policy: how often, how soon.
        failed: told of every attempt that failed.
    """

    def __init__(self, policy: Retries, failed: Callable[[GatewayError], None] = lambda _: None) -> None:
        self._policy = policy
        self._failed = failed
        self.budget = Budget(policy.budget)

    async def run(self, attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
        """The first attempt that succeeds, or the last one's failure. `deadline`: of the loop's clock."""
        self.budget.earn()
        try:
            return await attempt()
        except GatewayError as error:
            self._failed(error)
            if not again_after(error, 1):
                raise
            return await self._again(attempt, error, deadline)

    async def _again(self, attempt: Callable[[], Awaitable[T]], first: GatewayError, deadline: float) -> T:
        failed: GatewayError | None = first
        resets = 0

        async def next_attempt() -> T:
            nonlocal failed
            if failed is not None:  # tenacity counts the attempt that was made before it came in
                error, failed = failed, None
                raise error
            try:
                return await attempt()
            except GatewayError as error:
                self._failed(error)
                raise

        def worth_it(error: BaseException) -> bool:
            nonlocal resets
            resets += isinstance(error, GatewayError) and error.code == "upstream_reset"
            return again_after(error, resets)

        return await AsyncRetrying(
            stop=self._stop(deadline),
            wait=_wait(self._policy),
            retry=retry_if_exception(worth_it),
            reraise=True,
        )(next_attempt)

    def _stop(self, deadline: float) -> Callable[[RetryCallState], bool]:
        """Stop after so many attempts, when the pause would end too late, or when there is no budget left."""

        def stop(state: RetryCallState) -> bool:
            late = asyncio.get_running_loop().time() + state.upcoming_sleep >= deadline
            return state.attempt_number >= self._policy.attempts or late or not self.budget.spend()

        return stop


def _wait(policy: Retries) -> Callable[[RetryCallState], float]:
    """Full jitter, but not before the upstream said."""
    jitter = wait_random_exponential(multiplier=policy.base, max=policy.cap)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        told = error.retry_after if isinstance(error, GatewayError) else None
        return max(jitter(state), told or 0.0)

    return wait
