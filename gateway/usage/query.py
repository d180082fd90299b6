"""What may be asked of the records: sums by group, and single records, page by page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.usage.database import Database
from gateway.usage.record import COLUMNS, hashed

_DAY, _HOUR, _MINUTE = 86_400_000, 3_600_000, 60_000
"""Milliseconds."""
_PAGE = 5_000
"""Records that an export reads at a time."""

_FIELDS = ("key", "key_id", "endpoint", "served_entity", "model", "user", "protocol", "route", "kind", "outcome")
GROUPS: Final = {name: f"COALESCE(\"{name}\", '')" for name in _FIELDS} | {
    "day": f"time_ms / {_DAY}",
    "hour": f"time_ms / {_HOUR}",
    "minute": f"time_ms / {_MINUTE}",
}
"""What records are grouped by: name -> expression, which is never null."""
FILTERS: Final = frozenset(_FIELDS)

_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_SUMS = ", ".join(f"COALESCE(SUM({name}), 0)" for name in (*_TOKENS, "cost"))
_COUNTS = "COUNT(*), SUM(CASE WHEN outcome = 'ok' THEN 1 ELSE 0 END)"


def either_form(wanted: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The filters with the hash of each user beside its name: records have one or the other."""
    users = wanted.get("user", ())
    return wanted | ({"user": (*users, *map(hashed, users))} if users else {})


class Range(msgspec.Struct, frozen=True):
    """Which records are meant.

    Attributes:
        start_ms: the first millisecond, Unix time.
        end_ms: the one after the last.
        wanted: values of `FILTERS`, any of which a record has.
    """

    start_ms: int
    end_ms: int
    wanted: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def where(self) -> tuple[str, list[Any]]:
        """The condition, and its values."""
        values: list[Any]
        terms, values = ["time_ms >= ?", "time_ms < ?"], [self.start_ms, self.end_ms]
        for name, wanted in self.wanted.items():
            if name not in FILTERS:  # it becomes a part of the statement
                raise ValueError(name)
            terms.append(f"{GROUPS[name]} IN ({', '.join('?' * len(wanted))})")
            values += wanted
        return " AND ".join(terms), values


class Group(msgspec.Struct, frozen=True):
    """Sums of the records of a group.

    Attributes:
        by: what the records have in common: name -> value; null where they have none.
        requests: how many there are.
        succeeded: of how many the outcome is "ok".
        prompt_tokens: and so on: sums of the record's fields.
        cost: in billionths.
    """

    by: dict[str, str | None]
    requests: int
    succeeded: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: int


Cursor = list[str | int]
"""Where a page ended: the values of its last group, or time and number of its last record."""


def until_now() -> float:
    """The end of a range, in Unix seconds, that has every record kept until now.

    A range is without its last millisecond, and a request that began in this one may have ended. The other millisecond
    is for the rounding of seconds to milliseconds.
    """
    return time.time() + 0.002


def read_groups(
    database: Database, within: Range, by: Sequence[str], limit: int, after: Cursor | None = None
) -> tuple[list[Group], Cursor | None]:
    """A page of groups in the order of their values, and where it ended; None: nothing follows.

    Raises:
        DatabaseError: the database cannot be read.
        ValueError: the cursor is of other groups.
    """
    where, values = within.where()
    names = [GROUPS[name] for name in by]
    if after is not None:
        if len(after) != len(by):
            raise ValueError("cursor")
        where += f" AND ({', '.join(names)}) > ({', '.join('?' * len(names))})"
        values += after
    columns = ", ".join((*names, _COUNTS, _SUMS))
    grouped = f" GROUP BY {', '.join(names)} ORDER BY {', '.join(names)}" if names else ""
    statement = f"SELECT {columns} FROM usage_record WHERE {where}{grouped} LIMIT ?"  # noqa: S608 - own names
    found = database.execute(statement, [*values, limit + 1])
    groups = []
    for row in found[:limit]:
        requests, *sums = (int(value or 0) for value in row[len(by) :])
        groups.append(Group(dict(zip(by, map(_shown, by, row), strict=False)), requests, *sums))
    last = list(found[limit - 1][: len(by)]) if len(found) > limit else None
    return groups, last


def _shown(name: str, value: Any) -> str | None:
    """A group's value: days, hours and minutes as their beginning, UTC."""
    if name == "day":
        return datetime.fromtimestamp(value * _DAY / 1000, UTC).date().isoformat()
    if name in ("hour", "minute"):
        width = _HOUR if name == "hour" else _MINUTE
        return datetime.fromtimestamp(value * width / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return value or None


def read_records(
    database: Database, within: Range, limit: int, after: Cursor | None = None
) -> tuple[list[dict[str, Any]], Cursor | None]:
    """A page of records, the newest first, and where it ended; None: nothing follows.

    Raises:
        DatabaseError: the database cannot be read.
        ValueError: the cursor is none of records.
    """
    where, values = within.where()
    if after is not None:
        if len(after) != 2:
            raise ValueError("cursor")
        where += " AND (time_ms, id) < (?, ?)"
        values += after
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    statement = f"SELECT id, {names} FROM usage_record WHERE {where} ORDER BY time_ms DESC, id DESC LIMIT ?"  # noqa: S608
    found = database.execute(statement, [*values, limit + 1])
    records = [dict(zip(COLUMNS, row[1:], strict=True)) for row in found[:limit]]
    last = [records[-1]["time_ms"], found[limit - 1][0]] if len(found) > limit else None
    return records, last


def read_record(database: Database, request_id: str) -> dict[str, Any] | None:
    """The record of a request of the last day; None if there is none.

    Raises:
        DatabaseError: the database cannot be read.
    """
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    since = int(time.time() * 1000) - _DAY  # there is an index of times, and none of ids
    statement = f"SELECT {names} FROM usage_record WHERE time_ms >= ? AND request_id = ? LIMIT 1"  # noqa: S608
    found = database.execute(statement, [since, request_id])
    return dict(zip(COLUMNS, found[0], strict=True)) if found else None


def all_records(database: Database, within: Range, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """All records, or the `limit` newest, the newest first, read page by page.

    Raises:
        DatabaseError: the database cannot be read.
    """
    after: Cursor | None = None
    left = limit
    while left is None or left > 0:
        page, after = read_records(database, within, _PAGE if left is None else min(left, _PAGE), after)
        yield from page
        if after is None:
            return
        left = None if left is None else left - len(page)
