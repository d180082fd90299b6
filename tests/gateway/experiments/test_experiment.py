"""What is counted, what is excluded, and that every worker reports the counters of all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, Fallback, Guardrail
from gateway.config import Experiment as Settings
from gateway.experiments.experiment import Experiment, Outcome
from gateway.experiments.metrics import METRICS
from gateway.experiments.report import Report
from gateway.experiments.statistics.comparison import decide
from gateway.experiments.statistics.confidence import Interval
from gateway.routing.assignment import bucket_of
from gateway.routing.router import Router
from gateway.routing.target import Plan
from schemas.ir import FinishReason, Generate, TextPrompt, Usage
from tests.gateway.serving import MESSAGES, PAIR, application, chat, endpoint, figures, running, unit_for

GUARDED = msgspec.structs.replace(PAIR, experiment=Settings(guardrail=Guardrail(worse_than=0.02)))
ANSWERED = Outcome("ok", "ok", True, 0.25, 1.5, Usage(5, 11), (FinishReason.EOS,))


class Traffic:
    """Requests of many units at one endpoint, without a server."""

    def __init__(
        self, arms: Endpoint, *experiments: Experiment, users: int = 400, answered: Outcome = ANSWERED
    ) -> None:
        self._users = users
        self._answered = answered
        self._router = Router({"chat": arms}, {"s": ScriptedBackend("s")})
        self._experiments = experiments

    def plan(self, user: str) -> Plan:
        return self._router.plan(Generate(id=user, model="chat", prompts=(TextPrompt("Hi"),), user=user), {})

    def send(self, count: int, fails: str = "") -> None:
        """Half of the requests of the arm `fails` fail."""
        for number in range(count):
            plan, experiment = (
                self.plan(f"user {number % self._users}"),
                self._experiments[number % len(self._experiments)],
            )
            experiment.exposed(plan)
            failed = plan.targets[0].entity.name == fails and number * 7919 % 1013 % 2
            experiment.ended(plan, Outcome("backend_failed") if failed else self._answered)


def test_report_of_an_arm() -> None:
    experiment = Experiment("chat", PAIR)
    Traffic(PAIR, experiment).send(6000)
    report = experiment.report()
    assert sum(arm.exposures for arm in report.arms) == 6000
    for arm in report.arms:
        assert arm.means == {
            "success": 1.0,
            "served": 1.0,
            "refused": 0.0,
            "abandoned": 0.0,
            "time_to_first_token": 0.25,
            "inter_token_latency": 0.125,
            "latency": 1.5,
            "prompt_tokens": 5.0,
            "completion_tokens": 11.0,
        }
        assert arm.finish_reasons == {"eos": arm.exposures}
        assert set(arm.excluded.values()) == {0}
    assert {comparison.decision for comparison in report.comparisons} == {"no difference"}
    assert not report.sample_ratio_mismatch


def test_an_arm_with_more_failures_is_worse() -> None:
    experiment = Experiment("chat", PAIR)
    Traffic(PAIR, experiment).send(4000, fails="b")
    by_metric = {comparison.metric: comparison for comparison in experiment.report().comparisons}
    assert by_metric["success"].decision == "worse"
    assert -0.6 < by_metric["success"].low < by_metric["success"].high < -0.4
    assert by_metric["latency"].decision == "no difference"  # of answered requests


def rounded(report: Report) -> str:
    """The report as text. Sums of logarithms depend on the order of the workers in the last digits."""
    text = msgspec.json.encode(report).decode()
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", lambda found: str(round(float(found[0]), 9) + 0.0), text)


@pytest.mark.slow
def test_every_worker_reports_the_counters_of_all(tmp_path: Path) -> None:
    workers = [Experiment("chat", PAIR, tmp_path, number) for number in range(4)]
    alone = Experiment("chat", PAIR)
    Traffic(PAIR, *workers).send(3000, fails="b")
    Traffic(PAIR, alone).send(3000, fails="b")
    assert [rounded(worker.report()) for worker in workers] == [rounded(alone.report())] * 4
    late = Experiment("chat", PAIR, tmp_path, 4)
    assert rounded(late.report()) == rounded(alone.report())


def test_figures_last_until_the_arms_or_their_units_change_or_they_are_reset(tmp_path: Path) -> None:
    Traffic(PAIR, Experiment("chat", PAIR, tmp_path)).send(300)

    def exposures(arms: Endpoint, reset: int = 0) -> int:
        return sum(arm.exposures for arm in Experiment("chat", arms, tmp_path, reset=reset).report().arms)

    settings = Settings(alpha=0.1, margin=0.2, guardrail=Guardrail(), feedback={"liked": "higher"})
    fallback = msgspec.structs.replace(PAIR, experiment=settings, fallback=Fallback(enabled=False))
    assert exposures(fallback) == 300
    assert exposures(endpoint(("a", "scripted", 60), ("b", "scripted", 40))) == 300
    assert exposures(endpoint(("a", "scripted", 50), ("b", "another", 50))) == 0
    assert exposures(endpoint(("a", "scripted", 50), ("c", "scripted", 50))) == 0
    assert exposures(msgspec.structs.replace(PAIR, experiment=Settings(unit=("api_key",)))) == 0
    assert exposures(PAIR, reset=1) == 0


@pytest.mark.slow
def test_a_ramp_ends_in_one_verdict_from_all_its_data(tmp_path: Path) -> None:
    """The traffic of later steps is slower for both arms: means over all steps would call the arm slower."""
    steps = [endpoint(("a", "scripted", 100 - share), ("b", "scripted", share)) for share in (1, 5, 25, 50)]
    for number, arms in enumerate(steps):
        for _ in range(2):  # a restart in the middle of each step
            experiment = Experiment("chat", arms, tmp_path, number % 2)
            slower = Outcome("ok", "ok", True, 0.25, 1.0 + number, Usage(5, 11), (FinishReason.EOS,))
            Traffic(arms, experiment, users=4000, answered=slower).send(2000)
    report = experiment.report()
    assert sum(arm.exposures for arm in report.arms) == 16_000
    assert report.arms[1].means["latency"] > report.arms[0].means["latency"] + 0.3
    by_metric = {comparison.metric: comparison for comparison in report.comparisons}
    assert by_metric["latency"].difference == pytest.approx(0.0, abs=1e-9)
    assert by_metric["latency"].decision == by_metric["success"].decision == "no difference"
    assert not report.sample_ratio_mismatch


LEFT = Outcome("client_gone", streamed=True, total=3.0)
NOTHING = {"refused": 0.0, "abandoned": 0.0}


@pytest.mark.parametrize(
    ("outcome", "means"),
    [
        # A failure counts against the assigned arm, whoever answered in the end.
        (Outcome("backend_failed"), NOTHING | {"success": 0.0, "served": 0.0}),
        (Outcome("ok", "backend_failed", total=9.0, usage=Usage(5, 11)), NOTHING | {"success": 0.0, "served": 1.0}),
        (Outcome("ok", "in_trouble", total=9.0, usage=Usage(5, 11)), NOTHING | {"success": 0.0, "served": 1.0}),
        (Outcome("ok", "model_not_found", usage=Usage(5, 11)), NOTHING | {"success": 0.0, "served": 1.0}),
        (Outcome("context_length", "timeout"), NOTHING | {"success": 0.0, "served": 0.0}),
        (Outcome("client_gone", "overloaded", total=9.0), {"refused": 0.0, "abandoned": 1.0, "success": 0.0}),
        # What an arm that refused, or whose client left, would have done is unknown.
        (Outcome("context_length"), {"refused": 1.0, "abandoned": 0.0}),
        (Outcome("body_too_large"), {"refused": 1.0, "abandoned": 0.0}),
        # It would have lasted at least until the client left.
        (LEFT, {"refused": 0.0, "abandoned": 1.0, "latency": 3.0, "time_to_first_token": 3.0}),
        (
            Outcome("client_gone", streamed=True, first=1.0, total=3.0),
            {"refused": 0.0, "abandoned": 1.0, "latency": 3.0, "time_to_first_token": 1.0},
        ),
        (Outcome("client_gone", total=3.0), {"refused": 0.0, "abandoned": 1.0, "latency": 3.0}),
        # A whole answer has no time to its first token, and none between tokens.
        (
            Outcome("ok", total=2.0, usage=Usage(5, 11)),
            NOTHING | {"success": 1.0, "served": 1.0, "latency": 2.0, "prompt_tokens": 5.0, "completion_tokens": 11.0},
        ),
    ],
)
def test_what_a_request_counts_as(outcome: Outcome, means: dict[str, float]) -> None:
    experiment = Experiment("chat", PAIR)
    plan = Traffic(PAIR).plan("u")
    experiment.exposed(plan)
    experiment.ended(plan, outcome)
    arm = next(arm for arm in experiment.report().arms if arm.exposures)
    assert arm.means == means


def test_requests_that_no_arm_is_to_blame_for_are_counted_apart() -> None:
    experiment = Experiment("chat", PAIR)
    plan = Traffic(PAIR).plan("u")
    experiment.exposed(plan)
    experiment.ended(plan, Outcome("cancelled"))
    experiment.ended(msgspec.structs.replace(plan, unit=None), ANSWERED)
    alone = msgspec.structs.replace(plan, only_one_arm=True)
    experiment.exposed(alone)
    experiment.ended(alone, ANSWERED)
    early = msgspec.structs.replace(plan, arm_loads=True)
    experiment.exposed(early)
    experiment.ended(early, ANSWERED)
    arm = next(arm for arm in experiment.report().arms if arm.exposures)
    assert (arm.exposures, arm.means) == (1, {})
    assert {why: count for why, count in arm.excluded.items() if count} == {
        "cancelled": 1,
        "direct": 1,
        "only_one_arm": 1,
        "loading": 1,
    }


def test_an_arm_whose_requests_do_not_reach_the_comparison_is_named() -> None:
    experiment, traffic = Experiment("chat", PAIR), Traffic(PAIR)
    for number in range(2000):
        plan = traffic.plan(f"user {number % 400}")
        experiment.exposed(plan)
        refused = plan.targets[0].entity.name == "b" and number * 7919 % 1013 % 3 == 0
        experiment.ended(plan, Outcome("context_length") if refused else ANSWERED)
    assert experiment.report().uneven_losses == ("b",)
    whole = Experiment("chat", PAIR)
    Traffic(PAIR, whole).send(2000)
    assert whole.report().uneven_losses == ()


def test_requests_that_a_killed_worker_had_begun_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(PAIR)

    def begin(experiment: Experiment, count: int, lost: bool, ends: Outcome = ANSWERED) -> None:
        for number in range(count):
            plan = traffic.plan(f"user {number % 400}")
            experiment.exposed(plan)
            if not (lost and plan.targets[0].entity.name == "b" and number * 7919 % 1013 % 10 == 0):
                experiment.ended(plan, ends)

    def figures_of(experiment: Experiment) -> tuple[int, ...]:
        arms = experiment.report().arms
        return tuple(count for arm in arms for count in (arm.exposures, arm.requests["success"], arm.excluded["lost"]))

    def restarted() -> Experiment:
        monkeypatch.setattr("gateway.experiments.stratum._continued", set())
        return Experiment("chat", PAIR, tmp_path)

    first = restarted()
    begin(first, 1500, lost=True)
    begin(first, 20, lost=False, ends=Outcome("cancelled"))
    exposures_a, ended_a, lost_a, exposures_b, ended_b, lost_b = figures_of(first)
    assert lost_a == lost_b == 0, "these may still end"
    assert figures_of(Experiment("chat", PAIR, tmp_path))[5] == 0, "the same process has other settings now"
    second = restarted()
    missing = 1520 - 20 - ended_a - ended_b
    assert missing > 50
    assert figures_of(second) == (exposures_a, ended_a, 0, exposures_b, ended_b, missing)
    assert second.report().uneven_losses == ("b",)
    begin(second, 100, lost=False)
    assert figures_of(restarted())[2::3] == (0, missing), "counted once"


def test_a_worker_goes_on_with_its_figures_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> None:
        raise OSError("No space left on device")

    Traffic(PAIR, Experiment("chat", PAIR, tmp_path)).send(10)
    monkeypatch.setattr(Path, "write_bytes", write)
    assert sum(arm.exposures for arm in Experiment("chat", PAIR, tmp_path).report().arms) == 10


def test_the_guardrail_stops_an_arm_on_every_worker(tmp_path: Path) -> None:
    one, other = (Experiment("chat", GUARDED, tmp_path, slot) for slot in (0, 1))
    traffic = Traffic(GUARDED, one)
    traffic.send(6, fails="b")
    assert one.stopped() == frozenset()
    traffic.send(4000, fails="b")
    assert one.stopped() == {"b"}
    assert other.stopped() == {"b"}
    assert other.report().arms[1].excluded["stopped"] == 1
    assert not other.report().sample_ratio_mismatch
    router = Router({"chat": GUARDED}, {"s": ScriptedBackend("s")})
    router.stop({"chat": other.stopped()})
    request = Generate(id="r", model="chat", prompts=(TextPrompt("Hi"),), user=unit_for("b"))
    assert router.plan(request, {}).targets[0].entity.name == "a"


def test_the_guardrail_never_stops_the_control_or_an_arm_as_good() -> None:
    experiment = Experiment("chat", GUARDED)
    traffic = Traffic(GUARDED, experiment)
    traffic.send(4000, fails="a")
    assert experiment.stopped() == frozenset()


@pytest.mark.slow
async def test_a_running_gateway_stops_a_worse_arm() -> None:
    app = application(chat=GUARDED)
    async with running(app) as client:
        user = unit_for("b")
        assert (await chat(client, user=user)).headers["served-model-name"] == "b"
        Traffic(GUARDED, app.state.service.experiments.of("chat")).send(4000, fails="b")
        await app.state.service._check_health()
        assert (await chat(client, user=user)).headers["served-model-name"] == "a"
        assert (await chat(client, model="chat:b")).headers["served-model-name"] == "b"


SUCCESS, LATENCY, TOKENS = METRICS[0], METRICS[6], METRICS[8]


@pytest.mark.parametrize(
    ("low", "high", "metric", "decision"),
    [
        (-0.01, 0.01, SUCCESS, "no difference"),
        (0.001, 0.015, SUCCESS, "no difference"),
        (-0.03, 0.01, SUCCESS, "keep collecting"),
        (float("-inf"), float("inf"), SUCCESS, "keep collecting"),
        (0.01, 0.1, SUCCESS, "better"),
        (-0.1, -0.01, SUCCESS, "worse"),
        (0.01, 0.1, LATENCY, "worse"),
        (-0.1, -0.01, LATENCY, "better"),
        (-0.1, -0.01, TOKENS, "lower"),
    ],
)
def test_decisions(low: float, high: float, metric: Any, decision: str) -> None:
    assert decide(Interval((low + high) / 2, low, high), metric, 0.02) == decision


@pytest.mark.slow
async def test_report_of_a_running_gateway() -> None:
    arms = endpoint(("a", "scripted", 40), ("b", "error", 30), ("c", "context-length", 30))
    shares = {"a": 40.0, "b": 30.0, "c": 30.0}
    async with running(application(chat=arms)) as client:
        for stream in (False, True):
            for arm in "abc":
                await chat(client, user=unit_for(arm, weights=shares), stream=stream)
        await chat(client, model="chat:a")
        await client.post("/serving-endpoints/chat/served-models/b/invocations", json={"messages": MESSAGES})
        found = await figures(client)
        assert (found["a"]["exposures"], found["a"]["means"]["success"], found["a"]["finish_reasons"]) == (
            2,
            1.0,
            {"eos": 2},
        )
        assert found["a"]["apart"]["direct"] == 1
        assert (found["b"]["exposures"], found["b"]["means"]) == (2, NOTHING | {"success": 0.0, "served": 1.0})
        assert (found["b"]["apart"]["fell_back"], found["b"]["apart"]["direct"]) == (2, 1)
        assert found["c"]["means"] == {"refused": 1.0, "abandoned": 0.0}
        answer = await client.get("/serving-endpoints/chat/experiment")
        assert answer.json()["comparisons"][0]["low"] is None
        assert (await client.get("/serving-endpoints/other/experiment")).status_code == 404


async def test_requests_that_fail_alike_at_two_arms_have_fallen_back() -> None:
    arms = endpoint(("a", "error", 50), ("b", "error", 50))
    async with running(application(chat=arms)) as client:
        for arm in "aab":
            assert (await chat(client, user=unit_for(arm))).status_code == 502
        found = await figures(client)
        assert [found[arm]["apart"]["fell_back"] for arm in "ab"] == [2, 1]
        assert found["a"]["means"] == NOTHING | {"success": 0.0, "served": 0.0}


async def test_the_report_says_that_its_figures_were_removed(tmp_path: Path) -> None:
    server = msgspec.structs.replace(Config().server, state_file=str(tmp_path / "state.json"))
    config = Config(server=server, backends={"s": {"kind": "scripted"}}, endpoints={"chat": PAIR})
    async with running(create_app(config, {"s": ScriptedBackend("s")})) as client:
        shutil.rmtree(tmp_path / "state.json.experiments")
        assert (await chat(client)).status_code == 200
        answer = await client.get("/serving-endpoints/chat/experiment")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
        assert "removed from the disk" in answer.text


async def test_the_report_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEYS", "right")
    server = msgspec.structs.replace(Config().server, keys_env="THE_KEYS")
    config = Config(server=server, backends={"s": {"kind": "scripted"}}, endpoints={"chat": PAIR})
    async with running(create_app(config, {"s": ScriptedBackend("s")})) as client:
        assert (await client.get("/serving-endpoints/chat/experiment")).status_code == 401
        headers = {"authorization": "Bearer right"}
        assert (await client.get("/serving-endpoints/chat/experiment", headers=headers)).status_code == 200


def test_buckets_do_not_depend_on_the_assignment() -> None:
    assert len({bucket_of(str(number)) for number in range(10_000)}) == 512
