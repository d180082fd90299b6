"""CPU microseconds of assigning a request to an arm and of counting it: `python -m benchmarks.routing`.

A user's first request is assigned by hashes; units that come back are remembered. The median and the least of many
short rounds: other processes on the machine make rounds longer, never shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from statistics import median

from backends.scripted import ScriptedBackend
from gateway.config import Endpoint, ServedEntity
from gateway.config import Experiment as Settings
from gateway.experiments.experiment import Experiment
from gateway.experiments.feedback_ring import FeedbackRing, name_of
from gateway.experiments.outcome import Outcome
from gateway.routing.router import Router
from schemas.ir import FinishReason, Generate, TextPrompt, Usage

ARMS = tuple(
    ServedEntity(name=name, backend="s", traffic_percentage=share) for name, share in (("a", 80), ("b", 10), ("c", 10))
)
USERS, KNOWN = 5000, 500  # more than a policy remembers, and fewer
ROUNDS, CALLS = 200, 500


def main() -> None:
    """Run and print."""
    endpoint = Endpoint(served_entities=ARMS, experiment=Settings(feedback={"liked": "higher"}))
    router = Router({"chat": endpoint}, {"s": ScriptedBackend("s")})
    experiment = Experiment("chat", endpoint)
    requests = [
        Generate(id=f"{number:032x}", model="chat", prompts=(TextPrompt("Hi"),), user=f"user {number}")
        for number in range(USERS)
    ]
    plans = [router.plan(request, {}) for request in requests]
    feedback = FeedbackRing()
    ended = Outcome("ok", "ok", True, 0.1, 1.0, Usage(10, 20), (FinishReason.EOS,))
    asked, again = cycle(requests), cycle(requests[:KNOWN])
    planned = cycle(zip(requests, plans, strict=True))

    def count() -> None:
        request, plan = next(planned)
        experiment.exposed(plan)
        answered = experiment.ended(plan, ended)
        assert answered is not None
        feedback.note(name_of(request.id, b""), answered)

    print(f"assignment, first request of a user   {cost(lambda: router.plan(next(asked), {}))}")
    print(f"assignment, later request             {cost(lambda: router.plan(next(again), {}))}")
    print(f"statistics                            {cost(count)}")
    print(f"a report                              {cost(experiment.report, 1)}")


def cost(call: Callable[[], object], calls: int = CALLS) -> str:
    """CPU microseconds of one call: the median and the least of the rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(calls):
            call()
        rounds.append((time.process_time() - began) / calls * 1e6)
    return f"{median(rounds):7.1f} µs (least {min(rounds):.1f})"


if __name__ == "__main__":
    main()
