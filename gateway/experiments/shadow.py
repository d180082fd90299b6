"""Shadows: arms that get copies of requests and never answer; their answers are measured and discarded.

A copy shares only its content with the request. The client's answer does not depend on it, and a copy over the shadow's
limit is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway.experiments.background import Background, read
from gateway.observability.metrics import Metrics
from gateway.routing.target import Plan, Target
from schemas.ir import Delta, Events, Generate, Usage

if TYPE_CHECKING:
    from gateway.experiments.experiment import Experiment


class Shadows:
    """One worker's copies.

    Args:
        metrics: counts them, by outcome.
        can_answer: whether a backend, by name, can answer now.
    """

    def __init__(self, metrics: Metrics, can_answer: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._background = Background(can_answer)

    def send(self, request: Generate, plan: Plan, experiment: Experiment) -> None:
        """Send a copy to each shadow of the plan that is below its limit and can answer."""
        if plan.unit is None:  # the client named its served entity
            return
        for target in plan.shadows:
            limits = target.entity.shadow
            assert limits is not None
            # A shallow copy: requests are frozen, so content can be shared. The id is another one, since both may be in
            # flight on the same backend.
            copy = replace(request, id=f"{request.id}-{target.entity.name}", background=True)
            measured = _Measured()
            self._background.begin(
                target,
                partial(read, copy, target, measured.take),
                partial(self._ended, target, plan.unit.bucket, measured, experiment),
                at_once=limits.max_concurrent_requests,
                seconds=limits.timeout,
            )

    async def aclose(self) -> None:
        """Cancel all copies."""
        await self._background.aclose()

    def _ended(self, target: Target, bucket: int, measured: _Measured, experiment: Experiment, outcome: str) -> None:
        self._metrics.shadow_requests.add((target.endpoint, target.entity.name, outcome))
        experiment.shadowed(target, bucket, measured.values(outcome))


@dataclass(slots=True, eq=False)
class _Measured:
    """What is measured of a copy."""

    began: float = field(default_factory=monotonic)
    first: float | None = None
    tokens: int | None = None

    def take(self, batch: Events) -> None:
        """Note when the first token came, and how many there were; the answer itself is discarded."""
        for event in batch:
            if isinstance(event, Delta) and self.first is None:
                self.first = monotonic() - self.began
            elif isinstance(event, Usage):
                self.tokens = event.completion_tokens

    def values(self, outcome: str) -> tuple[float | None, ...]:
        """The values in the order of `SHADOW_METRICS`, now that the copy has ended."""
        if outcome == "dropped":
            return 0.0, None, None, None, None
        if outcome == "cancelled":  # by the shutdown: the shadow is not to blame
            return 1.0, None, None, None, None
        if outcome != "ok":
            return 1.0, 0.0, None, None, None
        return 1.0, 1.0, self.first, monotonic() - self.began, self.tokens
