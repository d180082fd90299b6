"""What is known of one request, and what is made of it at its end: its record, its log line and its exported row."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Literal

import msgspec

from gateway.access.keys_file import Key
from gateway.access.limits import Ticket
from gateway.config import BILLION
from gateway.experiments.experiments import Exposure
from gateway.experiments.outcome import Outcome, exclusion
from gateway.export.rows import Choice, Response, Row
from gateway.observability.logging import EVENTS
from gateway.observability.request_log import LoggedRequest
from gateway.routing.target import Plan, Target
from gateway.service import Service
from gateway.usage.record import Record, hashed, storable
from schemas.errors import Quota
from schemas.ir import Embed, FinishReason, Generate, Request, Tokenize, Usage
from schemas.origin import Origin, Relay

Stage = Literal["read", "describe", "decode", "manage", "route", "wait", "generate", "stream", "encode", "send"]
"""How far a request came: reads headers, key and body; answers a listing; decodes the body; changes what is deployed;
picks the targets; waits for a backend; asks it and waits for its first event; gets the other events; writes a whole
answer; waits for the client to take what was written.
"""

CLIENT_GONE = "client_gone"
"""The outcome of a request whose client has left."""


class RequestState(msgspec.Struct, eq=False):
    """What is known of one request so far. Times are seconds from the request's beginning.

    Attributes:
        service: where it is counted.
        protocol, route: whose route was asked.
        request_id: sent as `x-request-id`.
        trace_id: of the trace that the request is part of; None: of none.
        key: who asks; None if no key is needed, and before the headers are read.
        owner: who holds one of the worker's shares for it; None: nobody.
        ticket: what it counts for in limits; None without limits.
        quotas: what is left of them.
        cost: of the answer, by the price of the served entity; in billionths of its currency.
        request, plan, exposure: None until the request is decoded and routed; `exposure` is None without an experiment.
        target: the one asked last.
        own_failure: why the assigned target did not answer: an error's kind, `IN_TROUBLE`, `LOADING`; empty: not known.
        stage: what is being done.
        ignored: fields of the body that had no effect.
        cache_control: the client's header of that name.
        from_console: whether the console asked.
        decoded: when the targets were chosen; None before.
        message: of the error that was sent; "" without one.
        cache_hit: whether the answer came out of the endpoint's cache; None: it was not looked for there.
        status: the HTTP status sent; 0 before.
        first_event: when the backend's first event came; 0.0 before.
        first_token: when the first text, reasoning or tool call of a stream came; None before, and for whole answers.
        last_token: when the last one came, on the monotonic clock.
        count_interval: counts the seconds between two outputs; None before the first.
        finish_reasons: of the choices that have finished.
        outcome: "ok", an error's kind, or "cancelled"; "client_gone" until another is known.
        duration: None until the outcome is known.
        time_allowed: seconds that the client allows until the first event; None: as long as the server does.
        gave_up: whether they passed without one.
        ended: the outcome as the experiment counts it; None until it is known.
        record: of the request; None until it is kept or logged.
        is_logged: whether the request is in the log.
        version: of the endpoint that was asked; 0 unless rows are exported.
        texts: parts of each choice's text; None unless they are exported.
    """

    service: Service
    protocol: str
    route: str
    request_id: str
    began: float = msgspec.field(default_factory=monotonic)
    trace_id: str | None = None
    key: Key | None = None
    owner: str | None = None
    ticket: Ticket | None = None
    quotas: Sequence[Quota] = ()
    cost: int = 0
    request: Request | None = None
    plan: Plan | None = None
    exposure: Exposure | None = None
    target: Target | None = None
    own_failure: str = ""
    stage: Stage = "read"
    ignored: tuple[str, ...] = ()
    cache_control: str = ""
    from_console: bool = False
    decoded: float | None = None
    message: str = ""
    cache_hit: bool | None = None
    status: int = 0
    first_event: float = 0.0
    first_token: float | None = None
    last_token: float = 0.0
    count_interval: Callable[[float], None] | None = None
    finish_reasons: list[FinishReason] = msgspec.field(default_factory=list)
    usage: Usage | None = None
    outcome: str = CLIENT_GONE
    duration: float | None = None
    time_allowed: float | None = None
    gave_up: bool = False
    ended: Outcome | None = None
    record: Record | None = None
    is_logged: bool = False
    version: int = 0
    texts: dict[int, list[str]] | None = None

    @property
    def series(self) -> tuple[str, str, str]:
        """The labels of an answer's metrics: endpoint, served entity and backend."""
        target = self.target
        return ("", "", "") if target is None else target.series

    @property
    def endpoint(self) -> str | None:
        """The endpoint that was asked, or the name that the client gave, if that leads to none."""
        if self.plan is not None:
            return self.plan.targets[0].endpoint
        return self.request.model if self.request is not None else None


_KINDS: Mapping[type, str] = {Generate: "generate", Embed: "embed", Tokenize: "tokenize", Relay: "relay"}
"""As `adapters.base.Route.kind` has them."""


def record_of(account: RequestState) -> Record:
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


def logged(account: RequestState, record: Record) -> LoggedRequest:
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
    sampling = request.sampling
    found: dict[str, object] = {}
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
        # To a microsecond; `round` takes twice as long.
        "first_event_s": int(first_event * 1e6 + 0.5) / 1e6,
        "duration_s": int(record.duration * 1e6 + 0.5) / 1e6,
    }
    EVENTS.info(event)


def _user(name: str, kept: str) -> str | None:
    if kept == "hashed":
        return hashed(name)
    return storable(name) if kept == "plain" else None


def row_of(account: RequestState, *, with_text: bool) -> Row | None:
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
