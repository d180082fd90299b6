"""A worker's part in the work on batches: it takes those that nobody has, and brings them to their end."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from contextlib import suppress
from time import monotonic

import structlog

from adapters.batches import HasBatches
from gateway.batches.files import FileStore
from gateway.batches.store import BatchStore, Claim, LeaseLost
from gateway.config import BatchesSection
from gateway.http.batches.clients import Clients
from gateway.http.batches.pace import Pace
from gateway.http.batches.run import BatchRun
from gateway.mounts import Mounts
from gateway.service import Service

log = structlog.get_logger()

_LOOK = 1.0
"""Seconds between two looks for batches."""
_AT_ONCE = 4
"""Batches of a worker at a time, so that a short one of another key does not wait for a long one."""
_SWEEP = 600.0
"""Seconds between two removals of what has expired."""
_PAUSE = 10.0
"""Seconds before a batch is tried again whose work has failed, because the disk is full, for instance."""
_GRACE = 5.0
"""Seconds that lines get to end when the server stops."""


class BatchRunner:
    """Works on batches while the application runs.

    Args:
        service: the worker's.
        settings: the section `batches`.
        mounts: the routes that answer lines.
        clients: of all workers.
        stores: of batches and of files.
    """

    def __init__(
        self,
        service: Service,
        settings: BatchesSection,
        mounts: Mounts,
        clients: Clients,
        stores: tuple[BatchStore, FileStore],
    ) -> None:
        self._service = service
        self._settings = settings
        self._mounts = mounts
        self._clients = clients
        self._batches, self._files = stores
        self._worker = secrets.token_hex(8)
        self._runs: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._next_sweep = 0.0

    def start(self) -> None:
        """Begin to look for batches."""
        self._pace = Pace(self._clients, self._settings.at_once, self._settings.beside_clients)
        self._tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._clients.watch())]

    def wake(self) -> None:
        """Look now: there is a new batch."""
        self._wake.set()

    async def aclose(self) -> None:
        """End the work: lines that are being answered get a moment, and the batches are left to other workers."""
        self._service.draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runs:
            await asyncio.wait(self._runs, timeout=_GRACE)
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        await asyncio.to_thread(self._batches.database.close)

    async def _look(self) -> None:
        while True:
            self._wake.clear()  # first: what wakes it during the look has it look again
            try:
                if monotonic() >= self._next_sweep:
                    self._next_sweep = monotonic() + _SWEEP
                    await self._batches.sweep()
                    await self._files.sweep()
                while not self._service.draining and len(self._runs) < _AT_ONCE:
                    claim = await self._batches.claim(self._worker)
                    if claim is None:
                        break
                    run = asyncio.create_task(self._run(claim))
                    self._runs.add(run)
                    run.add_done_callback(self._ended)
            except (OSError, sqlite3.Error) as error:
                log.error("batches.unreachable", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._wake.wait()

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        self._wake.set()

    async def _run(self, claim: Claim) -> None:
        batch = claim.batch
        # Of a mount that has gone since, the lines are answered as below none.
        found = self._mounts.find(batch.prefix + batch.endpoint, batch.port) or self._mounts.find(batch.endpoint, None)
        operation = found[0].get("POST") if found is not None else None
        try:
            if operation is None or not isinstance(operation.codec, HasBatches):
                log.error("batch.stuck", batch=batch.id, error=f"no route {batch.endpoint} has batches")
                await asyncio.sleep(_PAUSE)
                return
            codec = operation.codec.batches
            stores = (self._batches, self._files)
            await BatchRun(self._service, self._settings, stores, self._pace, claim, codec, operation).work()
        except LeaseLost:
            log.warning("batch.lost", batch=batch.id)
        except Exception as error:  # the task's top: whatever it is, the batch must not be begun again at once
            log.error("batch.interrupted", batch=batch.id, error=str(error), exc_info=not _is_expected(error))
            await asyncio.sleep(_PAUSE)
        finally:
            with suppress(OSError, sqlite3.Error):
                await self._batches.release(claim)


def _is_expected(error: Exception) -> bool:
    return isinstance(error, OSError | sqlite3.Error)
