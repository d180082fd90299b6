"""The commands `gateway keys`: make, list and revoke the API keys of a file."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import click
import msgspec

from gateway.access.keys_file import keys_file, new_key, read_keys, revoke_key
from gateway.config import ConfigError, Limit, Role, Window
from schemas.errors import GatewayError

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_NUMBER = "([0-9]{1,18})"
_LIMIT = re.compile(
    rf"(?:(requests|tokens)={_NUMBER}|cost=([0-9]{{0,15}}[.]?[0-9]{{1,15}}))/({'|'.join(get_args(Window))})"
    rf"|(concurrent)={_NUMBER}"
)

_file = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default="keys.json",
    show_default=True,
    help="The file that `server.keys_file` names.",
)


@click.group()
def keys() -> None:
    """Make, list and revoke API keys. A running gateway applies a change at once."""


@keys.command()
@click.argument("name")
@_file
@click.option("--role", "roles", type=click.Choice(get_args(Role)), multiple=True, default=("ask",), show_default=True)
@click.option("--endpoint", "endpoints", multiple=True, default=("*",), show_default=True, help="One that it may ask.")
@click.option(
    "--limit", "limits", multiple=True, help="requests=60/minute, tokens=1000000/day, cost=5/month, concurrent=8"
)
@click.option(
    "--expires", help="After so many hours, days or weeks (12h, 30d, 4w), or at a time (2027-01-31T00:00:00Z)."
)
def new(
    name: str,
    file: Path,
    roles: tuple[Role, ...],
    endpoints: tuple[str, ...],
    limits: tuple[str, ...],
    expires: str | None,
) -> None:
    """Make a key called NAME and print it, this once."""
    try:
        made = new_key(
            keys_file(file),
            name,
            roles=roles,
            endpoints=endpoints,
            limits=tuple(map(_limit, limits)),
            expires=_time(expires) if expires else None,
        )
    except (GatewayError, ConfigError, msgspec.ValidationError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(made)


@keys.command("list")
@_file
def list_keys(file: Path) -> None:
    """List the keys: name, beginning, roles, endpoints, limits, expiry."""
    try:
        found = read_keys(keys_file(file))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for key in found:
        expires = f"  until {_shown_time(key.expires)}" if key.expires is not None else ""
        limits = "".join(f"  {_shown(limit)}" for limit in key.limits)
        state = "  EXPIRED" if key.expired else ""
        click.echo(
            f"{key.name}  {key.hint}...  {','.join(key.roles)}  {','.join(key.endpoints)}{limits}{expires}{state}"
        )


@keys.command()
@click.argument("name")
@_file
def revoke(name: str, file: Path) -> None:
    """Remove the key called NAME: it is refused from the next request on."""
    try:
        revoke_key(keys_file(file), name)
    except (GatewayError, ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _limit(text: str) -> Limit:
    """A limit as `--limit` has it.

    Raises:
        msgspec.ValidationError: it is no such limit.
    """
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise msgspec.ValidationError(f"'{text}' is no limit; write requests=60/minute, cost=5/month or concurrent=8")
    kind, most, cost, window, concurrent, places = found.groups()
    fields = {concurrent: int(places)} if concurrent else {"cost": float(cost)} if cost else {kind: int(most)}
    return msgspec.convert(fields | ({} if concurrent else {"window": window}), Limit)


def _shown(limit: Limit) -> str:
    """A limit as `--limit` has it."""
    numbers = (("requests", limit.requests), ("tokens", limit.tokens), ("cost", limit.cost))
    parts = [f"{kind}={most:g}/{limit.window}" for kind, most in numbers if most is not None]
    return " ".join([*parts, *([f"concurrent={limit.concurrent}"] if limit.concurrent is not None else [])])


def _shown_time(time: datetime) -> str:
    """A time to the minute, in UTC."""
    try:
        return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except OverflowError:  # `datetime` ends with the year 9999, which stands for "never" in some files
        return f"{time:%Y-%m-%d %H:%M %Z}"


def _time(text: str) -> datetime:
    """When a key expires.

    Raises:
        msgspec.ValidationError: the text is no such time.
    """
    if (found := re.fullmatch(r"([0-9]+)([hdw])", text)) is not None:
        try:
            return datetime.now(UTC).replace(microsecond=0) + int(found[1]) * _UNITS[found[2]]
        except (OverflowError, ValueError):
            raise msgspec.ValidationError(f"'{text}' is too long; leave --expires out for a key without end") from None
    time = msgspec.convert(text, datetime)
    if time.tzinfo is None:
        raise msgspec.ValidationError(f"'{text}' has no time zone; write it with a Z at its end")
    return time
