"""The context lengths of a server's models: as configured, or as the server tells when one is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from adapters.base import Outbound, Reply
from backends.remote.resilience.health_check import CHECK_TIMEOUT
from backends.transport import Exchanger
from schemas.errors import GatewayError

_LASTS = 600.0
"""Seconds after which a server is asked again: it may have been started anew with another length."""
_MOST_MODELS = 1000
"""Models that are remembered: their names come from clients where an endpoint names none."""


@dataclass(frozen=True, slots=True)
class Telling:
    """How a server tells the context lengths of its models.

    Attributes:
        path: of a GET below the server's URL; `{model}` stands for the model's name.
        read: the lengths in the decoded answer by the models' names, "" for any. It may raise `LookupError`,
            `TypeError` or `AttributeError` for JSON of another shape.
    """

    path: str
    read: Callable[[Any], dict[str, Any]]

    @property
    def lists(self) -> bool:
        """Whether one answer is about all models."""
        return "{model}" not in self.path


def of_listing(*members: str, models: str = "data", name: str = "id") -> Callable[[Any], dict[str, Any]]:
    """A reader of a listing: the first of `members` that the model has is its context length.

    Args:
        members: of a model.
        models: the listing's member that holds the models.
        name: the model's member that holds its name.
    """

    def read(answer: Any) -> dict[str, Any]:
        found = {
            each[name]: next((each[member] for member in members if each.get(member)), None) for each in answer[models]
        }
        # A server of one model may take any name for it.
        return found | ({"": next(iter(found.values()))} if len(found) == 1 else {})

    return read


class ContextLengths:
    """What is known of the context lengths of one server's models.

    Args:
        client: of the server.
        configured: the length of all its models, in tokens of prompt and answer; None: not configured.
        telling: how the server tells; None if it does not.
    """

    def __init__(self, client: Exchanger, configured: int | None, telling: Telling | None) -> None:
        self._client = client
        self._configured = configured
        self._telling = telling
        self._known: dict[str, tuple[float, dict[str, int]]] = {}  # by the path that was asked

    async def of(self, model: str) -> int | None:
        """The context length of a model; None if nobody knows it."""
        if self._configured is not None or self._telling is None:
            return self._configured
        lengths = await self._lengths(self._telling, model)
        return lengths.get(model) or lengths.get("")

    async def listed(self, path: str, reply: Reply) -> dict[str, int]:
        """The lengths of all models by their names, "" for any; {} if they are configured or not listed together.

        Args:
            path: that was asked of the server just now.
            reply: the answer: the same path need not be asked again.
        """
        telling = self._telling
        if self._configured is not None or telling is None or not telling.lists:
            return {}
        if path == telling.path:
            self._known[path] = (asyncio.get_running_loop().time(), _read(telling, reply))
        return await self._lengths(telling, "")

    async def _lengths(self, telling: Telling, model: str) -> dict[str, int]:
        path = telling.path.format(model=quote(model, safe=""))
        now = asyncio.get_running_loop().time()
        asked, lengths = self._known.get(path, (-_LASTS, {}))
        if now - asked >= _LASTS:
            lengths = await self._ask(telling, path, now + CHECK_TIMEOUT)
            if len(self._known) >= _MOST_MODELS:
                self._known.clear()
            self._known[path] = (now, lengths)
        return lengths

    async def _ask(self, telling: Telling, path: str, deadline: float) -> dict[str, int]:
        # A server that does not answer, or not so, has said nothing: its refusals still do.
        reply = Reply(status=0)
        with suppress(GatewayError):
            response = await self._client.exchange(Outbound(path, b"", "GET", ()), deadline)
            try:
                reply = await response.reply(deadline)
            finally:
                response.close()
        return _read(telling, reply)


def _read(telling: Telling, reply: Reply) -> dict[str, int]:
    if reply.status != 200:
        return {}
    try:
        lengths = telling.read(msgspec.json.decode(reply.body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return {}
    return {name: length for name, length in lengths.items() if isinstance(length, int) and length > 0}
