"""Requests of an experiment without a task: counted once, for the arm to which they were assigned."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway import service as service_module
from gateway.config import Endpoint, ServedEntity
from gateway.config.endpoint import Paired, Shadow
from gateway.http.direct import lane
from gateway.http.direct.request import DirectRequest
from gateway.routing.router import Router
from tests.gateway.http.direct.clients import CHAT, OPENAI, Request, streamed
from tests.gateway.http.direct.gateways import ARMS, ONE, Gateway, gateway, warm
from tests.gateway.http.direct.test_lane import PLAYS, hung
from tests.gateway.http.direct.test_stream import STEPS
from tests.gateway.serving import override

UNITS = {"one": {"x-ab-unit": "c"}, "other": {"x-ab-unit": "a"}}
"""A unit of each arm."""
COUNTED = ("exposures", "success", "served", "abandoned")


def counts(there: Gateway) -> dict[str, list[float]]:
    """What is counted of each arm's requests: for exposures how many, else the sum."""
    found = there.experiment()
    return {name: [sum(arm[0 if name == "exposures" else 1]) for arm in found[name]] for name in COUNTED}


@pytest.mark.parametrize("asked", [OPENAI, streamed(OPENAI)], ids=["whole", "stream"])
async def test_requests_of_an_experiment_have_no_task(asked: Request, tasks: list[str]) -> None:
    play = PLAYS["whole"] if asked is OPENAI else STEPS
    async with gateway(served=ARMS) as there:
        for arm, model in (("one", "chat"), ("other", "better"), ("other", "better")):
            seen = await there.turn(asked, UNITS[arm], play)
            assert seen["headers"]["served-model-name"] == arm
            assert json.loads(seen["asked"][0][2])["model"] == model
        assert counts(there) == {"exposures": [1, 2], "success": [1, 2], "served": [1, 2], "abandoned": [0, 0]}
    assert tasks == ["direct"] * 3


@pytest.mark.parametrize("play", ["whole", "500", "stream"])
async def test_what_the_answer_needs_is_done_once_before_or_with_it(
    play: str, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    asked, steps = (streamed(OPENAI), STEPS) if play == "stream" else (OPENAI, PLAYS[play])
    found = []
    for is_early in (True, False):
        async with gateway(served=ARMS) as there:
            after_turn = there.app.state.service.after_turn
            if not is_early:
                add = after_turn.add

                def late(call: Any, *, at_once: bool = False, add: Any = add) -> None:
                    if call.__name__ != "_get_ready_early":
                        add(call, at_once=at_once)

                monkeypatch.setattr(after_turn, "add", late)
            await there.turn(asked, UNITS["one"], steps)
            found.append(counts(there))
    assert found[0] == found[1]
    assert found[0]["exposures"] == [1, 0]
    assert tasks == 2 * (["direct", "handed over", "task"] if play == "500" else ["direct"])


async def test_users_rate_answers_that_had_no_task(tasks: list[str]) -> None:
    async with gateway(served=ARMS) as there:
        answer = await there.client.post("/v1/chat/completions", json=CHAT, headers=UNITS["other"])
        rating = {"request_id": answer.headers["x-request-id"], "metric": "rating", "value": 4}
        assert (await there.client.post("/v1/feedback", json=rating)).status_code == 204
    assert tasks == ["direct"]


async def test_an_arm_that_fails_is_counted_once_and_another_one_answers(tasks: list[str]) -> None:
    async with gateway(served=ARMS) as there:
        await warm(there)
        before = counts(there)
        tasks.clear()
        seen = await there.turn(OPENAI, UNITS["one"], PLAYS["500"])
        after = counts(there)
    assert tasks == ["direct", "handed over", "task"]
    assert (seen["status"], seen["headers"]["served-model-name"]) == (200, "other")
    assert [json.loads(body)["model"] for _, _, body in seen["asked"]] == ["chat", "better"]
    gained = {name: [now - then for now, then in zip(after[name], before[name], strict=True)] for name in COUNTED}
    assert gained == {"exposures": [1, 0], "success": [0, 0], "served": [1, 0], "abandoned": [0, 0]}


async def test_what_goes_on_in_a_task_keeps_its_plan(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    async with gateway(served=ARMS) as there:
        service = there.app.state.service

        def redeploy(hand_over: Any, request: DirectRequest) -> Any:
            service.router = Router({"chat": Endpoint(served_entities=ONE)}, service.backends)
            return hand_over(request)

        override(monkeypatch, lane, "DirectRequest", hand_over=redeploy)
        seen = await there.turn(OPENAI, UNITS["other"], PLAYS["closed"])
        assert counts(there) == {"exposures": [0, 1], "success": [0, 1], "served": [0, 1], "abandoned": [0, 0]}
    assert tasks == ["direct", "handed over", "task"]
    assert seen["headers"]["served-model-name"] == "other"
    assert {json.loads(body)["model"] for _, _, body in seen["asked"]} == {"better"}


async def test_a_client_that_leaves_is_counted_for_its_arm(tasks: list[str]) -> None:
    async with gateway(served=ARMS) as there:
        _, writer = await hung(there)
        before = counts(there)
        writer.close()
        while there.there.gone == 0:  # noqa: ASYNC110 - the upstream has no event for it
            await asyncio.sleep(0.001)
        await there.settled()
        after = counts(there)
    assert tasks[1:] == ["direct", "handed over", "task"]
    assert sum(after["exposures"]) == sum(before["exposures"]) == 2
    assert sum(after["abandoned"]) == 1


async def test_an_arm_behind_another_one_is_asked_in_a_task(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    override(
        monkeypatch,
        service_module,
        "BackendHealth",
        is_first=lambda *_: False,
        preferred=lambda _own, _self, targets: targets[::-1],
    )
    async with gateway(served=ARMS) as there:
        seen = await there.turn(OPENAI, UNITS["one"], PLAYS["whole"])
    assert tasks == ["task"]
    assert seen["headers"]["served-model-name"] == "other"


@pytest.mark.parametrize("play", ["whole", "500"])
async def test_a_shadow_gets_one_copy(play: str, monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    shadow = ServedEntity(name="shadow", backend="far", model="copied", traffic_percentage=0, shadow=Shadow())
    async with gateway(served=(*ARMS, shadow)) as there:
        monkeypatch.setattr(there, "play", lambda asked: PLAYS[play if b'"chat"' in asked.body else "whole"])
        seen = await there.turn(OPENAI, UNITS["one"], ())
        while "copied" not in (asked := _models(there)):  # noqa: ASYNC110 - the upstream has no event for it
            await asyncio.sleep(0.001)
    assert seen["status"] == 200
    assert tasks == (["direct"] if play == "whole" else ["direct", "handed over", "task"])
    assert asked.count("copied") == 1


def _models(there: Gateway) -> list[str]:
    return [json.loads(each.body)["model"] for each in there.there.asked if each.body]


async def test_answers_that_may_be_paired_have_a_task(tasks: list[str]) -> None:
    one, other = ARMS
    async with gateway(served=(one, replace(other, paired=Paired()))) as there:
        for unit in UNITS.values():
            await there.turn(OPENAI, unit, PLAYS["whole"])
    assert tasks == ["task", "direct"]
