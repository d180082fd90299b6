"""Keys: one check in front of every route but health. Keys are kept as digests and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping

from gateway.config import ConfigError
from schemas.errors import Unauthorized


def keys_from(variable: str | None) -> tuple[str, ...]:
    """The keys that an environment variable holds, separated by commas.

    Raises:
        ConfigError: the variable is not set, or holds none.
    """
    if variable is None:
        return ()
    keys = tuple(key.strip() for key in os.environ.get(variable, "").split(",") if key.strip())
    if not keys:
        raise ConfigError(f"the environment variable {variable}, named by keys_env, holds no key")
    return keys


class Keys:
    """Who may ask. With no keys everybody may."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that carries a key, as `Authorization: Bearer` or `x-api-key`.

        Raises:
            schemas.errors.Unauthorized: it carries none.
        """
        if not self._digests:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            raise Unauthorized("No API key was given. Send it as 'Authorization: Bearer KEY'.")
        digest = _digest(key)
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):  # all of them, in constant time
            raise Unauthorized("The API key is not known here.")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
