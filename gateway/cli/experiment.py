"""The commands `gateway experiment`: export and replay requests, add up gateways, restart a ramp."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_type_hints
from urllib.parse import quote

import click
import msgspec

from gateway.export.rows import Row, read_rows
from gateway.observability import logging
from gateway.storage.parquet import ParquetMissingError, write_parquet
from schemas.errors import GatewayError

if TYPE_CHECKING:
    from gateway.experiments.statistics.confidence import Interval
    from gateway.export.replay import Replayed, ReplayReport

_LOCAL = "http://127.0.0.1:8000"
_ALPHA = 0.05  # of the intervals of a replay


@click.group()
def experiment() -> None:
    """Export the requests of an experiment, replay them on another model, add up gateways, restart a ramp."""
    if find_spec("numpy") is None:
        raise click.ClickException("experiments need NumPy: pip install 'interlingua[experiments]'")


@experiment.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="This gateway's.",
)
@click.option("--label", required=True, help="Names the other gateway; a second call with it replaces the first.")
def add(folder: Path, target: Path, label: str) -> None:
    """Add the figures in FOLDER (another gateway's `<state_file>.experiments`, or a copy) to those of this gateway."""
    from gateway.experiments.shared.replicas import add_figures

    try:
        copied = add_figures(folder, target, label)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{copied} files of counters in {target}")


@experiment.command("restart-ramp")
@click.argument("endpoint")
@click.option("--url", default=_LOCAL, show_default=True, help="The gateway.")
@click.option("--key-env", help="Name of the environment variable that holds an admin key.")
def restart_ramp(endpoint: str, url: str, key_env: str | None) -> None:
    """Begin the ramp of ENDPOINT anew: no share for its arm, and new figures."""
    import httpx

    key = os.environ.get(key_env, "") if key_env else ""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    path = f"{url.rstrip('/')}/serving-endpoints/{quote(endpoint, safe='')}/experiment/ramp/restart"
    try:
        answer = httpx.post(path, headers=headers, timeout=30.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"{url}: {error}") from None
    if answer.is_error:
        raise click.ClickException(f"{url}: {answer.status_code}: {answer.text}")
    ramp = answer.json()["ramp"]
    click.echo(f"{endpoint}: {ramp['arm']} has {ramp['traffic_percentage']} %, next {ramp['next_percentage']} %")


@experiment.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Write this file.")
@click.option("--endpoint", help="Only requests of this endpoint.")
@click.option("--since", type=click.DateTime(), help="Only requests from this time on, UTC.")
@click.option("--until", type=click.DateTime(), help="Only requests before this time, UTC.")
@click.option("--format", "kind", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True)
def export(
    folder: Path,
    out: Path,
    endpoint: str | None,
    since: datetime | None,
    until: datetime | None,
    kind: Literal["jsonl", "parquet"],
) -> None:
    """Write the rows of all workers in FOLDER (`server.export.folder`) to one file, by time."""
    rows = _rows(folder, endpoint, since, until)
    try:
        count = _write_parquet(rows, out) if kind == "parquet" else _write_lines(rows, out)
    except (ParquetMissingError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{count} requests in {out}")


@experiment.command()
@click.argument("rows", metavar="EXPORT", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--against", required=True, help="A served entity of the endpoint, or the URL of a server; its kind is probed."
)
@click.option("--endpoint", required=True, help="The endpoint whose requests are replayed.")
@click.option("--model", help="The model's name at the URL.  [default: the endpoint's]")
@click.option("--url", default=_LOCAL, show_default=True, help="The gateway that serves the served entity.")
@click.option("--key-env", help="Name of the environment variable that holds the key.")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Requests at a time.")
@click.option("--limit", type=click.IntRange(1), help="Replay so many requests at most.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write each new answer to this file, as JSON lines."
)
def replay(
    rows: Path,
    against: str,
    endpoint: str,
    model: str | None,
    url: str,
    key_env: str | None,
    concurrency: int,
    limit: int | None,
    out: Path | None,
) -> None:
    """Ask the requests of an EXPORT with texts again, and compare the answers with the logged ones."""
    from gateway.export.replay import compare

    logging.configure("error")  # to standard error: what the backend says of its health is no result
    is_url = "://" in against
    asked = model or endpoint if is_url else f"{endpoint}:{against}"
    chosen = islice(_rows(rows, endpoint, None, None), limit)
    try:
        found, skipped = asyncio.run(_replay(chosen, against if is_url else url, asked, key_env, concurrency))
    except (GatewayError, ValueError) as error:
        raise click.ClickException(f"{against}: {error}") from None
    if not found:
        why = ", ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "there is none"
        raise click.ClickException(f"{rows}: no request of '{endpoint}' can be replayed ({why})")
    if out is not None:
        out.write_bytes(msgspec.json.Encoder().encode_lines(found))
    for line in _lines(compare(found, skipped, _ALPHA), asked):
        click.echo(line)


async def _replay(
    rows: Iterator[Row], url: str, model: str, key_env: str | None, at_once: int
) -> tuple[list[Replayed], Counter[str]]:
    from backends.remote.options import RemoteOptions
    from backends.remote.probe import probe
    from gateway.export.replay import replay as ask_again
    from gateway.registry import adapters, backend_class

    server = await probe(RemoteOptions(url=url, api_key_env=key_env))
    # One attempt: a failure that a retry repairs is what a replay is to find.
    options = {"url": server.url, "retries": {"attempts": 1}} | ({"api_key_env": key_env} if key_env else {})
    backend = backend_class("replay", server.kind)("replay", options)
    found: list[Replayed] = []
    skipped: Counter[str] = Counter()
    try:
        await backend.start()
        async for each in ask_again(rows, adapters(), backend, model, at_once):
            if isinstance(each, str):
                skipped[each] += 1
            else:
                found.append(each)
    finally:
        await backend.aclose()
    return found, skipped


def _rows(folder: Path, endpoint: str | None, since: datetime | None, until: datetime | None) -> Iterator[Row]:
    """The rows of an endpoint in a range of time.

    Raises:
        click.ClickException: they cannot be read.
    """
    least = since.replace(tzinfo=UTC).timestamp() * 1000 if since is not None else float("-inf")
    most = until.replace(tzinfo=UTC).timestamp() * 1000 if until is not None else float("inf")
    try:
        for row in read_rows(folder):
            if least <= row.timestamp_ms < most and endpoint in (None, row.endpoint):
                yield row
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _write_parquet(rows: Iterator[Row], out: Path) -> int:
    return write_parquet(get_type_hints(Row), map(msgspec.structs.asdict, rows), out)


def _write_lines(rows: Iterator[Row], out: Path) -> int:
    encoder = msgspec.json.Encoder()
    with out.open("wb") as file:
        return sum(file.write(encoder.encode(row) + b"\n") > 0 for row in rows)


def _lines(found: ReplayReport, model: str) -> Iterator[str]:
    yield f"{found.requests} requests on {model}"
    for title, counts in (("skipped", found.skipped), ("failed", found.failures)):
        if counts:
            yield f"  {title}: {', '.join(f'{name} {count}' for name, count in counts.items())}"
    for metric in found.compared:
        if not metric.requests:  # time to first token, where nothing was streamed
            continue
        yield (
            f"  {metric.metric:20} {metric.logged:10.4g} -> {metric.replayed:10.4g}   "
            f"difference {_shown(metric.difference)}   of {metric.requests}"
        )
    yield f"  {'identical answers':20} {_shown(found.identical)}"
    yield f"  {'word agreement':20} {_shown(found.word_agreement)}"
    yield "Logged times were taken under live traffic, so compare them with care; sampled answers differ by chance."


def _shown(found: Interval) -> str:
    if not isfinite(found.estimate):
        return "unknown: no pair of answers with text"
    if not isfinite(found.low):
        return f"{found.estimate:.4g} (no interval: too few requests, or all alike)"
    return f"{found.estimate:.4g} ({found.low:.4g} to {found.high:.4g})"
