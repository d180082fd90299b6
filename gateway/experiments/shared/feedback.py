"""Feedback that reaches another gateway than the one that answered.

Strategy: the gateway that has it asks all of them over a channel. Each looks in the tables of its workers; the one that
knows the answer counts the feedback and says so, the others say that they do not know it. Names of answers are digests
(`gateway.experiments.feedback_ring`), so nobody learns an id or a key from them.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from gateway.experiments.experiments import Experiments, UnknownAnswer
from gateway.storage.shared.state_server import ServerAway, StateServer
from schemas.errors import BackendUnavailable, InvalidRequest

_SECONDS = 1.0
"""For which answers of the gateways are waited for."""


class _Question(msgspec.Struct, frozen=True):
    """Feedback for an answer that the gateway `asker` does not know; `reply` is where it waits."""

    asker: str
    reply: str
    name: bytes
    metric: str
    value: float


class _Reply(msgspec.Struct, frozen=True):
    """What has become of it at one gateway: counted, or refused with a text, or the answer is not known there."""

    known: bool = False
    refused: str = ""
    param: str | None = None


class SharedFeedback:
    """The part of the synchronizer, and what asks.

    Args:
        server: the state server.
        gateway: the name of this one.
        experiments: of this worker.
        refresh: has this worker serve what is deployed by now.
    """

    def __init__(
        self, server: StateServer, gateway: str, experiments: Experiments, refresh: Callable[[], None]
    ) -> None:
        self._server, self._gateway, self._experiments, self._refresh = server, gateway, experiments, refresh
        self._channel = server.key("feedback")
        self.channels: Mapping[str, Callable[[bytes], Awaitable[None]]] = {self._channel: self._asked}

    def is_due(self) -> bool:
        """Never: feedback is sent when it comes."""
        return False

    async def look(self) -> None:
        """Nothing: it is asked when it is needed."""

    async def send(self, name: bytes, metric: str, value: float) -> None:
        """Have feedback counted by the gateway that knows the answer.

        Raises:
            schemas.errors.InvalidRequest: none knows it, or its endpoint has no such metric or value.
            schemas.errors.BackendUnavailable: not all gateways have answered.
        """
        reply = self._server.key("feedback", secrets.token_hex(8))
        question = msgspec.msgpack.encode(_Question(self._gateway, reply, name, metric, value))
        try:
            asked = await self._server.run(lambda redis: redis.publish(self._channel, question))
            for _ in range(asked):
                data = await self._server.pop(reply, _SECONDS)
                if data is None:
                    raise ServerAway("a gateway does not answer")
                found = msgspec.msgpack.decode(data, type=_Reply)
                if found.refused:
                    raise InvalidRequest(found.refused, param=found.param)
                if found.known:
                    return
        except ServerAway:
            raise BackendUnavailable(
                "The gateway that knows this answer cannot be asked now.", retry_after=1.0
            ) from None
        raise UnknownAnswer()

    async def _asked(self, data: bytes) -> None:
        question = msgspec.msgpack.decode(data, type=_Question)
        reply = msgspec.msgpack.encode(_Reply() if question.asker == self._gateway else self._count(question))

        async def answer(redis: Any) -> None:
            async with redis.pipeline(transaction=True) as pipeline:
                pipeline.rpush(question.reply, reply)
                pipeline.expire(question.reply, int(10 * _SECONDS))
                await pipeline.execute()

        await self._server.run(answer)

    def _count(self, question: _Question) -> _Reply:
        self._refresh()
        try:
            self._experiments.feedback(question.name, question.metric, question.value)
        except UnknownAnswer:
            return _Reply()
        except InvalidRequest as error:
            return _Reply(known=True, refused=error.message, param=error.param)
        return _Reply(known=True)
