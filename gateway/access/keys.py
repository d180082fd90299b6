"""API keys: who may ask, and who may change endpoints. Keys are known by digests; their text is kept nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from time import monotonic

import structlog

from gateway.access.keys_file import Key, digest_of, keys_file, read_keys
from gateway.config import ConfigError, Role, ServerSection
from schemas.errors import Forbidden, Unauthorized

log = structlog.get_logger()

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Where a key may be: in the headers of OpenAI's, Anthropic's, Azure's and Google's clients."""

_BETWEEN_LOOKS = 0.25
"""Seconds between two looks at the file, which cost a system call: for so long a revoked key is still accepted."""


def keys_from(variable: str | None) -> tuple[str, ...]:
    """The keys that an environment variable holds, separated by commas.

    Raises:
        ConfigError: the variable is not set, or holds no key.
    """
    if variable is None:
        return ()
    if not variable.isidentifier():
        # Without repeating it: it may be a key.
        raise ConfigError("the name of an environment variable is wanted here, not a key; export the key under a name")
    keys = tuple(key.strip() for key in os.environ.get(variable, "").split(",") if key.strip())
    if not keys:
        raise ConfigError(
            f"the environment variable {variable}, named by the configuration, holds no key; "
            "set it to one key or several, separated by commas"
        )
    return keys


