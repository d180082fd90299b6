"""The row of one request, from what its account knows at its end."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime

import msgspec

from gateway.experiments.outcome import exclusion
from gateway.export.rows import Choice, Response, Row
from gateway.http.accounting import RequestAccount
from schemas.ir import Embed, Generate, Tokenize
from schemas.origin import Origin


def row_of(account: RequestAccount, *, with_text: bool) -> Row | None:
    """The row; None for a request that was not routed.

    Args:
        account: of a request that has ended.
        with_text: whether the row has the request and the answer.
    """
    request, plan, target, ended = account.request, account.plan, account.target, account.ended
    if request is None or plan is None or ended is None:
        return None
    unit, usage = plan.unit, ended.usage
    origin = None if isinstance(request, Tokenize) else request.origin
    endpoint, served = plan.targets[0].endpoint, target.entity.name if target is not None else None
    began = time.time() - ended.total
    return Row(
        databricks_request_id=account.request_id,
        client_request_id=request.client_request_id if isinstance(request, Generate | Embed) else None,
        date=datetime.fromtimestamp(began, UTC).date().isoformat(),
        timestamp_ms=int(began * 1000),
        status_code=account.status or 499,
        execution_time_ms=round(ended.total * 1000),
        request=_body(origin) if with_text else None,
        response=_answer(account.texts) if account.texts is not None and ended.outcome == "ok" else None,
        sampling_fraction=1.0,
        request_metadata={
            "endpoint_name": endpoint,
            "model_name": served or "",
            "model_version": str(account.version),
        },
        endpoint=endpoint,
        served_entity=served,
        assigned=plan.targets[0].entity.name if unit is not None else None,
        compared=unit is not None and exclusion(plan, ended.outcome) is None,
        outcome=ended.outcome,
        arm_outcome=ended.own if unit is not None else None,
        streamed=ended.streamed,
        finish_reasons=tuple(map(str, ended.reasons)),
        prompt_tokens=usage.prompt_tokens if usage is not None else None,
        completion_tokens=usage.completion_tokens if usage is not None else None,
        time_to_first_token=ended.first,
        latency=ended.total,
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
