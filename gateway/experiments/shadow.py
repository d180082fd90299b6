"""Copies of requests, for arms that never answer: what they say is read to the end and thrown away.

A copy shares nothing with the request but its content. It waits for nobody and nobody waits for it: what is over an
arm's limit is not sent, and the live arm's answer neither shows nor depends on how a copy fares.
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
    """One worker's copies under way.

    Args:
        metrics: counts them, by outcome.
        ready: whether a backend can answer now.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._background = Background(ready)

    def send(self, request: Generate, targets: tuple[Target, ...], experiment: Experiment) -> None:
        """Send a copy to each of these arms that has room and can answer."""
        for target in targets:
            limits = target.entity.shadow
            assert limits is not None
            copy = replace(request, id=f"{request.id}-{target.entity.name}", background=True)
            self._background.begin(
                target,
                partial(read, copy, target, _forget),
                partial(self._ended, target, experiment),
                at_once=limits.max_concurrent_requests,
                seconds=limits.timeout,
            )

    async def aclose(self) -> None:
        """Stop all of them."""
        await self._background.aclose()

    def _ended(self, target: Target, experiment: Experiment, outcome: str) -> None:
        self._metrics.shadowed(target.endpoint, target.entity.name, outcome)
        if outcome != "dropped":
            experiment.shadowed(target)


def _forget(_: Events) -> None:
    pass
