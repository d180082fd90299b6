"""An answer whose head has arrived, whichever client sent the request; and which redirects are followed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urljoin, urlsplit

from adapters.base import Headers, Reply
from backends.transport.url import origin_of
from schemas.errors import BackendFailed, Fault

_STATUSES = frozenset({301, 302, 303, 307, 308})


class Response(ABC):
    """An answer whose head has arrived. End it with `finish` or `close`; its connection is lent until then.

    Args:
        status: the HTTP status.
        headers: by lower-case names.
        limit: bytes of a whole body.
    """

    __slots__ = ("_first", "_limit", "headers", "media_type", "status")

    def __init__(self, status: int, headers: Headers, limit: int) -> None:
        self.status = status
        self.headers = headers
        self._limit = limit
        # The later key wins in a `dict`, hence the reversal.
        self._first = dict(reversed(headers))  # of a repeated header, the first value wins
        self.media_type = self._first.get("content-type", "").partition(";")[0].strip().lower()

    def header(self, name: str) -> str:
        """The first value of a header, by its lower-case name; "" without one."""
        return self._first.get(name, "")

    @abstractmethod
    def read(self, deadline: float | None) -> Coroutine[Any, Any, bytes]:
        """All of the body that has arrived, at least a byte; empty at its end.

        Raises:
            schemas.errors.BackendError: the rest will not arrive, or no byte of it by `deadline`.
        """

    def offer(self, take: Callable[[bytes], float | None]) -> None:  # noqa: B027 - optional
        """Call this first with what comes while `read` waits, if that is possible.

        Args:
            take: returns the deadline of the next read if it takes the bytes, which `read` then does not return.
        """

    @abstractmethod
    def finish(self) -> None:
        """End a complete answer; its connection may be reused. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """End the answer; unless it is complete, close its connection, which tells the upstream to stop. Idempotent."""

    async def reply(self, deadline: float | None) -> Reply:
        """Read the whole answer. The caller still ends it.

        Raises:
            schemas.errors.BackendError: as for `read`, or the body is larger than the limit.
        """
        parts: list[bytes] = []
        size = 0
        # The deadline is a point in time, so it bounds the sum of all reads.
        while data := await self.read(deadline):
            parts.append(data)
            size += len(data)
            # Counted while reading: `content-length` may be absent or wrong.
            if size > self._limit:
                raise BackendFailed("The backend's answer is too large.", fault=Fault.TOO_BIG)
        return Reply(b"".join(parts), self.status, self.media_type, self.headers)


def redirected_to(url: str, method: str, response: Response) -> str | None:
    """The URL that an answer redirects a request to, if it may be sent there as it was.

    Only the same origin: elsewhere the key and the prompt might reach somebody else. A POST only by 307 and 308: after
    the others clients send a GET (RFC 9110, 15.4).
    """
    if response.status not in ({307, 308} if method == "POST" else _STATUSES):
        return None
    try:
        to = urljoin(url, response.header("location"))
        return to if origin_of(urlsplit(to)) == origin_of(urlsplit(url)) else None
    except ValueError:  # a location that is no URL
        return None
