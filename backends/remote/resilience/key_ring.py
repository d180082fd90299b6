"""Several keys for one server: they take turns, and one that the server refuses rests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import structlog

from adapters.base import Outbound
from backends.transport import Exchanger, Response

log = structlog.get_logger()

_REST = {401: 300.0, 429: 30.0}
"""Seconds for which a key rests, by the status that refused it; `retry-after` goes first."""
_LONGEST_REST = 3600.0


class Key(NamedTuple):
    """A server's key: the environment variable that it comes from, the key, and the header that carries it."""

    variable: str
    value: str
    header: tuple[str, str]


class KeyRing:
    """Sends requests with the keys in turn.

    A request whose key is refused is sent again with the next key that does not rest: the server has generated nothing.

    Args:
        name: the backend's name, for the log.
        client: sends the requests.
        keys: at least two.
    """

    def __init__(self, name: str, client: Exchanger, keys: Sequence[Key]) -> None:
        self._name = name
        self._client = client
        self._keys = keys
        self._turn = 0
        self._rests_until = [0.0] * len(keys)  # of the event loop's clock

    async def exchange(self, request: Outbound, deadline: float | None = None) -> Response:
        """Send a request with the next key and return once the head of its answer has arrived.

        Raises:
            schemas.errors.GatewayError: there is no answer, or none by `deadline`.
        """
        response = await self._send(request, deadline)
        for _ in self._keys[1:]:
            if response.status not in _REST or not self._awake():
                break
            response.close()
            response = await self._send(request, deadline)
        return response

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._client.aclose()

    async def _send(self, request: Outbound, deadline: float | None) -> Response:
        place = self._next()
        headers = (*request.headers, self._keys[place].header)
        response = await self._client.exchange(msgspec.structs.replace(request, headers=headers), deadline)
        if response.status in _REST:
            self._rest(place, response)
        return response

    def _awake(self) -> list[int]:
        """The places of the keys that do not rest."""
        now = asyncio.get_running_loop().time()
        return [place for place, until in enumerate(self._rests_until) if until <= now]

    def _next(self) -> int:
        """The place of the next key; if all rest, of the one whose rest ends first."""
        awake = self._awake()
        if not awake:
            return min(range(len(self._keys)), key=self._rests_until.__getitem__)
        self._turn += 1
        return awake[self._turn % len(awake)]

    def _rest(self, place: int, response: Response) -> None:
        asked = response.header("retry-after")
        seconds = min(float(asked), _LONGEST_REST) if asked.isdecimal() else _REST[response.status]
        self._rests_until[place] = asyncio.get_running_loop().time() + seconds
        variable = self._keys[place].variable
        log.warning("key.rested", backend=self._name, variable=variable, status=response.status, seconds=seconds)
