"""Usage in the form of OpenAI's usage API, for its clients and the tools that read it.

An API key's id is that of the records, a model is an endpoint, as in requests. There are no projects and batches: what
is grouped by them is one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from litestar import Request, Response, route
from litestar.handlers import HTTPRouteHandler

from gateway.config import BILLION
from gateway.http.api.health import READ
from gateway.http.api.usage.answers import read
from gateway.http.api.usage.parameters import LATEST, Parameters, number_of, own_range, read_request, time_of
from gateway.service import Service
from gateway.usage.query import Group, read_groups, until_now
from schemas.errors import InvalidRequest
from schemas.openai.usage import Amount, Bucket, CompletionsResult, CostsResult, EmbeddingsResult, Page, Result

_WIDTHS = {"1m": (60, 60, 1440, "minute"), "1h": (3600, 24, 168, "hour"), "1d": (86400, 7, 31, "day")}
"""Name -> seconds, buckets of a page by default and at most, and the group of records."""
_COST_DAYS = (7, 180)
"""Buckets of a page of costs by default and at most."""
_GROUPS = {"api_key_id": "key_id", "user_id": "user", "model": "endpoint", "line_item": "endpoint"}
_FILTERS = {"api_key_ids": "key_id", "user_ids": "user", "models": "endpoint", "line_items": "endpoint"}
_ABSENT = frozenset(("project_id", "batch", "service_tier", "api_source"))
_MOST_GROUPS = 100_000


_QUERY: Final = {
    "start_time": "The beginning of the range; Unix seconds.",
    "end_time": "Its end; now by default.",
    "bucket_width": f"One of {', '.join(_WIDTHS)}; 1d by default, and always of costs.",
    "group_by[]": "Fields of a result by which it is grouped.",
    "limit": "How many buckets a page has.",
    "page": "The `next_page` of the page before.",
} | {f"{name}[]": "Only what has one of these values." for name in _FILTERS}
_OPT: Final = {"role": "ask", "query": _QUERY}


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """The routes of the usage API."""

    @route("/v1/organization/usage/completions", http_method=READ, include_in_schema=False, opt=_OPT)
    async def completions(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Tokens and requests of generated answers by minute, hour or day, as OpenAI's usage API has them."""
        return await _answer(service, request, CompletionsResult, kind="generate")

    @route("/v1/organization/usage/embeddings", http_method=READ, include_in_schema=False, opt=_OPT)
    async def embeddings(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Tokens and requests of embeddings by minute, hour or day, as OpenAI's usage API has them."""
        return await _answer(service, request, EmbeddingsResult, kind="embed")

    @route("/v1/organization/costs", http_method=READ, include_in_schema=False, opt=_OPT)
    async def costs(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Costs by day, as OpenAI's usage API has them."""
        return await _answer(service, request, CostsResult)

    return [completions, embeddings, costs]


async def _answer(
    service: Service, request: Request[Any, Any, Any], type: type[Result], kind: str | None = None
) -> Response[bytes]:
    ledger, headers, parameters = read_request(service, request, _FILTERS)
    width, limit, by = _width(parameters, is_cost=type is CostsResult)
    groups = [name for name in parameters.get("group_by", []) if name not in _ABSENT]
    known = _GROUPS.keys() & type.__struct_fields__
    if unknown := [name for name in groups if name not in known]:
        raise InvalidRequest(f"group_by: '{unknown[0]}' is none of {', '.join(sorted({*known, *_ABSENT}))}.")
    if "start_time" not in parameters:
        raise InvalidRequest("The parameter 'start_time' is missing.")
    start, end = time_of(parameters, "start_time", 0.0), time_of(parameters, "end_time", until_now())
    first = _page(parameters, int(start) // width, width)
    last = min(first + limit, -(-int(end) // width) if end == int(end) else int(end) // width + 1)
    wanted = {name: tuple(parameters[given]) for given, name in _FILTERS.items() if given in parameters}
    wanted |= {"kind": (kind,)} if kind is not None else {}
    within = own_range(service, headers, max(start, first * width), min(end, last * width), wanted)
    columns = (by, *dict.fromkeys(_GROUPS[name] for name in groups))
    found, _ = await read(ledger, lambda database: read_groups(database, within, columns, _MOST_GROUPS))
    results: dict[int, list[Result]] = {}
    for group in found:
        began = datetime.fromisoformat(group.by[by] or "").replace(tzinfo=UTC).timestamp()
        shown = {name: group.by[_GROUPS[name]] for name in groups}
        results.setdefault(int(began) // width, []).append(_MAKERS[type](group, shown))
    buckets = (
        Bucket(start_time=at * width, end_time=(at + 1) * width, results=tuple(results.get(at, ())))
        for at in range(first, last)
    )
    more = last * width < end
    page = Page(data=tuple(buckets), has_more=more, next_page=f"page_{last}" if more else None)
    return Response(msgspec.json.encode(page), media_type="application/json")


def _completions(group: Group, by: Mapping[str, str | None]) -> Result:
    return CompletionsResult(
        input_tokens=group.prompt_tokens,
        output_tokens=group.completion_tokens,
        num_model_requests=group.requests,
        input_cached_tokens=group.cached_tokens,
        user_id=by.get("user_id"),
        api_key_id=by.get("api_key_id"),
        model=by.get("model"),
    )


def _embeddings(group: Group, by: Mapping[str, str | None]) -> Result:
    return EmbeddingsResult(
        input_tokens=group.prompt_tokens,
        num_model_requests=group.requests,
        user_id=by.get("user_id"),
        api_key_id=by.get("api_key_id"),
        model=by.get("model"),
    )


def _costs(group: Group, by: Mapping[str, str | None]) -> Result:
    return CostsResult(
        amount=Amount(group.cost / BILLION),
        user_id=by.get("user_id"),
        api_key_id=by.get("api_key_id"),
        line_item=by.get("line_item"),
    )


_MAKERS: Final = {CompletionsResult: _completions, EmbeddingsResult: _embeddings, CostsResult: _costs}


def _width(parameters: Parameters, *, is_cost: bool) -> tuple[int, int, str]:
    """The seconds of a bucket, how many a page has, and the group of records."""
    name = parameters.get("bucket_width", ["1d"])[-1]
    if name not in _WIDTHS or (is_cost and name != "1d"):
        raise InvalidRequest(f"bucket_width: '{name}' is none of {'1d' if is_cost else ', '.join(_WIDTHS)}.")
    width, default, most, by = _WIDTHS[name]
    if is_cost:
        default, most = _COST_DAYS
    return width, number_of(parameters.get("limit", [str(default)])[-1], most), by


def _page(parameters: Parameters, first: int, width: int) -> int:
    """The number of a page's first bucket, of `width` seconds."""
    given = parameters.get("page", [f"page_{first}"])[-1]
    number = given.removeprefix("page_")
    if not number.isascii() or not number.isdigit() or len(number) > 12 or int(number) * width >= LATEST:
        raise InvalidRequest("The parameter 'page' is none that this query has returned.")
    return int(number)
