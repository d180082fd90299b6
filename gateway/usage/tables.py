"""Groups and records as tables: for CSV, Parquet and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, get_type_hints

import msgspec

from gateway.config import BILLION
from gateway.usage.query import Group
from gateway.usage.record import Record

Columns = Mapping[str, Any]
"""Name -> type."""
Row = dict[str, Any]

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
_LINES = 1000
"""Lines of CSV that are written at a time."""

_TEXTS = ("input", "output")
_RENAMED: Final = {"time_ms": "time"}
_TYPES: Final = {"time": datetime, "cost": Decimal}


def record_columns(*, with_text: bool) -> Columns:
    """The columns of records."""
    hints = {_RENAMED.get(name, name): hint for name, hint in get_type_hints(Record).items()}
    return {name: _TYPES.get(name, hint) for name, hint in hints.items() if with_text or name not in _TEXTS}


def record_row(record: Mapping[str, Any], columns: Columns) -> Row:
    """A record from the database as a row."""
    row = dict(record)
    row["time"] = datetime.fromtimestamp(row.pop("time_ms") / 1000, UTC)
    row["cost"] = money(row["cost"])
    for name in ("streamed", "cache_hit"):  # SQLite has numbers
        row[name] = bool(row[name]) if row[name] is not None else None
    return {name: row[name] for name in columns}


def group_columns(by: Sequence[str]) -> Columns:
    """The columns of groups."""
    sums = [field.name for field in msgspec.structs.fields(Group) if field.name not in ("by", "cost")]
    return dict.fromkeys(by, str | None) | dict.fromkeys(sums, int) | {"cost": Decimal}


def group_row(group: Group) -> Row:
    """A group as a row."""
    sums = {name: value for name, value in msgspec.structs.asdict(group).items() if name != "by"}
    return {**group.by, **sums, "cost": money(group.cost)}


def money(billionths: int) -> Decimal:
    """A cost, exact, with nine digits after the point."""
    return Decimal(billionths).scaleb(-9)


def as_json(row: Row) -> Row:
    """A row for JSON: a cost is a number, which is exact below nine million."""
    shown = row | {"cost": int(row["cost"] * BILLION) / BILLION}
    return shown | ({"time": shown_time(row["time"])} if "time" in row else {})


def shown_time(time: datetime) -> str:
    """A time as RFC 3339 has it, to the millisecond."""
    return time.isoformat(timespec="milliseconds")


def csv_parts(columns: Columns, rows: Iterable[Row]) -> Iterator[bytes]:
    """The rows as CSV (RFC 4180), in parts."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for number, row in enumerate(rows, 1):
        writer.writerow([cell_of(row[name]) for name in columns])
        if number % _LINES == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def cell_of(value: Any) -> str:
    """A value as text; "" for null."""
    match value:
        case None:
            return ""
        case Decimal():
            return f"{value:f}"
        case bool():
            return "true" if value else "false"
        case datetime():
            return shown_time(value)
        case str() if value.startswith(_FORMULAS):
            # Names and texts are of clients: a spreadsheet must not take one for a formula.
            return f"'{value}"
    return str(value)
