"""CPU microseconds of assigning a request to an arm and of counting it: `python -m benchmarks.routing`."""

from __future__ import annotations

import time
from collections.abc import Callable

from backends.scripted import ScriptedBackend
from gateway.config import Endpoint, ServedEntity
from gateway.config import Experiment as Settings
from gateway.experiments.experiment import Experiment, Outcome
from gateway.experiments.feedback_ring import FeedbackRing, name_of
from gateway.routing.router import Router
from schemas.ir import FinishReason, Generate, TextPrompt, Usage

ARMS = tuple(
    ServedEntity(name=name, backend="s", traffic_percentage=share) for name, share in (("a", 80), ("b", 10), ("c", 10))
)
CALLS = 100_000


def main() -> None:
    """Run and print."""
    endpoint = Endpoint(served_entities=ARMS, experiment=Settings(feedback={"liked": "higher"}))
    router = Router({"chat": endpoint}, {"s": ScriptedBackend("s")})
    experiment = Experiment("chat", endpoint)
    request = Generate(id="r", model="chat", prompts=(TextPrompt("Hi"),), user="somebody")
    plan = router.plan(request, {})
    feedback = FeedbackRing()
    ended = Outcome("ok", "ok", True, 0.1, 1.0, Usage(10, 20), (FinishReason.EOS,))

    def count() -> None:
        experiment.exposed(plan)
        answered = experiment.ended(plan, ended)
        assert answered is not None
        feedback.note(name_of(request.id, b""), answered)

    print(f"assignment  {cost(lambda: router.plan(request, {})):5.1f} µs a request")
    print(f"statistics  {cost(count):5.1f} µs a request")
    began = time.process_time()
    experiment.report()
    print(f"a report    {(time.process_time() - began) * 1e6:5.0f} µs")


def cost(call: Callable[[], object]) -> float:
    """CPU microseconds of one call."""
    began = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - began) / CALLS * 1e6


if __name__ == "__main__":
    main()
