"""How intervals move: points by time, one worker at a time, thinned when they are many."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.app import create_app
from gateway.config import Config
from gateway.rollout import timeline
from gateway.rollout.timeline import Timeline
from tests.gateway.serving import PAIR, chat, running


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_point_is_added_when_it_is_due_and_requests_have_come(
    is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(timeline.time, "time", lambda: now)
    app = create_app(Config(backends={"s": {"kind": "scripted"}}, endpoints={"chat": PAIR}))
    async with running(app) as client:
        experiment = app.state.service.experiments.of("chat")
        points = Timeline(tmp_path if is_shared else None)
        points.note("chat", experiment)
        assert points.of("chat") == []  # nothing was asked
        for _ in range(3):
            await chat(client)
            now += 40
            points.note("chat", experiment)
        # The third is only 40 s after the second.
        assert [point.requests for point in points.of("chat")] == [1, 3]
        first = points.of("chat")[0].intervals
        assert {each.arm for each in first} == {"b"}
        now += 100
        points.note("chat", experiment)
        assert len(points.of("chat")) == 2  # no request since
        monkeypatch.setattr(timeline, "_MOST", 2)
        await chat(client)
        now += 100
        points.note("chat", experiment)
        assert [point.requests for point in points.of("chat")] == [1, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["meta/llama", "../../beside", ".", "über mich", "\udc80", "x" * 300])
async def test_any_text_may_name_an_endpoint(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "experiments"
    folder.mkdir(parents=True)
    app = create_app(Config(backends={"s": {"kind": "scripted"}}, endpoints={"chat": PAIR}))
    async with running(app) as client:
        await chat(client)
        points = Timeline(folder)
        points.note(name, app.state.service.experiments.of("chat"))
        assert [point.requests for point in points.of(name)] == [1]
        assert points.of("other") == []
    assert _folders(tmp_path) == {folder / "timeline"}


def _folders(root: Path) -> set[Path]:
    """Those that have files."""
    return {each.parent for each in root.rglob("*") if each.is_file()}
