"""What the gateways with the same state server share, as one worker of one of them has it.

Without the section `state` there is none of this, and what workers share is in files alone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from gateway.access.shared_keys import SharedKeys
from gateway.config import Config, Endpoint, ServedEntity
from gateway.deployment.deployments import State
from gateway.deployment.state_file import state_file
from gateway.experiments.experiments import Experiments, figures_folder
from gateway.experiments.shared.feedback import SharedFeedback
from gateway.experiments.shared.figures import SharedFigures
from gateway.storage.answer_cache import AnswerStore
from gateway.storage.json_file import JsonFile
from gateway.storage.shared.answers import SharedAnswers
from gateway.storage.shared.document import SharedDocument
from gateway.storage.shared.members import Members, gateway_name
from gateway.storage.shared.state_server import StateServer
from gateway.storage.shared.synchronizer import Part, Synchronizer

log = structlog.get_logger()

_CONFIRM_SECONDS = 2.0
"""For which a change waits for the other gateways to serve it."""


class _Endpoints:
    """The endpoints' part of the synchronizer."""

    def __init__(self, document: SharedDocument[State], members: Members) -> None:
        self._document, self._members = document, members
        self.channels: Mapping[str, Callable[[bytes], Awaitable[None]]] = {document.channel: self._changed}

    def is_due(self) -> bool:
        return False  # who changes them gives them at once

    async def look(self) -> None:
        await self._document.look()
        await self._members.beat(self._document.revision)

    async def _changed(self, _: bytes) -> None:
        await self.look()


class Shared:
    """One worker's share.

    Attributes:
        folder: shared by the workers of this gateway.
        server: the state server.
        endpoints: what was changed while serving.

    Args:
        config: it has a section `state`.
        folder: shared by the workers of this gateway; None: there is one worker, which then gets a folder.

    Raises:
        ConfigError: the state server cannot be used as configured.
    """

    def __init__(self, config: Config, folder: Path | None) -> None:
        assert config.state is not None
        self._config = config
        self.server = StateServer(config.state)
        self._temporary = tempfile.TemporaryDirectory(prefix="interlingua.") if folder is None else None
        self.folder = folder if self._temporary is None else Path(self._temporary.name)
        assert self.folder is not None
        figures = figures_folder(config, self.folder)
        assert figures is not None
        self._figures = figures
        self._members = Members(self.server, gateway_name(figures))
        kept = state_file(config)
        file = kept.file if kept is not None else JsonFile(self.folder / "state.json", State())
        self.endpoints = SharedDocument(file, self.server, "endpoints", State())
        self._feedback: SharedFeedback | None = None
        self._synchronizing: asyncio.Task[None] | None = None

    def start(self, experiments: Experiments, refresh: Callable[[], None]) -> None:
        """Begin to synchronize.

        Args:
            experiments: of this worker.
            refresh: has this worker serve what is deployed by now.
        """
        self._feedback = SharedFeedback(self.server, self._members.own, experiments, refresh)
        parts: list[Part] = [
            _Endpoints(self.endpoints, self._members),
            SharedFigures(self.server, self._figures, self._members.own, experiments.keys),
            self._feedback,
        ]
        if self._config.server.keys_file is not None:
            parts.append(SharedKeys(self.server, Path(self._config.server.keys_file)))
        log.info("state.shared", gateway=self._members.own)
        self._synchronizing = asyncio.create_task(Synchronizer(self.server, self.folder, parts).run())

    def answers(self, name: str, endpoint: Endpoint, entity: ServedEntity) -> AnswerStore | None:
        """Where the cached answers of a served entity are; see `StoreOf`."""
        if endpoint.cache is None or endpoint.cache.store != "state":
            return None
        return SharedAnswers(self.server, name, endpoint, entity, self._config.backends[entity.backend])

    async def feedback(self, name: bytes, metric: str, value: float) -> None:
        """Count feedback for an answer of another gateway; see `SharedFeedback.send`."""
        assert self._feedback is not None
        await self._feedback.send(name, metric, value)

    async def confirm(self) -> None:
        """Wait until the other gateways serve the endpoints as this worker has just changed them; those that do not
        within a moment are logged, and do so as soon as they can.
        """
        if late := await self._members.lacking(self.endpoints.revision, _CONFIRM_SECONDS):
            log.warning("change.unconfirmed", revision=self.endpoints.revision, gateways=late)

    async def aclose(self) -> None:
        """Stop, and close the connections."""
        if self._synchronizing is not None:
            self._synchronizing.cancel()
            with suppress(asyncio.CancelledError):
                await self._synchronizing
        await self.server.aclose()
        if self._temporary is not None:
            self._temporary.cleanup()
