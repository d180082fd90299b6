"""Endpoints with several served entities: which one answers, which one the answer names, and which one is next."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.cli import main
from gateway.config import Config, Endpoint, ServedEntity
from gateway.routing.assignment import assign
from tests.gateway.serving import HALF, MESSAGES, application, chat, endpoint, figures, running, unit_for

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "{model}", "messages": MESSAGES}),
    "openai completions": ("/v1/completions", {"model": "{model}", "prompt": "Hi"}),
    "openai embeddings": ("/v1/embeddings", {"model": "{model}", "input": "Hi"}),
    "databricks": ("/serving-endpoints/{model}/invocations", {"messages": MESSAGES}),
    "triton": ("/v2/models/{model}/generate", {"text_input": "Hi", "parameters": {}}),
    "tgi": ("/generate", {"inputs": "Hi"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BODIES)
async def test_every_protocol_says_which_arm_answered(protocol: str) -> None:
    path, body = BODIES[protocol]
    body = {key: "chat" if value == "{model}" else value for key, value in body.items()}
    async with running(application(chat=endpoint(("a", "scripted", 50), ("b", "echo", 50)))) as client:
        for arm in "ab":
            answer = await client.post(path.replace("{model}", "chat"), json=body, headers={"x-ab-unit": unit_for(arm)})
            assert (answer.status_code, answer.headers["served-model-name"]) == (200, arm)


@pytest.mark.slow
async def test_a_user_keeps_the_arm() -> None:
    async with running(application(chat=endpoint(("a", "scripted", 50), ("b", "echo", 50)))) as client:
        for user in map(str, range(12)):
            for stream in (False, True):
                answer = await chat(client, user=user, stream=stream)
                assert answer.headers["served-model-name"] == assign("chat", HALF, user)


@pytest.mark.slow
@pytest.mark.parametrize("served", ["a", "b"])
async def test_an_arm_can_be_called_directly(served: str) -> None:
    async with running(application(chat=endpoint(("a", "scripted", 100), ("b", "echo", 0)))) as client:
        by_model = await chat(client, model=f"chat:{served}")
        by_path = await client.post(
            f"/serving-endpoints/chat/served-models/{served}/invocations", json={"messages": MESSAGES}
        )
        for answer in (by_model, by_path):
            assert (answer.status_code, answer.headers["served-model-name"]) == (200, served)
        assert (await chat(client, model="chat:c")).status_code == 404


FALLS_BACK = ["backend-unavailable", "error", "overloaded", "rate-limited", "truncate-before"]
STAYS = ["timeout", "invalid-request", "context-length", "internal-error", "crash"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FALLS_BACK)
async def test_the_next_arm_answers_where_the_first_fails_before_its_first_event(fault: str, stream: bool) -> None:
    arms = endpoint(("a", fault, 100), ("b", "overloaded", 0), ("c", "echo", 0))
    async with running(application(chat=arms)) as client:
        answer = await chat(client, stream=stream)
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "c")
        metrics = (await client.get("/metrics")).text
        passed_on = [line for line in metrics.splitlines() if line.startswith("gw_fallbacks_total{")]
        assert [('served="a"' in line, line.endswith(" 1.0")) for line in passed_on] == [(True, True), (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", STAYS)
async def test_no_other_arm_is_asked_where_that_would_not_help(fault: str) -> None:
    async with running(application(chat=endpoint(("a", fault, 100), ("b", "echo", 0)))) as client:
        answer = await chat(client)
        assert answer.status_code >= 400
        assert answer.headers["served-model-name"] == "a"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_no_other_arm_is_asked_after_the_first_event(stream: bool) -> None:
    async with running(application(chat=endpoint(("a", "error-after-3", 100), ("b", "echo", 0)))) as client:
        answer = await chat(client, stream=stream)
        assert answer.headers["served-model-name"] == "a"
        assert "[DONE]" not in answer.text
        assert answer.status_code == (200 if stream else 502)


@pytest.mark.slow
async def test_the_last_failure_is_sent_and_fallback_can_be_off() -> None:
    dead = endpoint(("a", "error", 100), ("b", "overloaded", 0))
    alone = endpoint(("a", "error", 100), ("b", "echo", 0), fallback=False)
    async with running(application(chat=dead, alone=alone)) as client:
        assert (await chat(client)).headers["served-model-name"] == "b"
        metrics = (await client.get("/metrics")).text
        assert metrics.count("gw_fallbacks_total{") == 1  # `b` is the last: nobody is left
        answer = await chat(client, model="alone")
        assert answer.headers["served-model-name"] == "a"
        assert answer.status_code >= 500


@pytest.mark.slow
async def test_an_entity_that_lacks_a_feature_is_passed_over_and_its_error_is_not_sent() -> None:
    backends = {"s": ScriptedBackend("s"), "t": ScriptedBackend("t", {"features": ["chat"]})}
    config = Config(
        backends={name: {"kind": "scripted"} for name in backends},
        endpoints={
            "chat": Endpoint(
                served_entities=(
                    ServedEntity(name="a", backend="s", model="error", traffic_percentage=100),
                    ServedEntity(name="b", backend="t", model="echo", traffic_percentage=0),
                )
            )
        },
    )
    async with running(create_app(config, backends)) as client:
        assert (await chat(client)).headers["served-model-name"] == "b"
        failed = await chat(client, logprobs=True)
        assert failed.status_code >= 500
        assert "logprobs" not in failed.text


@pytest.mark.slow
async def test_a_request_that_only_one_arm_can_answer_goes_there_and_is_counted_apart() -> None:
    backends = {"s": ScriptedBackend("s"), "t": ScriptedBackend("t", {"features": ["chat"]})}
    for share in (50, 100):  # also where the arm that can has no share
        arms = (
            ServedEntity(name="a", backend="t", model="echo", traffic_percentage=share),
            ServedEntity(name="b", backend="s", model="echo", traffic_percentage=100 - share),
        )
        config = Config(
            backends={name: {"kind": "scripted"} for name in backends},
            endpoints={"chat": Endpoint(served_entities=arms)},
        )
        async with running(create_app(config, backends)) as client:
            for number in range(4):
                answer = await chat(client, user=str(number), logprobs=True)
                assert (answer.status_code, answer.headers["served-model-name"]) == (200, "b")
            assert (await chat(client, user=unit_for("a"))).headers["served-model-name"] == "a"
            found = await figures(client)
            assert (found["b"]["exposures"], found["b"]["apart"]["only_one_arm"], found["b"]["means"]) == (0, 4, {})
            assert (found["a"]["exposures"], found["a"]["apart"]["only_one_arm"]) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_an_upstream_does_not_have_is_its_arms_failure(stream: bool) -> None:
    arms = endpoint(("a", "echo", 50), ("b", "model-not-found", 50))
    async with running(application(chat=arms)) as client:
        answer = await chat(client, user=unit_for("b"), stream=stream)
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "a")
        assert (await chat(client, model="chat:b")).status_code == 404
        assert (await figures(client))["b"]["means"] == {
            "success": 0.0,
            "served": 1.0,
            "refused": 0.0,
            "abandoned": 0.0,
        }


async def test_a_backend_that_loads_is_waited_for_once_all_others_have_failed() -> None:
    backends = {name: ScriptedBackend(name) for name in "st"}
    arms = (
        ServedEntity(name="a", backend="s", model="echo", traffic_percentage=100),
        ServedEntity(name="b", backend="t", model="error", traffic_percentage=0),
    )
    config = Config(
        backends={name: {"kind": "scripted"} for name in backends}, endpoints={"chat": Endpoint(served_entities=arms)}
    )
    app = create_app(config, backends)
    async with running(app) as client:
        backends["s"].health = Health("loading")
        await app.state.service._check_health()
        asked = asyncio.create_task(chat(client))
        while not re.search(r'gw_fallbacks_total{[^}]*served="b"', (await client.get("/metrics")).text):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        backends["s"].health = Health("ready")
        await app.state.service._check_health()
        answer = await asked
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "a")


@pytest.mark.slow
async def test_a_backend_in_trouble_is_asked_last() -> None:
    backends = {name: ScriptedBackend(name) for name in "st"}
    arms = tuple(
        ServedEntity(name=name, backend=backend, model="echo", traffic_percentage=50)
        for name, backend in (("a", "s"), ("b", "t"))
    )
    config = Config(
        backends={name: {"kind": "scripted"} for name in backends}, endpoints={"chat": Endpoint(served_entities=arms)}
    )
    app = create_app(config, backends)
    async with running(app) as client:

        async def served(*troubled: str) -> dict[str, str]:
            for name, backend in backends.items():
                backend.health = Health("ready", "5 failures in a row" if name in troubled else "")
            await app.state.service._check_health()
            return {arm: (await chat(client, user=unit_for(arm))).headers["served-model-name"] for arm in "ab"}

        assert await served("s") == {"a": "b", "b": "b"}
        assert (await chat(client, model="chat:a")).headers["served-model-name"] == "a"
        assert await served("s", "t") == {"a": "a", "b": "b"}  # all alike: nobody is ejected
        assert await served() == {"a": "a", "b": "b"}
        found = (await client.get("/serving-endpoints/chat/experiment")).json()["arms"]
        assert [arm["apart"]["fell_back"] for arm in found] == [1, 0]
        # To be passed over is a failure, and so is an arm in trouble that is asked where all are.
        assert [arm["means"]["success"] for arm in found] == [2 / 3, 1.0]
        metrics = (await client.get("/metrics")).text
        assert re.search(r'gw_fallbacks_total{[^}]*served="a"[^}]*} 1\.0', metrics)


@pytest.mark.slow
async def test_all_units_of_a_dead_backend_are_answered_by_the_next() -> None:
    dead, living = ScriptedBackend("dead"), ScriptedBackend("living")
    arms = tuple(
        ServedEntity(name=name, backend=backend, model="echo", traffic_percentage=50)
        for name, backend in (("a", "dead"), ("b", "living"))
    )
    config = Config(
        backends={"dead": {"kind": "scripted"}, "living": {"kind": "scripted"}},
        endpoints={"chat": Endpoint(served_entities=arms)},
    )
    app = create_app(config, {"dead": dead, "living": living})
    async with running(app) as client:
        dead.health = Health("failed")
        await app.state.service._check_health()
        for user in map(str, range(20)):
            answer = await chat(client, user=user)
            assert (answer.status_code, answer.headers["served-model-name"]) == (200, "b")
        dead.health = Health("ready")
        await app.state.service._check_health()
        assert (await chat(client, user=unit_for("a"))).headers["served-model-name"] == "a"


def test_explain_says_which_and_why(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("""
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [
  { name = "a", backend = "s", traffic_percentage = 50 },
  { name = "b", backend = "s", traffic_percentage = 50 },
]
""")
    for arm in "ab":
        unit = unit_for(arm)
        result = CliRunner().invoke(main, ["explain", "--config", str(file), "--endpoint", "chat", "--unit", unit])
        assert result.exit_code == 0
        assert result.output.startswith(f"chat: unit '{unit}' is answered by {arm}\n")
    result = CliRunner().invoke(main, ["explain", "--config", str(file), "--endpoint", "other", "--unit", "u"])
    assert "there is no endpoint 'other'" in result.output
