"""Shadows: arms that get copies of requests and never answer; their answers are read to the end and discarded.

A copy shares only its content with the request. The client's answer does not depend on it, and a copy over the shadow's
limit is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from gateway.experiments.background import Background, read
from gateway.experiments.experiment import Experiment
from gateway.observability.metrics import Metrics
from gateway.routing.target import Target
from schemas.ir import Events, Generate


class Shadows:
    """One worker's copies.

    Args:
        metrics: counts them, by outcome.
        can_answer: whether a backend, by name, can answer now.
    """

    def __init__(self, metrics: Metrics, can_answer: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._background = Background(can_answer)

    def send(self, request: Generate, targets: tuple[Target, ...], experiment: Experiment) -> None:
        """Send a copy to each of these shadows that is below its limit and can answer."""
        for target in targets:
            limits = target.entity.shadow
            assert limits is not None
            # A shallow copy: requests are frozen, so content can be shared. The id is another one, since both may be in
            # flight on the same backend.
            copy = replace(request, id=f"{request.id}-{target.entity.name}", background=True)
            self._background.begin(
                target,
                partial(read, copy, target, _discard),
                partial(self._ended, target, experiment),
                at_once=limits.max_concurrent_requests,
                seconds=limits.timeout,
            )

    async def aclose(self) -> None:
        """Cancel all copies."""
        await self._background.aclose()

    def _ended(self, target: Target, experiment: Experiment, outcome: str) -> None:
        self._metrics.shadow_requests.add((target.endpoint, target.entity.name, outcome))
        if outcome != "dropped":  # a dropped copy never reached the arm
            experiment.shadowed(target)


def _discard(_: Events) -> None:
    pass
