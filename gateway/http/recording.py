"""One request's part in the cache of its served entity: looks its answer up, or keeps what is sent."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.http.accounting import RequestAccount
from gateway.routing.target import Target
from gateway.storage.answer_cache import CachedAnswer
from schemas.ir import Request


class Recording:
    """Collects the answer of one request.

    The client's `cache-control` is applied (RFC 9111, section 5.2.1): with `no-cache` its answer is made anew, with
    `no-store` it is not kept either.

    Args:
        target: the assigned one, which has a cache: the answers of no other are kept.
        request: as it was decoded.
        account: the request's; knows in the end whether the answer is complete.
    """

    def __init__(self, target: Target, request: Request, account: RequestAccount) -> None:
        assert target.cache is not None
        self._target, self._cache, self._account = target, target.cache, account
        self._name = self._cache.name_of(request, account.key.digest if account.key is not None else "")
        directives = account.cache_control.lower()
        if "no-store" in directives:
            self._name = None
        self._reads = "no-cache" not in directives
        self._media_type = ""
        self._headers: tuple[tuple[str, str], ...] = ()
        self._parts: list[bytes] = []
        self._size = 0

    async def known(self) -> CachedAnswer | None:
        """The answer that is kept; None if there is none."""
        if self._name is None:
            return None
        found = await self._cache.store.get(self._name) if self._reads else None
        self._account.cache_hit = found is not None
        return found

    def begin(self, media_type: str, headers: Sequence[tuple[str, str]]) -> None:
        """Note the head of the answer."""
        self._media_type, self._headers = media_type, tuple(headers)

    def add(self, data: bytes) -> None:
        """Collect a part of the body, unless it has become too large to be kept."""
        self._size += len(data)
        if self._name is not None and self._size <= self._cache.largest:
            self._parts.append(data)

    async def keep(self) -> None:
        """Keep the answer if it is complete, and of the target."""
        account = self._account
        if self._name is None or account.outcome != "ok" or account.target is not self._target:
            return
        if self._size > self._cache.largest:
            return
        body, reasons = b"".join(self._parts), tuple(account.finish_reasons)
        await self._cache.store.put(
            self._name, CachedAnswer(self._media_type, self._headers, body, account.usage, reasons)
        )
