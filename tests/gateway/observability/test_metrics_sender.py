"""The metrics that a collector gets are those of `/metrics`, once for all workers."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.config import Telemetry
from gateway.observability.metrics import Metrics
from gateway.observability.metrics_sender import MetricsSender
from schemas.ir import Usage
from tests.gateway.observability.collector import collector

LABELS = ("chat", "a", "b")


def counted(folder: Path | None, slot: str = "0") -> Metrics:
    metrics = Metrics({}, folder, slot)
    metrics.requests.add(("openai", "chat", "ok"))
    metrics.count_answer(LABELS, Usage(10, 20), 0.3, 0.003, 0.2)
    metrics.count_answer(LABELS, Usage(10, 20), 200.0, None, 0.0)
    return metrics


def test_a_collector_gets_the_numbers_of_the_metrics_page() -> None:
    with collector() as received:
        metrics = counted(None)
        MetricsSender(Telemetry(endpoint=received.url), metrics.registry, None).close()
    (sent,) = received.metrics
    page = metrics.render().decode()
    shown = dict(re.findall(r"(?m)^# TYPE (\S+) (\w+)$", page))
    full = {name for name in shown if re.search(rf"(?m)^{name}(_count)?[{{ ]", page)}
    assert set(sent) == {name.removesuffix("_total") for name in full}
    requests = sent["gw_requests"].sum
    assert requests.is_monotonic
    (point,) = requests.data_points
    assert (point.as_double, point.start_time_unix_nano > 0) == (1.0, True)
    assert {each.key: each.value.string_value for each in point.attributes} == {
        "protocol": "openai",
        "route": "chat",
        "outcome": "ok",
    }
    latency = sent["vllm:e2e_request_latency_seconds"]
    (series,) = latency.histogram.data_points
    assert (latency.unit, series.count, series.sum, list(series.bucket_counts)) == (
        "s",
        2,
        200.3,
        [*[0] * 7, 1, *[0] * 7, 1],
    )
    assert len(series.bucket_counts) == len(series.explicit_bounds) + 1
    assert not series.HasField("min")


def test_numbers_that_cannot_be_read_once_are_sent_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> bool:
        raise OSError(errno.EMFILE, "Too many open files")

    with collector() as received:
        sender = MetricsSender(Telemetry(endpoint=received.url), counted(tmp_path).registry, tmp_path)
        with monkeypatch.context() as patched, capture_logs() as logged:
            patched.setattr(sender, "_is_sender", fails)
            sender._send()
        assert [line["event"] for line in logged] == ["metrics.not_sent"]
        assert received.metrics == []
        sender.close()
    assert len(received.metrics) == 1


def test_one_worker_sends_for_all_and_another_goes_on(tmp_path: Path) -> None:
    with collector() as received:
        settings = Telemetry(endpoint=received.url)
        senders = [MetricsSender(settings, counted(tmp_path, f"worker-{n}").registry, tmp_path) for n in range(2)]
        starts = []
        for sender in senders:
            sender._send()
        assert len(received.metrics) == 1
        senders[0].close()
        assert len(received.metrics) == 2
        senders[1].close()
        assert len(received.metrics) == 3
    for sent in received.metrics:
        (point,) = sent["gw_requests"].sum.data_points
        assert point.as_double == 2.0, "the sum of both workers"
        starts.append(point.start_time_unix_nano)
    assert len(set(starts)) == 1, "the sums began with the first of them"


def test_a_collector_that_is_away_keeps_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observability.otlp.SHUTDOWN", 0.05)
    MetricsSender(Telemetry(endpoint="http://127.0.0.1:1"), counted(None).registry, None).close()
