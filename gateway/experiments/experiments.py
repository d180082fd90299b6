"""All experiments of one worker: the one door through which the rest of the gateway reaches this package.

Strategy: `Router` says whether a request's endpoint has an experiment. If so, `Experiments.enter` counts the exposure,
sends the copies for shadows and returns an `Exposure`, which the request keeps: it observes the answer for pairs and
counts the outcome, in the experiment that the request entered, whatever is deployed meanwhile. A request of any other
endpoint calls nothing here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config import Endpoint
from gateway.experiments.experiment import Experiment, Outcome, key
from gateway.experiments.feedback_ring import Answered, FeedbackRing
from gateway.experiments.paired import Pairing
from gateway.experiments.report import Report
from gateway.experiments.shadow import Shadows
from gateway.observability.metrics import Metrics
from gateway.routing.target import Plan, Target
from schemas.errors import InvalidRequest, ModelNotFound
from schemas.ir import Events, Generate, Request


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """One request in an experiment, from its assignment to its outcome."""

    _request_id: str
    _plan: Plan
    _experiment: Experiment
    _pairing: Pairing
    _feedback: FeedbackRing

    def observe(
        self, events: AsyncGenerator[Events, None], request: Generate, target: Target
    ) -> AsyncGenerator[Events, None]:
        """The same events; if they are the control's and drawn, a pair is made of them once they have ended."""
        return self._pairing.follow(events, request, self._plan, target, self._experiment)

    def end(self, last: Target, outcome: Outcome) -> None:
        """Count the outcome; `last` is the target that was asked last. Remembers who answered if feedback may come."""
        answered = self._experiment.ended(self._plan, last, outcome)
        if answered is not None:
            self._feedback.note(self._request_id, Answered(self._experiment.tag, *answered))


class Experiments:
    """One worker's experiments, by endpoint.

    Args:
        metrics: counts copies and pairs, by outcome.
        can_answer: whether a backend, by name, has room for background work now.
        worker: 16 hexadecimal digits with which the ids of this worker's requests begin.
        folder: where workers share counters and feedback; None for a worker alone.
        slot: this worker's place in `folder`, which it takes over from one that ended.
    """

    def __init__(
        self, metrics: Metrics, can_answer: Callable[[str], bool], worker: str, folder: Path | None, slot: str
    ) -> None:
        self._folder = folder
        self._slot = slot
        self._feedback = FeedbackRing(worker, folder / "requests" if folder is not None else None, slot)
        self._shadows = Shadows(metrics, can_answer)
        self._pairing = Pairing(metrics, can_answer)
        self._experiments: dict[str, Experiment] = {}

    def serve(self, endpoints: Mapping[str, tuple[Endpoint, int]]) -> None:
        """Replace the experiments by those of the deployed endpoints.

        An experiment whose endpoint is unchanged goes on; the counters of one that ended are removed.

        Args:
            endpoints: by name, each with the time since which it is in force (Unix time in nanoseconds).
        """
        # By key: it covers name, configuration and time, so an endpoint that was changed and changed back begins anew.
        old = {experiment.key: experiment for experiment in self._experiments.values()}
        self._experiments = {}
        for name, (endpoint, since) in endpoints.items():
            if endpoint.has_experiment:
                unchanged = old.pop(key(name, endpoint, since), None)
                self._experiments[name] = unchanged or Experiment(name, endpoint, self._folder, self._slot, since)
        # Requests in flight keep the closed experiment (`Exposure`): they count into memory that nobody reads any more.
        for experiment in old.values():
            experiment.close()

    def enter(self, request: Request, plan: Plan, *, shadowed: bool = True) -> Exposure:
        """Count that a request was assigned, and send its copies to the shadows.

        Args:
            request: what was asked.
            plan: of an endpoint that has an experiment.
            shadowed: whether copies may be sent.
        """
        # Router and experiments are replaced together (`Service._serve`), so a plan with an experiment finds it.
        experiment = self._experiments[plan.targets[0].endpoint]
        # Counted at assignment, before any target is asked: what happens later cannot change the split.
        experiment.exposed(plan)
        if shadowed and plan.shadows and isinstance(request, Generate):
            self._shadows.send(request, plan.shadows, experiment)
        return Exposure(request.id, plan, experiment, self._pairing, self._feedback)

    def of(self, endpoint: str) -> Experiment:
        """The experiment of an endpoint.

        Raises:
            schemas.errors.ModelNotFound: the endpoint has none.
        """
        if (experiment := self._experiments.get(endpoint)) is None:
            raise ModelNotFound(
                f"The endpoint '{endpoint}' has no experiment: it has one served entity and no feedback metric."
            )
        return experiment

    def report(self, endpoint: str) -> Report:
        """The report of an endpoint's experiment, over all workers.

        Raises:
            schemas.errors.ModelNotFound: the endpoint has none.
        """
        return self.of(endpoint).report()

    def feedback(self, request_id: str, metric: str, value: float) -> None:
        """Count a user's value for an answer; of several values for one metric the last counts.

        Raises:
            schemas.errors.InvalidRequest: no such answer is remembered, or its endpoint has no such metric.
        """
        answered = self._feedback.find(request_id)
        experiment = None
        if answered is not None:
            # The tag finds no experiment if the endpoint was changed since: feedback for an old arm is refused.
            experiment = next((each for each in self._experiments.values() if each.tag == answered.experiment), None)
        if answered is None or experiment is None:
            raise InvalidRequest("No answer with this id is remembered that could be compared.", param="request_id")
        # The metric is checked before the lock: an unknown name must not touch the entry.
        number = experiment.metric(metric)
        with self._feedback.replacing(request_id, number, value) as before:
            experiment.feedback(answered.arm, answered.bucket, number, value, before)

    def stopped(self) -> dict[str, Collection[str]]:
        """The arms that guardrails have stopped, by endpoint."""
        return {name: experiment.stopped() for name, experiment in self._experiments.items()}

    async def aclose(self) -> None:
        """Stop the background work."""
        await self._shadows.aclose()
        await self._pairing.aclose()