class Keys:
    """The known keys. Without client keys everybody may ask; without admin keys nobody may change endpoints.

    Attributes:
        required: whether a request needs a key.
        several: whether there is, or may be, more than one.

    Args:
        keys: of clients.
        admin: of those that may also change endpoints.
        file: with more keys, each with rights of its own.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, keys: Iterable[str] = (), admin: Iterable[str] = (), file: Path | None = None) -> None:
        self._fixed = [_key_of(key, ("ask", "metrics")) for key in keys]
        admins = [_key_of(key, ("admin",)) for key in admin]
        # Without client keys everybody may ask; admin keys alone must not close the server to clients.
        self.required = bool(self._fixed) or file is not None
        self._fixed += admins
        self.several = len(self._fixed) > 1 or file is not None
        self._file = keys_file(file) if file is not None else None
        # The stamp is taken before the file is read: a change in between is read once more, never missed.
        self._stamp = self._file.stamp() if self._file is not None else 0
        self._next_look = 0.0 if file is not None else inf
        self._known: dict[bytes, Key] = {}
        self._take(read_keys(self._file) if self._file is not None else ())

    def refresh(self) -> None:
        """Read the file if it has changed. One that cannot be read is logged; the known keys stay in force."""
        if (now := monotonic()) < self._next_look or self._file is None:
            return
        self._next_look = now + _BETWEEN_LOOKS
        if (stamp := self._file.stamp()) == self._stamp:
            return
        self._stamp = stamp  # also for a file that is refused below: it is reported once, not at every request
        try:
            self._take(read_keys(self._file))
        except ConfigError as error:
            log.error("keys.rejected", error=str(error))

    def find(self, headers: Mapping[str, str]) -> Key | None:
        """The key of a request; None if none is required.

        Raises:
            schemas.errors.Unauthorized: it has no key, an unknown one, or one that has expired.
        """
        if not self.required:
            return None
        if monotonic() >= self._next_look:
            self.refresh()
        return self._find(given_key(headers))

    def _find(self, given: str) -> Key:
        """The key of this text.

        Raises:
            schemas.errors.Unauthorized: there is no text, or no such key, or the key has expired.
        """
        if not given:
            raise Unauthorized("No API key was given. Send it as 'Authorization: Bearer KEY'.")
        # A lookup by digest reveals nothing by its time: nobody can choose the digest of a key that they try.
        key = self._known.get(digest_of(given))
        if key is None:
            raise Unauthorized("The API key is not known here.")
        if key.expired:
            raise Unauthorized("The API key has expired.")
        return key

    def identify(self, headers: Mapping[str, str]) -> Key | None:
        """The key of a request for what belongs to keys; None if the server knows no key at all.

        Raises:
            schemas.errors.Unauthorized: it has no key, an unknown one, or one that has expired.
        """
        self.refresh()
        return self._find(given_key(headers)) if self._known or self.required else None

    def of_owner(self, owner: str) -> Key | None:
        """The key whose background work is done now, by its digest; None if none is required.

        Raises:
            schemas.errors.Unauthorized: it was revoked, or has expired.
            schemas.errors.Forbidden: it may not ask any more.
        """
        if not self.required:
            return None
        self.refresh()
        key = self._known.get(bytes.fromhex(owner))
        if key is None or key.expired:
            raise Unauthorized("The API key was revoked, or has expired.")
        if not key.may("ask"):
            raise Forbidden("This key does not have the role 'ask'.")
        return key

    def check(self, headers: Mapping[str, str], role: Role = "ask") -> Key | None:
        """The key of a request that needs a role; None if no key is required.

        Raises:
            schemas.errors.Unauthorized: it has no key, an unknown one, or one that has expired.
            schemas.errors.Forbidden: its key does not have the role.
        """
        if not self.required:
            return None
        if monotonic() >= self._next_look:
            self.refresh()
        given = given_key(headers)
        # Written out for speed: nearly always the key is known, never expires and has this very role.
        key = self._known.get(digest_of(given))
        if key is None or key.expires is not None or role not in key.roles:
            key = self._find(given)
            if not key.may(role):
                raise Forbidden(f"This key does not have the role '{role}'.")
        return key

    def usual(self, digest: bytes) -> Key | None:
        """The key of a digest, if it may ask and never expires; None: `check` has more to say."""
        if monotonic() >= self._next_look:
            self.refresh()
        key = self._known.get(digest)
        return None if key is None or key.expires is not None or "ask" not in key.roles else key

    def check_reset(self, headers: Mapping[str, str]) -> str:
        """The name of the key of a request: an admin key's; where there are none, any known key's, or "" without one.

        Raises:
            schemas.errors.Unauthorized: it has no key, or an unknown one.
            schemas.errors.Forbidden: its key is a client's, and there are admin keys.
        """
        key = self.check_admin(headers) if self.has_admins else self.check(headers)
        return key.name if key is not None else ""

    def check_admin(self, headers: Mapping[str, str]) -> Key:
        """The admin key of a request.

        Raises:
            schemas.errors.Unauthorized: it has no key, or an unknown one.
            schemas.errors.Forbidden: its key is a client's, or the server has no admin keys.
        """
        self.refresh()
        if not self.has_admins:
            raise Forbidden("This needs an admin key, and the server has none.")
        given = given_key(headers)
        if self.required or not given:  # where none is required, an unknown key is a client's
            self._find(given)
        key = self._known.get(digest_of(given))
        if key is None or key.expired or not key.may("admin"):
            raise Forbidden("This key may not change endpoints.")
        return key

    def owner(self, headers: Mapping[str, str]) -> bytes:
        """A digest of the key in a request's headers, by which its answers are known; empty if no key is needed."""
        return digest_of(given_key(headers)) if self.required else b""

    def _take(self, keys: Iterable[Key]) -> None:
        self._known = {bytes.fromhex(key.digest): key for key in (*self._fixed, *keys)}

    @property
    def has_admins(self) -> bool:
        """Whether any key may change endpoints."""
        return any(key.may("admin") for key in self._known.values())


def given_key(headers: Mapping[str, str]) -> str:
    """The key in a request's headers; "" if there is none."""
    if (credentials := headers.get("authorization")) is not None:
        if credentials.startswith("Bearer "):
            return credentials[7:].strip()
        # RFC 9110, section 11.1: the scheme is case-insensitive.
        scheme, _, given = credentials.partition(" ")
        if scheme.lower() == "bearer":
            return given.strip()
    return next((headers[name] for name in KEY_HEADERS[1:] if name in headers), "")


def _key_of(key: str, roles: tuple[Role, ...]) -> Key:
    """A key of the environment, named by the beginning of its digest."""
    digest = digest_of(key).hex()
    return Key(name=f"env:{digest[:8]}", digest=digest, roles=roles)


def make_keys(server: ServerSection) -> Keys:
    """The keys that a configuration names.

    Raises:
        ConfigError: a variable is not set, or the file cannot be read.
    """
    file = Path(server.keys_file) if server.keys_file is not None else None
    return Keys(keys_from(server.keys_env), keys_from(server.admin_keys_env), file)
