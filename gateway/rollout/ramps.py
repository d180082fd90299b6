"""Ramps of all endpoints: decides by the reports of experiments, and changes what is deployed.

Every worker looks every few seconds. The first one that finds a move due writes the state file, which all workers serve
from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from gateway.config import Ramp
from gateway.deployment.deployments import Deployment
from gateway.deployment.ramp import Move, next_percentage
from gateway.deployment.state_file import LiveDeployments
from gateway.experiments.experiments import Experiments

if TYPE_CHECKING:
    from gateway.rollout.full_report import FullReport
    from gateway.rollout.ramp import RampDecision, RampReport

log = structlog.get_logger()

_LOOK_INTERVAL = 5.0
"""Seconds between two looks at a report, which takes the event loop milliseconds; fewer for steps that are shorter."""


class Ramps:
    """One worker's view of all ramps.

    Args:
        live: what is deployed.
        experiments: by which ramps are decided.
        can_answer: whether a backend, by name, can answer now.
    """

    def __init__(self, live: LiveDeployments, experiments: Experiments, can_answer: Callable[[str], bool]) -> None:
        self._live = live
        self._experiments = experiments
        self._can_answer = can_answer
        self._next_look: dict[str, float] = {}

    async def move(self) -> bool:
        """Make the moves that are due; return whether there was one."""
        any_moved = False
        # The mapping of this moment: a refresh during an `await` replaces it, and never alters it.
        for name, deployed in self._live.deployments.items():
            if (ramp := deployed.serving.experiment.ramp) is None or deployed.pending is not None:
                continue
            due = self._due(name, deployed, ramp)
            if due is not None and await self._live.ramp(name, deployed.ramp, *due):
                any_moved = True
                log.info("ramp.moved", model=name, served=ramp.arm, move=due[0], reason=due[1])
        return any_moved

    def full_report(self, endpoint: str) -> FullReport:
        """The report of an endpoint's experiment over all workers, with its ramp.

        Raises:
            schemas.errors.ModelNotFound: the endpoint has none.
        """
        from gateway.rollout.full_report import FullReport  # imports NumPy, which few gateways need

        history = self._experiments.of(endpoint).history()
        return FullReport.of(self._experiments.report(endpoint), self.report(endpoint), history)

    def report(self, endpoint: str) -> RampReport | None:
        """How far an endpoint's ramp has come; None: it has none."""
        deployed = self._live.deployments[endpoint]
        if (ramp := deployed.serving.experiment.ramp) is None:
            return None
        from gateway.rollout.ramp import RampReport, RampStepReport  # imports NumPy, which few gateways need

        state, next_step = deployed.ramp, next_percentage(deployed.serving, deployed.ramp)
        share = next(arm for arm in deployed.serving.served_entities if arm.name == ramp.arm).traffic_percentage
        if state is None:
            waits_for = "" if self._is_ready(deployed, ramp) else "the arm's backend"
            return RampReport(ramp.arm, "waiting", ramp.steps, share, next_step, None, waits_for, ())
        running = state.status == "running"
        return RampReport(
            ramp.arm,
            state.status,
            ramp.steps,
            share,
            next_step,
            state.last.since / 1e9 + ramp.hold if running else None,
            self._decision(endpoint, deployed, ramp).reason if running else "",
            tuple(RampStepReport(step.percentage, step.since / 1e9, step.reason) for step in state.history),
        )

    def _due(self, name: str, deployed: Deployment, ramp: Ramp) -> tuple[Move, str] | None:
        if deployed.ramp is None:
            # A first step to a backend that cannot answer would be a step back at once.
            return ("begin", "first step") if self._is_ready(deployed, ramp) else None
        if deployed.ramp.status != "running" or time.monotonic() < self._next_look.get(name, 0.0):
            return None
        self._next_look[name] = time.monotonic() + min(_LOOK_INTERVAL, ramp.hold)
        decision = self._decision(name, deployed, ramp)
        if decision.move == "hold":
            return None
        if decision.move == "advance" and next_percentage(deployed.serving, deployed.ramp) is None:
            return "finish", decision.reason
        return decision.move, decision.reason

    def _decision(self, name: str, deployed: Deployment, ramp: Ramp) -> RampDecision:
        from gateway.rollout.ramp import decide

        assert deployed.ramp is not None
        held = time.time() - deployed.ramp.last.since / 1e9
        return decide(self._experiments.report(name), ramp, held)

    def _is_ready(self, deployed: Deployment, ramp: Ramp) -> bool:
        return all(self._can_answer(arm.backend) for arm in deployed.serving.served_entities if arm.name == ramp.arm)
