"""Cached answers of one served entity that all gateways with the same state server give."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.config import Endpoint, ServedEntity
from gateway.storage.answer_cache import CachedAnswer
from gateway.storage.shared.state_server import ServerAway, StateServer


class SharedAnswers:
    """See `AnswerStore`. While the state server is away, nothing is found, and the model is asked.

    Args:
        server: the state server.
        endpoint: the name of the endpoint, and its settings: with others, other answers are found.
        settings: likewise.
        entity: which answers.
        backend: the section of its backend; likewise.
    """

    def __init__(
        self, server: StateServer, endpoint: str, settings: Endpoint, entity: ServedEntity, backend: dict[str, Any]
    ) -> None:
        assert settings.cache is not None
        self._server = server
        self._seconds = max(1, int(settings.cache.ttl))
        served = msgspec.json.encode((endpoint, settings, entity, backend), order="sorted")
        self._prefix = server.key("answers", blake2b(served, digest_size=16).hexdigest(), "")

    async def get(self, name: bytes) -> CachedAnswer | None:
        """The answer of this name; None if there is none, or it has expired."""
        with suppress(ServerAway, msgspec.DecodeError):  # of another release
            data = await self._server.run(lambda redis: redis.get(self._prefix + name.hex()))
            if data is not None:
                return msgspec.msgpack.decode(data, type=CachedAnswer)
        return None

    async def put(self, name: bytes, answer: CachedAnswer) -> None:
        """Keep an answer."""
        data = msgspec.msgpack.encode(answer)
        with suppress(ServerAway):
            await self._server.run(lambda redis: redis.set(self._prefix + name.hex(), data, ex=self._seconds))
