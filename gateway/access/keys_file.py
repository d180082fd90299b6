"""The file of API keys: names, roles, endpoints and limits of each key, and a digest in place of the key itself.

The file is shared by all workers and by the command `gateway keys`; workers notice a change with the next request.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.config import ConfigError, Limit, Role, Section
from gateway.storage.json_file import JsonFile
from schemas.errors import Conflict, RouteNotFound

PREFIX = "il-"
_HINT = len(PREFIX) + 4
"""Characters of a key that listings show."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its zone: times without one cannot be compared with now."""


class Key(Section, frozen=True):
    """One key.

    Attributes:
        name: unique; shown in logs, metrics and usage.
        digest: SHA-256 of the key, in hexadecimal. A key has 256 random bits, so its digest needs no salt.
        hint: the key's first characters.
        roles: what it may do.
        endpoints: those that it may ask; `*` stands for any characters, `?` for one.
        limits: of its requests to all endpoints together.
        created: when.
        expires: from when on it is refused; None: never.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:@-]+$", max_length=128)]
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    hint: str = ""
    roles: Annotated[tuple[Role, ...], msgspec.Meta(min_length=1)] = ("ask",)
    endpoints: tuple[str, ...] = ("*",)
    limits: tuple[Limit, ...] = ()
    created: datetime | None = None
    expires: Moment | None = None

    def may(self, role: Role) -> bool:
        """Whether it has a role, or all of them as an admin."""
        return role in self.roles or "admin" in self.roles

    def may_ask(self, endpoint: str) -> bool:
        """Whether it may ask an endpoint."""
        return self.endpoints == ("*",) or any(fnmatchcase(endpoint, pattern) for pattern in self.endpoints)

    @property
    def expired(self) -> bool:
        """Whether it is refused by now."""
        return self.expires is not None and datetime.now(UTC) >= self.expires


class KeyList(Section, frozen=True):
    """What the file holds."""

    keys: tuple[Key, ...] = ()


def digest_of(key: str) -> bytes:
    """The digest by which a key is known."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def keys_file(path: Path) -> JsonFile[KeyList]:
    """The file, which only its owner may read."""
    return JsonFile(path, KeyList(), mode=0o600)


def read_keys(file: JsonFile[KeyList]) -> tuple[Key, ...]:
    """The keys of a file.

    Raises:
        ConfigError: it does not exist, cannot be read, or two keys have the same name or digest.
    """
    _check_exists(file)
    keys = file.read().keys
    for unique in ({key.name for key in keys}, {key.digest for key in keys}):
        if len(unique) != len(keys):
            raise ConfigError(f"{file.path}: two keys have the same name or the same digest")
    return keys


def _check_exists(file: JsonFile[KeyList]) -> None:
    if not file.path.exists():
        raise ConfigError(f"server.keys_file: there is no file '{file.path}'; `gateway keys new` makes one")


def new_key(
    file: JsonFile[KeyList],
    name: str,
    *,
    roles: tuple[Role, ...] = ("ask",),
    endpoints: tuple[str, ...] = ("*",),
    limits: tuple[Limit, ...] = (),
    expires: datetime | None = None,
    makes_file: bool = True,
) -> str:
    """Make a key and add it to the file; return it. It is not kept and cannot be shown again. Blocks.

    Args:
        file: the file.
        name: the key's.
        roles: what it may do.
        endpoints: those that it may ask.
        limits: of its requests.
        expires: from when on it is refused; None: never.
        makes_file: whether a file that does not exist is made. While serving it would lock out all other keys, which
            are known until then.

    Raises:
        Conflict: the name is taken.
        ConfigError: the file cannot be read.
        OSError: it cannot be written.
        msgspec.ValidationError: the name, a limit or the time is not allowed.
    """
    text = PREFIX + secrets.token_urlsafe(32)
    made = Key(
        name=name,
        digest=digest_of(text).hex(),
        hint=text[:_HINT],
        roles=roles,
        endpoints=endpoints,
        limits=limits,
        created=datetime.now(UTC).replace(microsecond=0),
        expires=expires,
    )
    # Structs check their fields only when they are decoded.
    made = msgspec.convert(msgspec.to_builtins(made), Key)

    def add(found: KeyList) -> KeyList:
        if not makes_file:
            _check_exists(file)
        if any(key.name == name for key in found.keys):
            raise Conflict(f"There is a key '{name}' already.")
        return KeyList(keys=(*found.keys, made))

    file.change(add)
    return text


def revoke_key(file: JsonFile[KeyList], name: str) -> None:
    """Remove a key from the file: workers refuse it from their next request on. Blocks.

    Raises:
        RouteNotFound: there is no such key.
        ConfigError: the file does not exist or cannot be read.
        OSError: it cannot be written.
    """

    def remove(found: KeyList) -> KeyList:
        _check_exists(file)  # the keys that workers know stay in force then
        kept = tuple(key for key in found.keys if key.name != name)
        if len(kept) == len(found.keys):
            raise RouteNotFound(f"There is no key '{name}'.")
        return KeyList(keys=kept)

    file.change(remove)
