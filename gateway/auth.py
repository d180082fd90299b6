"""Keys: one check in front of every route but health. Keys are kept as digests and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping

from gateway.config import ConfigError
from schemas.errors import Forbidden, Unauthorized


def keys_from(variable: str | None) -> tuple[str, ...]:
    """The keys that an environment variable holds, separated by commas.

    Raises:
        ConfigError: the variable is not set, or holds none.
    """
    if variable is None:
        return ()
    keys = tuple(key.strip() for key in os.environ.get(variable, "").split(",") if key.strip())
    if not keys:
        raise ConfigError(f"the environment variable {variable}, named by the configuration, holds no key")
    return keys


class Keys:
    """Who may ask: with no keys everybody may. Who may change what is served: with no admin keys nobody may.

    Args:
        keys: clients'.
        admin: those that may change things; they may ask as well.
    """

    def __init__(self, keys: Iterable[str] = (), admin: Iterable[str] = ()) -> None:
        self._admin = [_digest(key) for key in admin]
        self._digests = [_digest(key) for key in keys]
        self.required = bool(self._digests)
        if self._digests:
            self._digests += self._admin

    def check(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that carries a key, as `Authorization: Bearer` or `x-api-key`.

        Raises:
            schemas.errors.Unauthorized: it carries none.
        """
        if self._digests and not _among(self._digests, _given(headers)):
            raise Unauthorized("The API key is not known here.")

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that carries an admin key.

        Raises:
            schemas.errors.Unauthorized: it carries no key, or an unknown one.
            schemas.errors.Forbidden: its key is a client's, or nothing is changed here.
        """
        if not self._admin:
            raise Forbidden("Endpoints cannot be changed here: the server has no admin keys.")
        if _among(self._admin, _given(headers)):
            return
        self.check(headers)
        raise Forbidden("This key may not change endpoints.")


def given_key(headers: Mapping[str, str]) -> str:
    """The key that a request carries; "" if none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _given(headers: Mapping[str, str]) -> bytes:
    """The digest of the key that a request carries."""
    key = given_key(headers)
    if not key:
        raise Unauthorized("No API key was given. Send it as 'Authorization: Bearer KEY'.")
    return _digest(key)


def _among(known: list[bytes], digest: bytes) -> bool:
    return sum(hmac.compare_digest(digest, one) for one in known) > 0  # all of them, in constant time


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
