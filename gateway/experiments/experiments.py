"""All experiments of one worker: the only entry of the rest of the gateway to this package.

Strategy: `Router` says whether a request's endpoint has an experiment. If so, `Experiments.enter` counts the exposure,
sends the copies for shadows and returns an `Exposure`, which the request keeps: it observes the answer for pairs and
counts the outcome, in the experiment that the request entered, whatever is deployed meanwhile. A request of any other
endpoint calls nothing here, and a worker without experiments does not import NumPy (20 MB, and a third of a second).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.access.keys import Keys
from gateway.config import Config, Endpoint
from gateway.experiments.feedback_ring import FeedbackRing, name_of
from gateway.experiments.metrics import FAILURES
from gateway.experiments.old_figures import remove_old
from gateway.experiments.outcome import Outcome
from gateway.experiments.shadow import Shadows
from gateway.observability.metrics import Metrics
from gateway.routing.target import Plan, Target
from gateway.storage.slot import Slot
from schemas.errors import InvalidRequest, ModelNotFound
from schemas.ir import Events, Generate, Request, Tokenize
from schemas.origin import Relay

if TYPE_CHECKING:
    from gateway.experiments.experiment import Experiment
    from gateway.experiments.pairs.pairing import Pairing
    from gateway.experiments.report import Report

log = structlog.get_logger()

_LOOK_SHARE = 0.1
"""Of a worker's time, for looks at the guardrails after failures."""


class UnknownAnswer(InvalidRequest):
    """Feedback for an answer that is not remembered."""

    def __init__(self) -> None:
        super().__init__("No answer with this id is remembered that could be compared.", param="request_id")


class Exposure(msgspec.Struct, frozen=True, eq=False):
    """One request in an experiment, from its assignment to its outcome."""

    _request: Request
    _owner: bytes
    _plan: Plan
    _experiment: Experiment
    _pairing: Pairing
    _feedback: FeedbackRing
    _look: Callable[[Experiment], None]

    def observe(
        self, events: AsyncGenerator[Events, None], request: Generate, target: Target
    ) -> AsyncGenerator[Events, None]:
        """The same events; if they are the control's and drawn, a pair is made of them once they have ended."""
        return self._pairing.follow(events, request, self._plan, target, self._experiment)

    def end(self, outcome: Outcome) -> None:
        """Count the outcome. Remembers who answered if feedback may come."""
        answered = self._experiment.ended(self._plan, outcome)
        experiment = self._experiment
        arm = self._plan.targets[0].entity.name
        if outcome.own in FAILURES and experiment.has_guardrails and arm != experiment.control:
            # Not within this request, which does not wait for the look, and must not fail with it.
            asyncio.get_running_loop().call_soon(self._look, experiment)
        if answered is not None:
            request, owner = self._request, self._owner
            given = None if isinstance(request, Tokenize | Relay) else request.client_request_id
            alias = name_of(given, owner, of_client=True) if given else b""
            self._feedback.note(name_of(request.id, owner), answered, alias)


