"""Pairs of answers: exact counts, and no difference for clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from litestar import Litestar

from backends.base import Health
from backends.scripted import ScriptedBackend
from backends.scripted.tokenizer import EOS, ToyTokenizer
from gateway.app import create_app
from gateway.config import Config, ConfigError, Endpoint, Paired, ServedEntity, Shadow, parse
from gateway.deployment.deployments import changed
from schemas.catalog import Change
from schemas.catalog import ServedEntity as Entity
from schemas.ir import Generate, Token
from tests.gateway.experiments.pairs.reports import ends, likelihoods, pairs_report
from tests.gateway.serving import chat, running

ONE = "the quick brown fox"
TWO = "the quick lazy dog stop"
ALL = Paired(share=1.0, max_concurrent_requests=64)


class Judge(ScriptedBackend):
    """Finds a token of a prompt the less likely the higher its id, by a factor of its own."""

    def __init__(self, name: str, scale: float, options: dict[str, Any] | None = None) -> None:
        says = {
            "one": {"texts": [ONE]},
            "two": {"texts": [TWO]},
            "some": {"texts": [ONE, TWO]},
            "endless": {"repeat": 10**9},
        }
        super().__init__(name, {"scripts": says} | (options or {}))
        self.scale = scale
        self.asked: list[Generate] = []

    def generate(self, request: Generate) -> Any:
        self.asked.append(request)
        return super().generate(request)

    def _prompt_tokens(self, ids: tuple[int, ...], top: int | None) -> tuple[Token, ...]:
        return tuple(
            Token(id, "", self.scale * id if place and top is not None else None) for place, id in enumerate(ids)
        )

    def score(self, text: str) -> float:
        ids = (*ToyTokenizer().encode(text), EOS)
        return self.scale * sum(ids) / len(ids)


def application(
    arm: str = "two",
    paired: Paired = ALL,
    shadow: Shadow | None = None,
    control: str = "one",
    options: dict[str, Any] | None = None,
) -> tuple[Litestar, Judge, Judge]:
    """The control answers everybody, and the arm what it is paired for."""
    arms = (
        ServedEntity(name="control", backend="s", model=control),
        ServedEntity(name="arm", backend="t", model=arm, traffic_percentage=0, shadow=shadow, paired=paired),
    )
    backends = {"s": Judge("s", -0.001), "t": Judge("t", -0.003, options)}
    config = Config(
        backends={name: {"kind": "scripted"} for name in backends}, endpoints={"chat": Endpoint(served_entities=arms)}
    )
    return create_app(config, backends), backends["s"], backends["t"]


@pytest.mark.slow
@pytest.mark.parametrize("shadow", [None, Shadow()])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_pair_is_counted_exactly_and_the_answer_is_the_controls(stream: bool, shadow: Shadow | None) -> None:
    app, control, arm = application(shadow=shadow)
    async with running(app) as client:
        answer = await chat(client, stream=stream)
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "control")
        found = await pairs_report(client, 1)
    assert found["first_divergence"] == {"2-3": 1}
    assert (found["identical"]["mean"], found["identical"]["low"]) == (0.0, 0.0)
    assert found["token_agreement"]["mean"] == pytest.approx(2 / 6)  # of 5 and 6 tokens, the end token included
    assert likelihoods(found) == [
        ("control", *map(pytest.approx, (control.score(ONE), arm.score(ONE), arm.score(ONE) - control.score(ONE)))),
        ("arm", *map(pytest.approx, (control.score(TWO), arm.score(TWO), arm.score(TWO) - control.score(TWO)))),
    ]


@pytest.mark.slow
async def test_the_report_names_the_requests_that_differ_and_shows_texts_only_if_allowed() -> None:
    for text in (False, True):
        app, control, arm = application(paired=Paired(share=1.0, text=text))
        async with running(app) as client:
            id = (await chat(client)).headers["x-request-id"]
            (example,) = (await pairs_report(client, 1))["examples"]
        assert (example["request_id"], example["first_divergence"]) == (id, "2-3")
        differences = (control.score(TWO) - arm.score(TWO), control.score(ONE) - arm.score(ONE))
        assert example["log_likelihood_difference"] == pytest.approx(-max(differences, key=abs))
        texts = (example["prompt"], example["control_answer"], example["arm_answer"])
        assert texts == (("user: Hi", ONE, TWO) if text else ("", "", ""))


@pytest.mark.slow
async def test_answers_that_are_identical_are_no_examples() -> None:
    app, *_ = application(arm="one")
    async with running(app) as client:
        await chat(client)
        found = await pairs_report(client, 1)
    assert (found["identical"]["mean"], found["examples"]) == (1.0, [])


@pytest.mark.slow
async def test_length_and_speed_of_both_arms_on_the_same_prompt() -> None:
    app, *_ = application(arm="halting", options={"scripts": {"halting": {"texts": [TWO], "interval": 0.02}}})
    async with running(app) as client:
        await chat(client)
        control, arm = (await pairs_report(client, 1))["speeds"]
    assert (control["answers_of"], arm["answers_of"]) == ("control", "arm")
    assert (control["tokens"]["mean"], arm["tokens"]["mean"]) == (5, 6)
    assert arm["time_to_first_token"]["mean"] >= 0.02
    assert arm["inter_token_latency"]["mean"] >= 0.02
    assert arm["tokens_per_second"]["mean"] == pytest.approx(1 / arm["inter_token_latency"]["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("path", ["chat", "completions", "generate"])
async def test_both_arms_have_the_same_seed_and_prompt(path: str) -> None:
    """The script picks its text by the seed: with the same one, both say the same."""
    app, control, arm = application(arm="some", control="some")
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": (
            "/v1/chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1},
        ),
        "completions": (
            "/v1/completions",
            {"model": "chat", "prompt": "Hi", "temperature": 1.0, "logprobs": 1, "echo": True},
        ),
        "generate": ("/generate", {"inputs": "Hi", "parameters": {"do_sample": True, "truncate": 1}}),
    }
    async with running(app) as client:
        for number in range(1, 9):
            assert (await client.post(bodies[path][0], json=bodies[path][1])).status_code == 200
            await pairs_report(client, number)
        found = await pairs_report(client, 8)
    assert (found["pairs"], found["first_divergence"]) == (8, {"never": 8})
    assert [request.prompts for request in arm.asked[::2]] == [request.prompts for request in control.asked[::2]]
    assert all(request.background for request in (*arm.asked, *control.asked[1::2]))
    assert not any(request.background for request in control.asked[::2])
    assert len(arm.asked) == len(control.asked) == 16  # an answer and one score each: they say the same


@pytest.mark.slow
async def test_what_a_client_is_sent_is_the_same_with_and_without() -> None:
    answers = []
    for share in (1.0, 1e-9):
        app, *_ = application(paired=Paired(share=share))
        async with running(app) as client:
            answer = await client.post("/generate", json={"inputs": "Hi", "parameters": {"details": True}})
            answers.append(
                (answer.json(), {name: answer.headers[name] for name in ("content-type", "served-model-name")})
            )
    assert answers[0] == answers[1]


UNSUITABLE: dict[str, dict[str, Any]] = {
    "several choices": {"n": 2},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
}


@pytest.mark.parametrize("fields", UNSUITABLE.values(), ids=UNSUITABLE)
async def test_what_is_more_than_one_text_is_not_paired(fields: dict[str, Any]) -> None:
    app, _, arm = application()
    async with running(app) as client:
        assert (await chat(client, **fields)).status_code == 200
        assert (await pairs_report(client, 1))["not_paired"] == {"unsuitable": 1}
    assert arm.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("control", "arm", "why"),
    [
        ("reasoning", "two", "unsuitable"),
        ("one", "error-after-3", "failed"),
        ("one", "truncate-after-2", "failed"),
        ("one", "crash", "failed"),
        ("one", "hang", "failed"),
        ("one", "reasoning", "failed"),
    ],
)
async def test_a_pair_that_fails_is_counted_and_nobody_hears_of_it(control: str, arm: str, why: str) -> None:
    app, _, backend = application(arm=arm, control=control, paired=Paired(share=1.0, timeout=0.2))
    async with running(app) as client:
        assert (await chat(client)).status_code == 200
        found = await pairs_report(client, 1)
        assert (found["not_paired"], found["pairs"]) == ({why: 1}, 0)
        assert backend.active == 0


@pytest.mark.slow
@pytest.mark.parametrize(("control", "arm", "asked"), [("many", "two", 0), ("one", "many", 1)])
async def test_what_is_too_long_is_not_paired(control: str, arm: str, asked: int) -> None:
    """Nor is more generated for a pair than it may have."""
    app, _, backend = application(arm=arm, control=control, paired=Paired(share=1.0, max_tokens=30))
    async with running(app) as client:
        assert (await chat(client)).status_code == 200
        assert (await pairs_report(client, 1))["not_paired"] == {"too_long": 1}
    assert [request.stopping.max_new_tokens for request in backend.asked] == [30] * asked


async def test_arms_that_mean_other_things_by_a_token_are_not_paired() -> None:
    app, _, arm = application()
    arm.capabilities = type(arm.capabilities)(features=arm.capabilities.features)  # as a remote's: not known
    async with running(app) as client:
        assert (await chat(client)).status_code == 200
        assert (await pairs_report(client, 1))["not_paired"] == {"unlike_tokenizers": 1}
    assert arm.asked == []


@pytest.mark.slow
async def test_pairs_over_the_limit_and_of_a_dead_arm_are_dropped() -> None:
    app, _, arm = application(arm="hang", paired=Paired(share=1.0, max_concurrent_requests=2))
    async with running(app) as client:
        for _ in range(6):
            assert (await chat(client)).status_code == 200
        assert await ends(client) == {"dropped": 4}
        assert arm.active == 2
        arm.health = Health("failed")
        await app.state.service._check_health()
        await chat(client)
        assert await ends(client) == {"dropped": 5}
    assert arm.active == 0


@pytest.mark.slow
async def test_no_pair_is_made_of_what_the_control_has_not_answered() -> None:
    app, *_ = application(control="error-after-3")
    async with running(app) as client:
        for fields in ({}, {"stream": True}, {"model": "chat:control"}, {"model": "chat:arm"}):
            await chat(client, **fields)
        assert await ends(client) == {}
        (found,) = (await client.get("/serving-endpoints/chat/experiment")).json()["paired"]
        assert (found["pairs"], found["identical"]["mean"]) == (0, None)


@pytest.mark.slow
async def test_a_share_is_drawn() -> None:
    app, *_ = application(paired=Paired(share=0.25, max_concurrent_requests=64))
    async with running(app) as client:
        for _ in range(200):
            await chat(client)
        assert 15 < sum((await ends(client)).values()) < 90  # 50 expected: off by more in one run of 10 million


def test_an_update_keeps_an_arm_paired_unless_it_becomes_the_first() -> None:
    app, *_ = application()
    live = app.state.service._live.deployments
    health = {name: Health("ready") for name in "st"}

    def after(change: Callable[[list[Entity]], list[Entity]]) -> list[Paired | None]:
        arms = change([Entity("control", "s/one", 50), Entity("arm", "t/two", 50)])
        made = changed(live, Change(action="update", endpoint="chat", served_entities=tuple(arms)), health, 1)
        assert made is not None
        return [arm.paired for arm in made.serving.served_entities]

    assert after(lambda arms: arms) == [None, ALL]
    assert after(lambda arms: arms[::-1]) == [None, None]


def test_the_first_arm_cannot_be_paired() -> None:
    text = """[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [{ name = "a", backend = "s", paired = {} }]
"""
    with pytest.raises(ConfigError, match=r"4: endpoints.chat.a: the first served entity is the one"):
        parse(text)
