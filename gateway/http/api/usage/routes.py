"""`/v1/usage` has sums by group, `/v1/usage/records` single requests. Routes of no protocol."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from gateway.http.api.health import READ
from gateway.http.api.usage.answers import file_of, page_of, read
from gateway.http.api.usage.parameters import (
    DEFAULT_LIMIT,
    GROUP_QUERY,
    QUERY,
    cursor_of,
    format_of,
    groups_of,
    limit_of,
    range_of,
    read_request,
)
from gateway.service import Service
from gateway.usage.query import all_records, read_groups, read_records
from gateway.usage.tables import group_columns, group_row, record_columns, record_row


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """The routes `/v1/usage` and `/v1/usage/records`."""

    @route("/v1/usage", http_method=READ, include_in_schema=False, opt={"role": "ask", "query": GROUP_QUERY})
    async def usage(request: Request[Any, Any, Any]) -> Response[bytes] | Stream:
        """Sums of requests, tokens and cost by key, endpoint, served entity, model, user, day or hour."""
        ledger, headers, parameters = read_request(service, request, known=GROUP_QUERY)
        within = range_of(service, headers, parameters)
        by = groups_of(parameters)
        limit, after = limit_of(parameters, DEFAULT_LIMIT), cursor_of(parameters)
        kind = format_of(headers, parameters)
        groups, last = await read(ledger, lambda database: read_groups(database, within, by, limit, after))
        rows = [group_row(group) for group in groups]
        if kind != "json":
            return await file_of(kind, group_columns(by), rows)
        return page_of(within, rows, last, by)

    @route("/v1/usage/records", http_method=READ, include_in_schema=False, opt={"role": "ask", "query": QUERY})
    async def records(request: Request[Any, Any, Any]) -> Response[bytes] | Stream:
        """The records of single requests, the newest first."""
        ledger, headers, parameters = read_request(service, request, known=QUERY)
        within = range_of(service, headers, parameters)
        columns = record_columns(with_text=ledger.settings.text)
        kind = format_of(headers, parameters)
        if kind != "json":
            limit = limit_of(parameters, None)
            # Read page by page while it is written, in threads.
            database = await read(ledger, lambda database: database, close=False)
            found = all_records(database, within, limit)
            return await file_of(kind, columns, (record_row(record, columns) for record in found), database)
        limit, after = limit_of(parameters, DEFAULT_LIMIT), cursor_of(parameters)
        page, last = await read(ledger, lambda database: read_records(database, within, limit, after))
        return page_of(within, [record_row(record, columns) for record in page], last)

    return [usage, records]
