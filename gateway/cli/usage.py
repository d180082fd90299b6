"""The command `gateway usage`: sums of requests, tokens and cost from the database, and its clearing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.config import ConfigError, ServerSection, UsageSection, load
from gateway.storage.parquet import ParquetMissingError, write_parquet
from gateway.usage.collector import Collector
from gateway.usage.database import Database, open_database
from gateway.usage.errors import DatabaseError
from gateway.usage.query import FILTERS, GROUPS, Range, all_records, either_form, read_groups, until_now
from gateway.usage.tables import (
    Columns,
    Row,
    as_json,
    cell_of,
    csv_parts,
    group_columns,
    group_row,
    record_columns,
    record_row,
)

_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_MOST_GROUPS = 1_000_000


@click.group(invoke_without_command=True)
@click.option("--config", "file", type=click.Path(path_type=Path), help="The configuration, for its section [usage].")
@click.option("--database", help="The database, in place of the configuration's: a file, or a URL of PostgreSQL.")
@click.option("--by", "groups", type=click.Choice(list(GROUPS)), multiple=True, help="Sum by this; may be repeated.")
@click.option("--records", is_flag=True, help="Single requests, the newest first.")
@click.option("--since", default="30d", show_default=True, help="From a time on: 24h, 30d, 4w ago, or 2026-11-01.")
@click.option("--until", help="Before a time; likewise.")
@click.option("--where", "wanted", multiple=True, help="Only these: key=team, endpoint=chat, outcome=ok, ...")
@click.option("--limit", type=click.IntRange(1, 10**12), help="So many lines at most.")
@click.option("--format", "kind", type=click.Choice(["table", "csv", "json", "parquet"]), default="table")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write this file.")
@click.pass_context
def usage(
    context: click.Context, /, file: Path | None, database: str | None, kind: str, out: Path | None, **asked: Any
) -> None:
    """Sum up requests, tokens and cost."""
    context.obj = settings = _settings(file, database)
    if context.invoked_subcommand is not None:
        return
    if kind == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out")
    connection = _opened(*settings)
    try:
        columns, rows = _found(connection, **asked)
        if out is not None:
            _write(kind, columns, rows, out)
        else:
            for part in _parts(kind, columns, rows):
                click.echo(part, nl=False)
    except (DatabaseError, ParquetMissingError, OSError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        connection.close()


@usage.command()
@click.option("--before", help="Only requests before a time: 30d ago, or 2026-11-01.  [default: all]")
@click.confirmation_option(prompt="Delete the records?")
@click.pass_context
def reset(context: click.Context, before: str | None) -> None:
    """Delete records."""
    address, folder = context.obj
    now = time.time()
    try:
        with closing(Collector(Path(folder), address)) as collector:
            collector.collect(wait=True)
            deleted = collector.delete_before(_time(before, now) if before else now + 1)
    except DatabaseError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{deleted} records deleted")


def _settings(file: Path | None, database: str | None) -> tuple[str, str]:
    """The address of the database, and the folder of the records that wait for it."""
    server, section = ServerSection(), UsageSection()
    if file is not None:
        try:
            config = load(file)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
        server, section = config.server, config.usage or section
    if database is not None:
        section = UsageSection(database=database)
    return section.resolved(server)


def _opened(address: str, folder: str) -> Database:
    """The database, with the records that wait for it here, if it is there."""
    if "://" not in address and not Path(address).exists():
        raise click.ClickException(f"there is no database '{address}': name it by --config or --database")
    try:
        if Path(folder).exists():
            with closing(Collector(Path(folder), address)) as collector:
                collector.collect(wait=True)
        return open_database(address)
    except DatabaseError as error:
        raise click.ClickException(str(error)) from None


def _found(
    database: Database,
    groups: Sequence[str],
    wanted: Sequence[str],
    since: str,
    until: str | None,
    limit: int | None,
    *,
    records: bool,
) -> tuple[Columns, Iterable[Row]]:
    now = time.time()
    end = _time(until, now) if until is not None else until_now()
    within = Range(int(_time(since, now) * 1000), int(end * 1000), _filters(wanted))
    if records:
        columns = record_columns(with_text=False)
        return columns, (record_row(record, columns) for record in all_records(database, within, limit))
    return group_columns(groups), map(group_row, read_groups(database, within, groups, limit or _MOST_GROUPS)[0])


def _time(text: str, now: float) -> float:
    if (found := re.fullmatch(r"([0-9]{1,9})([hdw])", text)) is not None:
        return now - int(found[1]) * _UNITS[found[2]]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"'{text}' is no time; write 24h, 30d, 4w or 2026-11-01") from None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def _filters(wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in wanted:
        name, equals, value = text.partition("=")
        if name not in FILTERS or not equals:
            raise click.UsageError(f"'{text}' is no filter; write {'=..., '.join(sorted(FILTERS))}=...")
        found[name] = (*found.get(name, ()), value)
    return either_form(found)


def _write(kind: str, columns: Columns, rows: Iterable[Row], out: Path) -> None:
    if kind == "parquet":
        write_parquet(columns, rows, out)
    else:
        with out.open("wb") as file:
            file.writelines(_parts(kind, columns, rows))


def _parts(kind: str, columns: Columns, rows: Iterable[Row]) -> Iterable[bytes]:
    match kind:
        case "csv":
            return csv_parts(columns, rows)
        case "json":
            return (msgspec.json.encode(as_json(row)) + b"\n" for row in rows)
        case _:
            return (f"{line}\n".encode() for line in _table(columns, list(rows)))


def _table(columns: Columns, rows: list[dict[str, Any]]) -> Iterable[str]:
    lines = [list(columns), *([cell_of(row[name]) or "-" for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [hint not in (str, str | None, datetime) for hint in columns.values()]
    for line in lines:
        cells = zip(line, widths, numeric, strict=True)
        yield "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip()
