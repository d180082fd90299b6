"""The record of one request, from what its account knows at its end; its log line and its exported row."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.config import BILLION
from gateway.experiments.outcome import exclusion
from gateway.export.rows import Choice, Response, Row
from gateway.observability.logging import EVENTS
from gateway.observability.request_log import LoggedRequest
from gateway.usage.record import Record, hashed, storable
from schemas.ir import Embed, Generate, Tokenize
from schemas.origin import Origin, Relay

if TYPE_CHECKING:
    from gateway.http.accounting import RequestAccount

_KINDS: Mapping[type, str] = {Generate: "generate", Embed: "embed", Tokenize: "tokenize", Relay: "relay"}
"""As `adapters.base.Route.kind` has them."""


def record_of(account: RequestAccount) -> Record:
    """The record of a request that has ended."""
    request, target, usage, key = account.request, account.target, account.usage, account.key
    assert account.duration is not None
    settings = account.service.usage.settings if account.service.usage is not None else None
    named = request.user if settings is not None and isinstance(request, Generate | Embed) else None
    asked = answered = None
    if settings is not None and settings.text and isinstance(request, Generate | Embed):
        asked = storable(request.origin.body.decode(errors="replace")) if request.origin is not None else None
        answered = storable("\n\n".join("".join(parts) for _, parts in sorted((account.texts or {}).items())))
    return Record(
        account.request_id,
        int((time.time() - account.duration) * 1000),
        key.name if key is not None else None,
        key.digest[:16] if key is not None else None,
        account.endpoint,
        target.entity.name if target is not None else None,
        (target.entity.model or target.endpoint) if target is not None else None,
        account.protocol,
        account.route,
        _KINDS.get(type(request), ""),
        _user(named, settings.users) if named is not None and settings is not None else None,
        isinstance(request, Generate) and request.stream,
        account.cache_hit,
        usage.prompt_tokens if usage is not None else None,
        usage.cached_tokens if usage is not None else None,
        usage.completion_tokens if usage is not None else None,
        usage.reasoning_tokens if usage is not None else None,
        account.cost,
        account.duration,
        account.first_token,
        account.status or 499,  # nginx's status for a client that left before the answer's first byte
        account.outcome,
        account.stage if account.outcome != "ok" else None,
        ",".join(map(str, account.finish_reasons)),
        asked,
        answered,
    )


def logged(account: RequestAccount, record: Record) -> LoggedRequest:
    """The request as the console shows it."""
    target, plan = account.target, account.plan
    assigned = plan.targets[0].entity.name if plan is not None else None
    return LoggedRequest(
        record.request_id,
        record.time_ms / 1000,
        record.key,
        record.key_id,
        record.endpoint,
        record.served_entity,
        target.entity.backend if target is not None else None,
        assigned if target is not None and assigned != target.entity.name else None,
        record.protocol,
        record.route,
        record.kind,
        record.streamed,
        record.status,
        record.outcome,
        record.stage,
        account.message[:500],
        record.finish_reasons,
        account.decoded,
        account.first_event or None,
        record.time_to_first_token,
        record.duration,
        record.prompt_tokens,
        record.cached_tokens,
        record.completion_tokens,
        record.cost / BILLION if target is not None and target.entity.price is not None else None,
        record.cache_hit,
        account.trace_id,
        account.from_console,
        _parameters(account.request) if isinstance(account.request, Generate) else {},
    )


def _parameters(request: Generate) -> dict[str, object]:
    """The parameters of a request that are set, without any text of the client."""
    sampling, found = request.sampling, dict[str, object]()
    # Written out: most requests have none or one of them, and a table would be made anew for each.
    if sampling.temperature is not None:
        found["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        found["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        found["top_k"] = sampling.top_k
    if sampling.seed is not None and not sampling.seed_drawn:
        found["seed"] = sampling.seed
    if request.stopping.max_new_tokens is not None:
        found["max_tokens"] = request.stopping.max_new_tokens
    if request.n > 1:
        found["choices"] = request.n
    if request.tools:
        found["tools"] = len(request.tools)
    if request.grammar is not None:
        found["grammar"] = type(request.grammar).__name__
    if request.lora_adapter is not None:
        found["lora_adapter"] = request.lora_adapter
    return found


def log_record(
    record: Record,
    *,
    unit: str | None,
    priced: bool,
    first_event: float,
    trace_id: str | None,
) -> None:
    """Write the line `request.finished`."""
    event = {
        "event": "request.finished",
        "request_id": record.request_id,
        "trace_id": trace_id,
        "protocol": record.protocol,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "stage": record.stage,
        "finish_reason": record.finish_reasons.split(",") if record.finish_reasons else [],
        "model": record.endpoint,
        "served": record.served_entity,
        "key_name": record.key,
        "user": record.user,
        "cost": record.cost / BILLION if priced else None,
        "unit": unit,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "cache_hit": record.cache_hit,
        "first_event_s": round(first_event, 6),
        "duration_s": round(record.duration, 6),
    }
    try:  # noqa: SIM105 - `suppress` would be three calls more for each request
        EVENTS.info(event)
    except BrokenPipeError:
        pass  # the reader of standard error may be gone: the request must not fail for that


def _user(name: str, kept: str) -> str | None:
    if kept == "hashed":
        return hashed(name)
    return storable(name) if kept == "plain" else None


def row_of(account: RequestAccount, *, with_text: bool) -> Row | None:
    """The row; None for a request that was not routed.

    Args:
        account: of a request that has ended.
        with_text: whether the row has the request and the answer.
    """
    request, plan, ended, record = account.request, account.plan, account.ended, account.record
    if request is None or plan is None or ended is None or record is None:
        return None
    unit, origin = plan.unit, None if isinstance(request, Tokenize) else request.origin
    assert record.endpoint is not None
    return Row(
        databricks_request_id=record.request_id,
        client_request_id=request.client_request_id if isinstance(request, Generate | Embed) else None,
        date=datetime.fromtimestamp(record.time_ms / 1000, UTC).date().isoformat(),
        timestamp_ms=record.time_ms,
        status_code=record.status,
        execution_time_ms=round(record.duration * 1000),
        request=_body(origin) if with_text else None,
        response=_answer(account.texts or {}) if with_text and record.outcome == "ok" else None,
        sampling_fraction=1.0,
        request_metadata={
            "endpoint_name": record.endpoint,
            "model_name": record.served_entity or "",
            "model_version": str(account.version),
        },
        endpoint=record.endpoint,
        served_entity=record.served_entity,
        assigned=plan.targets[0].entity.name if unit is not None else None,
        compared=unit is not None and exclusion(plan, ended.outcome) is None,
        outcome=record.outcome,
        arm_outcome=ended.own if unit is not None else None,
        streamed=record.streamed,
        finish_reasons=tuple(map(str, account.finish_reasons)),
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        time_to_first_token=record.time_to_first_token,
        latency=record.duration,
        unit_source=unit.source if unit is not None else None,
        unit=hashlib.sha256(unit.value.encode("utf-8", "surrogateescape")).hexdigest()[:16] if unit else None,
        bucket=unit.bucket if unit is not None else None,
        config_version=account.version,
        protocol=origin.protocol if origin is not None else "",
        dialect=origin.dialect if origin is not None else "",
        operation=origin.operation if origin is not None else "",
    )


def _body(origin: Origin | None) -> str | None:
    # JSON is UTF-8 (RFC 8259, section 8.1). What is relayed may be anything else.
    return origin.body.decode(errors="replace") if origin is not None and origin.body else None


def _answer(texts: dict[int, list[str]]) -> str:
    choices = tuple(Choice(index, "".join(parts)) for index, parts in sorted(texts.items()))
    return msgspec.json.encode(Response(choices)).decode()
