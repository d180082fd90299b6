"""A user's own metric: sent to any worker, counted for the arm that answered."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from litestar import Litestar

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config
from gateway.config import Experiment as Settings
from gateway.recall import Answered, Recall
from tests.gateway.serving import running
from tests.gateway.test_experiment import PAIR, figures
from tests.gateway.test_router import chat, unit_for

LIKED = msgspec.structs.replace(PAIR, experiment=Settings(feedback={"liked": "higher"}))


def worker(folder: Path) -> Litestar:
    config = Config(backends={"s": {"kind": "scripted"}}, endpoints={"other": PAIR, "chat": LIKED})
    return create_app(config, {"s": ScriptedBackend("s")}, folder)


async def test_feedback_reaches_the_arm_whichever_worker_hears_it(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two:
        for value in (1.0, 0.0):
            answer = await chat(one, user=unit_for("b"))
            told = {"request_id": answer.headers["x-request-id"], "metric": "liked", "value": value}
            for client in (one, two):
                assert (await client.post("/v1/feedback", json=told)).status_code == 204
        for client in (one, two):
            found = await figures(client)
            assert found["b"]["means"]["liked"] == 0.5
            assert "liked" not in found["a"]["means"]


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"request_id": "no-such", "metric": "liked", "value": 1}, "remembered"),
        ({"request_id": "0" * 24, "metric": "liked", "value": 1}, "remembered"),
        ({"request_id": "{id}", "metric": "hated", "value": 1}, "no metric 'hated'"),
        ({"request_id": "{id}", "metric": "liked", "value": "much"}, "value"),
        ({"request_id": "{id}", "metric": "liked"}, "value"),
    ],
)
async def test_what_cannot_be_counted_is_refused(told: dict[str, object], word: str, tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        answer = await chat(client)
        told = {name: answer.headers["x-request-id"] if value == "{id}" else value for name, value in told.items()}
        refused = await client.post("/v1/feedback", json=told)
        assert refused.status_code == 400
        assert word in refused.json()["error"]["message"]


def test_what_was_overwritten_is_forgotten() -> None:
    recall = Recall("ab" * 8)
    first, later = "ab" * 8 + "00000003", "ab" * 8 + "00010003"
    recall.note(first, Answered(2**30 - 1, 255, 511))
    assert recall.find(first) == Answered(2**30 - 1, 255, 511)
    assert recall.find(later) is None
    recall.note(later, Answered(0, 0, 0))
    assert recall.find(first) is None
    assert recall.find(later) == Answered(0, 0, 0)
