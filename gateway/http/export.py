"""The row of one request, from what its account knows at its end."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime

import msgspec

from gateway.experiments.export import Choice, Response, Row
from gateway.http.accounting import RequestAccount
from schemas.ir import Generate


def row_of(account: RequestAccount, *, with_text: bool) -> Row | None:
    """The row; None for a request that reached no served entity, or generates nothing.

    Args:
        account: of a request that has ended.
        with_text: whether the row has the request and the answer.
    """
    request, plan, target, ended = account.request, account.plan, account.target, account.ended
    if not isinstance(request, Generate) or plan is None or target is None or ended is None:
        return None
    unit, origin, usage = plan.unit, request.origin, ended.usage
    began = time.time() - ended.total
    return Row(
        databricks_request_id=account.request_id,
        client_request_id=request.client_request_id,
        date=datetime.fromtimestamp(began, UTC).date().isoformat(),
        timestamp_ms=int(began * 1000),
        status_code=account.status or 499,
        execution_time_ms=round(ended.total * 1000),
        request=_body(request) if with_text else None,
        response=_answer(account.texts) if account.texts is not None and ended.outcome == "ok" else None,
        sampling_fraction=1.0,
        request_metadata={
            "endpoint_name": target.endpoint,
            "model_name": target.entity.name,
            "model_version": str(account.version),
        },
        endpoint=target.endpoint,
        served_entity=target.entity.name,
        assigned=plan.targets[0].entity.name if unit is not None else None,
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


def _body(request: Generate) -> str | None:
    # JSON is UTF-8 (RFC 8259, section 8.1), or the protocol could not have read it.
    return request.origin.body.decode() if request.origin is not None and request.origin.body else None


def _answer(texts: dict[int, list[str]]) -> str:
    choices = tuple(Choice(index, "".join(parts)) for index, parts in sorted(texts.items()))
    return msgspec.json.encode(Response(choices)).decode()
