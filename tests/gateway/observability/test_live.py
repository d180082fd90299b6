"""The figures of the last quarter of an hour."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backends.base import EngineState, Health
from gateway.observability import live
from gateway.observability.live import LiveFigures
from gateway.observability.metrics import Metrics


class Engine:
    engine_states: Mapping[str, EngineState | None] = {"s": EngineState(1, 2, 0.5, 0, 100, 50)}


def backend_of() -> dict[tuple[str, ...], str]:
    return {("chat", "a"): "s", ("chat", "b"): "t"}


def test_a_point_is_what_was_counted_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(live.time, "time", lambda: now)
    metrics, engine = Metrics({}), Engine()
    figures = LiveFigures(metrics, {"s": engine})  # type: ignore[dict-item]
    health = {"s": Health("ready", "5 failures in a row")}
    metrics.served_requests.add(("chat", "a", "ok"), 100)
    figures.look(health, backend_of)  # what was before is not of the last seconds
    metrics.served_requests.add(("chat", "a", "ok"), 30)
    metrics.served_requests.add(("chat", "b", "timeout"), 10)
    metrics.requests.add(("openai", "chat", "timeout"), 10)
    metrics.generation_tokens.add(("chat", "a", "s"), 200)
    for _ in range(20):
        metrics.time_to_first_token.observe(("chat", "a", "s"), 0.07)
    metrics.attempts.add(("s", "timeout"), 3)
    metrics.retries.add(("s",), 2)
    engine.engine_states = {"s": EngineState(3, 4, 0.25, 1, 300, 100, resident_bytes=7)}
    now += 1
    figures.look(health, backend_of)
    assert not figures.points
    now += 9
    figures.look(health, backend_of)
    (point,) = figures.points
    everything, arm = point.series[""], point.series["chat:a"]
    assert set(point.series) == {"", "chat", "chat:a", "chat:b"}
    assert (everything.requests, everything.errors, arm.requests, arm.errors, arm.tokens) == (4.0, 1.0, 3.0, 0.0, 20.0)
    assert arm.first_token is not None
    assert 0.05 <= arm.first_token[0] < arm.first_token[1] <= 0.1
    assert arm.between_tokens is None
    assert point.errors == everything.kinds == point.series["chat:b"].kinds == {"timeout": 1.0}
    assert {name: (found.requests, found.kinds) for name, found in point.by_backend.items()} == {
        "s": (3.0, {}),
        "t": (1.0, {"timeout": 1.0}),
    }
    found = point.engines["s"]
    assert (found.running, found.waiting, found.prefix_hits, found.preemptions) == (3, 4, 0.25, 1)
    state = point.backends["s"]
    assert (state.detail, state.failures, state.retries) == ("5 failures in a row", {"timeout": 3}, 2)
    now += 10
    figures.look(health, backend_of)
    assert figures.points[-1].series[""].requests == 0.0
