"""What is logged, as a collector gets it; and a collector that takes nothing."""

from __future__ import annotations

import socket

import pytest
import structlog

from gateway.config import Telemetry
from gateway.observability import logging
from gateway.observability.logs_sender import LogsSender
from tests.gateway.observability.collector import attributes_of, collector
from tests.gateway.observability.test_tracing import CHAT, TRACE, TRACED, WHOLE, asking

log = structlog.get_logger()


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processors of `logging.configure`, without its renderer and its cache, which other tests would keep."""

    def drop(*_: object) -> None:
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.stdlib.add_log_level, logging._hide_secrets, logging._pass_on, drop])
    monkeypatch.setattr("gateway.observability.otlp.SHUTDOWN", 10.0)


@pytest.mark.slow
async def test_the_line_of_a_request_is_a_record_of_its_trace() -> None:
    with collector() as received:
        settings = Telemetry(endpoint=received.url, traces=False, logs=True)
        async with asking(lambda _: (WHOLE,), settings) as (client, _):
            answer = await client.post("/v1/chat/completions", json=CHAT, headers=TRACED)
            assert answer.status_code == 200
        assert logging.RECEIVERS == []
    (record,) = [each for each in received.logs if each.event_name == "request.finished"]
    assert (record.trace_id.hex(), record.span_id) == (TRACE, b"")
    assert (record.severity_text, record.body.string_value) == ("INFO", "request.finished")
    attributes = attributes_of(record)
    assert {"status": 200, "model": "chat", "outcome": "ok", "request_id": answer.headers["x-request-id"]}.items() <= (
        attributes.items()
    )
    assert attributes["finish_reason"] == ["eos"]
    assert "trace_id" not in attributes
    assert None not in attributes.values()
    assert received.spans == []


def test_records_hold_no_secrets_and_describe_exceptions() -> None:
    with collector() as received:
        sender = LogsSender(Telemetry(endpoint=received.url))
        log.info("keys.read", key="canary", path=ValueError("odd"))
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("work.failed")
        sender.close()
        log.info("nothing.sent")
    first, second = received.logs
    assert attributes_of(first) == {"key": "***", "path": "odd"}
    found = attributes_of(second)
    assert (second.severity_text, found["exception.type"], found["exception.message"]) == (
        "ERROR",
        "ValueError",
        "broken",
    )
    assert "in test_records_hold_no_secrets" in found["exception.stacktrace"]


@pytest.mark.parametrize("kind", ["hangs", "refuses"])
def test_a_collector_in_trouble_keeps_nobody_and_no_more_than_a_queue(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr("gateway.observability.otlp.SHUTDOWN", 0.05)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "hangs":  # the kernel accepts, and nobody reads
            listener.listen(64)
        sender = LogsSender(Telemetry(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        for number in range(100):
            log.info("number.counted", number=number)
        (processor,) = sender._provider._multi_log_record_processor._log_record_processors
        assert len(processor._batch_processor._queue) <= 8  # type: ignore[attr-defined]
        sender.close()
