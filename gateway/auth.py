"""API keys: who may ask, and who may change endpoints. Kept as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping

from gateway.config import ConfigError
from schemas.errors import Forbidden, Unauthorized

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Where a key may be: in the headers of OpenAI's, Anthropic's, Azure's and Google's clients."""


def keys_from(variable: str | None) -> tuple[str, ...]:
    """The keys that an environment variable holds, separated by commas.

    Raises:
        ConfigError: the variable is not set, or holds no key.
    """
    if variable is None:
        return ()
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
        several: whether there is more than one.

    Args:
        keys: of clients.
        admin: of those that may also change endpoints.
    """

    def __init__(self, keys: Iterable[str] = (), admin: Iterable[str] = ()) -> None:
        self._admin = [_digest(key) for key in admin]
        self._digests = [_digest(key) for key in keys]
        self.required = bool(self._digests)
        # Without client keys everybody may ask; admin keys alone must not close the server to clients.
        if self._digests:
            self._digests += self._admin
        self.several = len(self._digests) > 1

    def check(self, headers: Mapping[str, str]) -> None:
        """Pass a request with a known key, in one of `KEY_HEADERS`, and any if none is required.

        Raises:
            schemas.errors.Unauthorized: it has no key, or an unknown one.
        """
        if self._digests and not _among(self._digests, _given(headers)):
            raise Unauthorized("The API key is not known here.")

    def check_reset(self, headers: Mapping[str, str]) -> None:
        """Pass a request with an admin key; where there are none, with any known key.

        Raises:
            schemas.errors.Unauthorized: it has no key, or an unknown one.
            schemas.errors.Forbidden: its key is a client's, and there are admin keys.
        """
        if self._admin:
            self.check_admin(headers)
        else:
            self.check(headers)

    def owner(self, headers: Mapping[str, str]) -> bytes:
        """A digest of the key in a request's headers, by which its answers are known; empty if no key is needed."""
        return _digest(given_key(headers)) if self.required else b""

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Pass a request with an admin key.

        Raises:
            schemas.errors.Unauthorized: it has no key, or an unknown one.
            schemas.errors.Forbidden: its key is a client's, or the server has no admin keys.
        """
        if not self._admin:
            raise Forbidden("Endpoints cannot be changed here: the server has no admin keys.")
        if _among(self._admin, _given(headers)):
            return
        # Where keys are required, an unknown key is unauthorized (401) and a client's key is forbidden (403).
        self.check(headers)
        raise Forbidden("This key may not change endpoints.")


def given_key(headers: Mapping[str, str]) -> str:
    """The key in a request's headers; "" if there is none."""
    # RFC 9110, section 11.1: the scheme is case-insensitive.
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    return next((headers[name] for name in KEY_HEADERS[1:] if name in headers), "")


def _given(headers: Mapping[str, str]) -> bytes:
    """The digest of the key in a request's headers.

    Raises:
        schemas.errors.Unauthorized: there is none.
    """
    key = given_key(headers)
    if not key:
        raise Unauthorized("No API key was given. Send it as 'Authorization: Bearer KEY'.")
    return _digest(key)


def _among(known: list[bytes], digest: bytes) -> bool:
    # Digests have one length, so comparing them does not reveal a key's length. `sum` does not stop at a match.
    return sum(hmac.compare_digest(digest, one) for one in known) > 0  # all of them, in constant time


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
