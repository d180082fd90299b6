"""Replay: the requests of an export once more, on another model; and how its answers compare. Paired and offline.

Every logged request is asked again, so prompts, lengths and users are the same on both sides: differences are taken per
request, which removes the variance between requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from itertools import zip_longest
from time import monotonic

import msgspec
import numpy as np

from adapters.base import Adapter, Call
from backends.base import Backend
from gateway.errors import to_client_error
from gateway.experiments.pairs.agreement import mean_estimate
from gateway.experiments.pairs.bounded_mean import bounded_mean
from gateway.experiments.statistics.confidence import Interval
from gateway.export.rows import Response, Row
from gateway.routing.assignment import BUCKETS, bucket_of
from schemas.catalog import Catalog, ModelCard
from schemas.errors import GatewayError, Incomplete
from schemas.ir import Delta, Events, Generate, Usage


class Replayed(msgspec.Struct, frozen=True):
    """One request asked again: its logged row, and how the other model answered.

    Attributes:
        row: as logged.
        outcome: "ok", or an error's kind.
        time_to_first_token: seconds; None if nothing came, or the answer is not streamed, like the logged one.
        latency: seconds.
        completion_tokens: None if the answer did not end.
        text: of the first choice.
    """

    row: Row
    outcome: str
    time_to_first_token: float | None = None
    latency: float = 0.0
    completion_tokens: int | None = None
    text: str = ""


class Compared(msgspec.Struct, frozen=True):
    """One metric over all replayed requests. `difference`: the new model's less the logged one's, per request."""

    metric: str
    requests: int
    logged: float
    replayed: float
    difference: Interval


class ReplayReport(msgspec.Struct, frozen=True):
    """What a replay has shown.

    Attributes:
        requests: how many were asked again.
        skipped: how many were not, by reason.
        failures: how many failed now, by outcome.
        identical: the share of answers with the very same text, where both answered.
        word_agreement: the share of words that are the same at the same place, likewise.
        compared: success, latency, time to first token and tokens.
    """

    requests: int
    skipped: dict[str, int]
    failures: dict[str, int]
    identical: Interval
    word_agreement: Interval
    compared: tuple[Compared, ...]


def decode_row(row: Row, adapters: Mapping[str, Adapter], model: str) -> Generate | None:
    """The request of a row, addressed to a model; None if the row holds none, or one that cannot be read alone.

    Args:
        row: of an export with texts.
        adapters: all protocols, by name.
        model: whom to ask.
    """
    adapter = adapters.get(row.protocol)
    if row.request is None or adapter is None or row.dialect not in adapter.dialects:
        return None
    codec = adapter.server(adapter.dialects[row.dialect])
    route = next((each for each in codec.routes if each.name == row.operation), None)
    if route is None:
        return None
    catalog = Catalog({row.endpoint: ModelCard(name=row.endpoint)}, row.endpoint)
    call = Call(row.databricks_request_id, catalog, {"model": row.endpoint, "name": row.endpoint})
    try:
        found = codec.decode(route, row.request.encode(), call)
    except GatewayError:  # it continues a stored response, for instance
        return None
    if not isinstance(found, Generate) or found.n != 1 or len(found.prompts) != 1:
        return None
    # Without its origin: the client's body would be relayed as it is, with the model that it names.
    return msgspec.structs.replace(found, model=model, stream_usage=True, origin=None)


async def replay(
    rows: Iterable[Row], adapters: Mapping[str, Adapter], backend: Backend, model: str, at_once: int
) -> AsyncGenerator[Replayed | str, None]:
    """Ask every row's request again, as each is answered; a text is the reason why a row was skipped.

    Args:
        rows: of an export with texts.
        adapters: all protocols, by name.
        backend: answers; started.
        model: whom to ask there.
        at_once: requests at a time.
    """
    running: set[asyncio.Task[Replayed]] = set()
    try:
        for row in rows:
            request = decode_row(row, adapters, model)
            if request is None:
                yield "no text" if row.request is None else "cannot be asked again"
                continue
            running.add(asyncio.create_task(_ask(row, request, backend)))
            if len(running) >= at_once:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        for ended in asyncio.as_completed(running):
            yield await ended
    finally:
        for task in running:
            task.cancel()


def compare(found: Sequence[Replayed], skipped: Mapping[str, int], alpha: float) -> ReplayReport:
    """Compare what was logged with what was answered now.

    Args:
        found: one entry per request.
        skipped: rows that were not asked, by reason.
        alpha: the chance that an interval misses.
    """
    failures: dict[str, int] = {}
    for each in found:
        if each.outcome != "ok":
            failures[each.outcome] = failures.get(each.outcome, 0) + 1
    both = [each for each in found if each.outcome == each.row.outcome == "ok"]
    texts = [(each, logged) for each in both if (logged := _logged_text(each.row)) is not None]
    return ReplayReport(
        len(found),
        dict(skipped),
        failures,
        _rate([(each.row, float(each.text == logged)) for each, logged in texts], alpha),
        _rate([(each.row, _word_agreement(each.text, logged)) for each, logged in texts], alpha),
        (
            _success(found, alpha),
            _compared("latency", [(each.row, each.row.latency, each.latency) for each in both], alpha),
            _compared(
                "time_to_first_token",
                [(each.row, each.row.time_to_first_token, each.time_to_first_token) for each in both],
                alpha,
            ),
            _compared(
                "completion_tokens",
                [(each.row, each.row.completion_tokens, each.completion_tokens) for each in both],
                alpha,
            ),
        ),
    )


async def _ask(row: Row, request: Generate, backend: Backend) -> Replayed:
    began, first, texts = monotonic(), None, list[str]()
    usage: Usage | None = None
    try:
        async for batch in backend.generate(request):
            if request.stream and first is None:
                first = _first(batch, began)
            texts += [event.text for event in batch if isinstance(event, Delta) and event.choice == 0]
            usage = batch[-1] if batch and isinstance(batch[-1], Usage) else None
        if usage is None:
            raise Incomplete("The answer stopped before it was finished.")
    except GatewayError as error:
        kind = to_client_error(error, request.id).kind
        return Replayed(row, kind, first, monotonic() - began)
    return Replayed(row, "ok", first, monotonic() - began, usage.completion_tokens, "".join(texts))


def _first(batch: Events, began: float) -> float | None:
    return monotonic() - began if any(isinstance(event, Delta) for event in batch) else None


def _logged_text(row: Row) -> str | None:
    if row.response is None:
        return None
    choices = msgspec.json.decode(row.response, type=Response).choices
    return choices[0].text if choices else ""


def _word_agreement(one: str, other: str) -> float:
    pairs = list(zip_longest(one.split(), other.split()))
    return sum(left == right for left, right in pairs) / len(pairs) if pairs else 1.0


def _success(found: Sequence[Replayed], alpha: float) -> Compared:
    values = [(each.row, each.row.outcome == "ok", each.outcome == "ok") for each in found]
    # Only requests on which the two differ count (McNemar). Each share has exact bounds, also where none was seen yet.
    gained = _rate([(row, float(now and not logged)) for row, logged, now in values], alpha / 2)
    lost = _rate([(row, float(logged and not now)) for row, logged, now in values], alpha / 2)
    difference = Interval(gained.estimate - lost.estimate, gained.low - lost.high, gained.high - lost.low)
    return Compared(
        "success",
        len(values),
        _mean(float(logged) for _, logged, _ in values),
        _mean(float(now) for *_, now in values),
        difference,
    )


def _compared(metric: str, values: Iterable[tuple[Row, float | None, float | None]], alpha: float) -> Compared:
    known = [(row, logged, now) for row, logged, now in values if logged is not None and now is not None]
    found = mean_estimate(np.array(_by_bucket([(row, now - logged) for row, logged, now in known])), alpha)
    return Compared(
        metric,
        len(known),
        _mean(logged for _, logged, _ in known),
        _mean(now for *_, now in known),
        Interval(found.mean, found.low, found.high),
    )


def _rate(values: Sequence[tuple[Row, float]], alpha: float) -> Interval:
    return bounded_mean(*_by_bucket(values), alpha)


def _by_bucket(values: Sequence[tuple[Row, float]]) -> tuple[np.ndarray, np.ndarray]:
    counts, sums = np.zeros(BUCKETS), np.zeros(BUCKETS)
    for row, value in values:
        # A request without a unit (it named its served entity) is one by itself.
        bucket = row.bucket if row.bucket is not None else bucket_of(row.databricks_request_id)
        counts[bucket] += 1
        sums[bucket] += value
    return counts, sums


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else float("nan")