class Experiments:
    """One worker's experiments, by endpoint.

    Args:
        metrics: counts copies and pairs, by outcome.
        can_answer: whether a backend, by name, has room for background work now.
        keys: says whose answer it is; only the key that asked may send feedback for it.
        on_stop: called when this worker finds that a guardrail has stopped an arm.
        folder: where workers share counters and feedback; None for a worker alone.
    """

    def __init__(
        self,
        metrics: Metrics,
        can_answer: Callable[[str], bool],
        keys: Keys,
        on_stop: Callable[[], None],
        folder: Path | None,
    ) -> None:
        self._keys = keys
        self._on_stop = on_stop
        self._next_look = 0.0
        self._folder = folder
        self._slot = Slot(folder) if folder is not None else None
        self._number = self._slot.number if self._slot is not None else 0
        self._feedback = FeedbackRing(folder / "answers" if folder is not None else None, self._number)
        self._shadows = Shadows(metrics, can_answer)
        self._metrics = metrics
        self._can_answer = can_answer
        self._pairing: Pairing | None = None  # with the first experiment
        self._experiments: dict[str, Experiment] = {}
        self._removed = False

    def serve(self, endpoints: Mapping[str, tuple[Endpoint, int, int]]) -> None:
        """Replace the experiments by those of the deployed endpoints, whose figures go on as long as their arms are the
        same.

        Args:
            endpoints: by name, each with the version of its configuration and the time of the last reset of its figures
                (Unix time in nanoseconds; 0: none).
        """
        for experiment in self._experiments.values():
            experiment.touch()  # they may end here
        # Requests in flight keep their experiment (`Exposure`), whose files are those of the next one if figures go on.
        self._experiments = {
            name: self._experiment(name, *deployed)
            for name, deployed in endpoints.items()
            if deployed[0].has_experiment
        }
        if self._folder is not None and not self._removed and self._number == 0:  # one worker, once
            self._removed = True
            served = {experiment.key for experiment in self._experiments.values()}
            if removed := remove_old(self._folder, served, time()):
                log.info("figures.removed", experiments=removed)

    def enter(self, request: Request, plan: Plan, headers: Mapping[str, str], *, shadowed: bool = True) -> Exposure:
        """Count that a request was assigned, and send its copies to the shadows.

        Args:
            request: what was asked.
            plan: of an endpoint that has an experiment.
            headers: the request's, by lower-case name.
            shadowed: whether copies may be sent.
        """
        # Router and experiments are replaced together (`Service._serve`), so a plan with an experiment finds it.
        experiment = self._experiments[plan.targets[0].endpoint]
        assert self._pairing is not None
        # Counted at assignment, before any target is asked: what happens later cannot change the split.
        experiment.exposed(plan)
        if shadowed and plan.shadows and isinstance(request, Generate):
            self._shadows.send(request, plan, experiment)
        owner = self._keys.owner(headers) if experiment.takes_feedback else b""
        return Exposure(request, owner, plan, experiment, self._pairing, self._feedback, self._look)

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

    def feedback(self, name: bytes, metric: str, value: float) -> None:
        """Count a user's value for an answer; of several values for one metric the last counts.

        Args:
            name: the answer's (`name_of`).
            metric: the metric's name.
            value: the user's.

        Raises:
            UnknownAnswer: no such answer is remembered.
            schemas.errors.InvalidRequest: its endpoint has no such metric or value.
        """
        answered = self._feedback.find(name)
        if answered is not None:
            for experiment in self._experiments.values():
                if (split := experiment.split_of(answered.stratum)) is not None:
                    # Checked before the lock: an unknown name must not touch the entry.
                    experiment.check_feedback(metric, value)
                    with self._feedback.replacing(name, metric, value) as before:
                        experiment.feedback(split, answered, metric, value, before)
                    return
        # No experiment has the tag if the endpoint's arms were changed since: feedback for an old arm is refused.
        raise UnknownAnswer

    def keys(self) -> list[str]:
        """What the figures of the experiments belong to (`gateway.experiments.experiment.key`)."""
        return [experiment.key for experiment in self._experiments.values()]

    def stopped(self) -> dict[str, Collection[str]]:
        """The arms that guardrails have stopped, by endpoint."""
        return {name: experiment.stopped() for name, experiment in self._experiments.items()}

    def _look(self, experiment: Experiment) -> None:
        """Look at once after a failure whether the guardrails have anything to stop, so that a dead arm gets few more
        requests. Not too often: during an outage every request fails, and a look reads the files of all workers.
        """
        began = monotonic()
        if began < self._next_look:
            return
        known = experiment.known_stops
        if experiment.stopped() != known:
            self._on_stop()
        ended = monotonic()
        self._next_look = ended + (ended - began) / _LOOK_SHARE

    def _experiment(self, name: str, endpoint: Endpoint, version: int, reset: int) -> Experiment:
        from gateway.experiments.experiment import Experiment
        from gateway.experiments.pairs.pairing import Pairing

        if self._pairing is None:
            self._pairing = Pairing(self._metrics, self._can_answer)
        return Experiment(name, endpoint, self._folder, self._number, version=version, reset=reset)

    async def aclose(self) -> None:
        """Stop the background work."""
        await self._shadows.aclose()
        if self._pairing is not None:
            await self._pairing.aclose()
        if self._slot is not None:
            self._slot.close()


def figures_folder(config: Config, folder: Path | None) -> Path | None:
    """Where the figures of experiments are kept: beside the state file, so that they last; else with the workers."""
    if config.server.state_file is not None:
        return Path(f"{config.server.state_file}.experiments")
    return folder / "experiments" if folder is not None else None
