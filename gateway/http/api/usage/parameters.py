"""The parameters of requests for usage, and whose records they may see."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from litestar import Request

from gateway.access.headers import decode_headers
from gateway.service import Service
from gateway.usage.ledger import Ledger
from gateway.usage.query import FILTERS, GROUPS, Cursor, Range, either_form, until_now
from schemas.errors import InvalidRequest, RouteNotFound

FORMATS = {"json": "application/json", "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
"""Name -> media type."""
DEFAULT_LIMIT = 100
_DEFAULT_DAYS = 30
_MOST = 10_000
LATEST = 1e11
"""No time in seconds is this late."""

Parameters = dict[str, list[str]]

QUERY: Final = {
    "start": "The beginning of the range: a date, a time or Unix seconds; 30 days before its end by default.",
    "end": "The end of the range, likewise; now by default.",
    "limit": "How many a page has.",
    "after": "The `next` of the page before.",
    "format": f"One of {', '.join(FORMATS)}.",
} | dict.fromkeys(sorted(FILTERS), "Only what has this value.")
"""The parameters, as they are described."""
GROUP_QUERY: Final = {"group_by": f"Some of {', '.join(GROUPS)}, separated by commas."} | QUERY


def read_request(
    service: Service,
    request: Request[Any, Any, Any],
    filters: Collection[str] = FILTERS,
    known: Collection[str] | None = None,
) -> tuple[Ledger, dict[str, str], Parameters]:
    """The ledger, and a request's headers and parameters.

    Args:
        service: the worker's.
        request: the request.
        filters: the parameters that choose records. Empty ones choose those that have no value; other empty parameters
            count as absent.
        known: all parameters that there are; None: unknown ones are ignored.

    Raises:
        schemas.errors.RouteNotFound: the server keeps no usage.
        schemas.errors.InvalidRequest: a parameter is unknown.
    """
    headers = decode_headers(request.scope["headers"])
    if service.usage is None:
        service.keys.identify(headers)  # whether usage is kept is nobody's business without a key
        raise RouteNotFound("The server keeps no usage: its configuration has no section [usage].")
    parameters: Parameters = {}
    for given, value in parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True):
        name = given.removesuffix("[]")
        # A misspelled filter would answer with the sum of everything.
        if known is not None and name not in known:
            raise InvalidRequest(f"There is no parameter '{given}'; there are {', '.join(known)}.", param=given)
        if value or name in filters:
            parameters.setdefault(name, []).append(value)
    return service.usage, headers, parameters


def range_of(service: Service, headers: Mapping[str, str], parameters: Parameters) -> Range:
    """Which records a request is for, of those that its key may see.

    Raises:
        schemas.errors.RequestError: it has no key or a wrong one, or a parameter is wrong.
    """
    end = time_of(parameters, "end", until_now())
    start = time_of(parameters, "start", end - _DEFAULT_DAYS * 86400)
    wanted = {name: tuple(values) for name, values in parameters.items() if name in FILTERS}
    return own_range(service, headers, start, end, wanted)


def own_range(
    service: Service, headers: Mapping[str, str], start: float, end: float, wanted: dict[str, tuple[str, ...]]
) -> Range:
    """The records of a range of time and with wanted values, of those that a request's key may see.

    Raises:
        schemas.errors.Unauthorized: it has no key or a wrong one.
    """
    key = service.keys.identify(headers)
    wanted = either_form(wanted)
    if key is not None and not key.may("admin"):
        wanted["key_id"] = (key.digest[:16],)  # whatever id was asked for: the others' records are not there
    return Range(int(start * 1000), int(end * 1000), wanted)


def groups_of(parameters: Parameters) -> tuple[str, ...]:
    """What the records are grouped by.

    Raises:
        schemas.errors.InvalidRequest: it is wrong.
    """
    names = [name for value in parameters.get("group_by", []) for name in value.split(",") if name]
    for name in names:
        if name not in GROUPS:
            raise InvalidRequest(f"The parameter 'group_by' is '{name}'; it must be some of {', '.join(GROUPS)}.")
    return tuple(dict.fromkeys(names))


def limit_of(parameters: Parameters, default: Any) -> Any:
    """The most groups or records; `default` if none is given, which is None for a file.

    Raises:
        schemas.errors.InvalidRequest: it is wrong.
    """
    if (given := _last(parameters, "limit")) is None:
        return default
    return number_of(given, _MOST if default is not None else 10**12)


def number_of(given: str, most: int) -> int:
    """The number that a parameter `limit` is.

    Raises:
        schemas.errors.InvalidRequest: it is none, or not from 1 to `most`.
    """
    # Python refuses to read numbers of thousands of digits.
    if not given.isascii() or not given.isdigit() or len(given) > 20 or not 1 <= int(given) <= most:
        raise InvalidRequest(f"The parameter 'limit' must be a number from 1 to {most}.")
    return int(given)


def format_of(headers: Mapping[str, str], parameters: Parameters) -> str:
    """A name of `FORMATS`, by the parameter or the header `accept`.

    Raises:
        schemas.errors.InvalidRequest: it is wrong.
    """
    given = _last(parameters, "format")
    if given is None:
        accepted = headers.get("accept", "")
        return next((kind for kind, media_type in FORMATS.items() if media_type in accepted), "json")
    if given not in FORMATS:
        raise InvalidRequest(f"The parameter 'format' must be one of {', '.join(FORMATS)}.")
    return given


def time_of(parameters: Parameters, name: str, default: float) -> float:
    """A time in seconds: Unix time, a date, or a time as in RFC 3339; UTC if it has no zone."""
    if (given := _last(parameters, name)) is None:
        return default
    try:
        seconds = float(given) if given.replace(".", "", 1).isdigit() else _date(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < LATEST:
        raise InvalidRequest(f"The parameter '{name}' must be a time: 2026-01-31, 2026-01-31T12:00:00Z or seconds.")
    return seconds


def _date(given: str) -> float:
    found = datetime.fromisoformat(given)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _last(parameters: Parameters, name: str) -> str | None:
    return parameters[name][-1] if name in parameters else None


def encode_cursor(cursor: Cursor | None) -> str | None:
    """A cursor as it is sent."""
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode() if cursor is not None else None


def cursor_of(parameters: Parameters) -> Cursor | None:
    """Where the page before has ended.

    Raises:
        schemas.errors.InvalidRequest: it is wrong.
    """
    if (given := _last(parameters, "after")) is None:
        return None
    try:
        cursor = msgspec.json.decode(base64.urlsafe_b64decode(given), type=Cursor)
    except (ValueError, msgspec.DecodeError):
        cursor = None
    # Databases have numbers of 64 bits.
    if cursor is None or any(isinstance(each, int) and not -(2**63) <= each < 2**63 for each in cursor):
        raise InvalidRequest("The parameter 'after' is none that this query has returned.")
    return cursor
