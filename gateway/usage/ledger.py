"""The only entry to usage: keeps the records of a worker's requests, and has them collected."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from gateway.config import Config, ServerSection, UsageSection
from gateway.usage.collector import Collector
from gateway.usage.database import Database, open_database
from gateway.usage.errors import DatabaseError
from gateway.usage.record import Record
from gateway.usage.spool import Spool

log = structlog.get_logger()

_INTERVAL = 0.5
"""Seconds between two collections."""
_LONGEST_DELAY = 30.0
"""Seconds between two tries at most while the database is away."""
_BETWEEN_DELETIONS = 3600.0


class Ledger:
    """Usage of one worker, in a database that all share.

    Args:
        settings: the configuration.
        server: the configuration of the server, beside whose files usage is kept by default.
        lost: called with the number of records that were lost.
    """

    def __init__(self, settings: UsageSection, server: ServerSection, lost: Callable[[int], None]) -> None:
        self.settings = settings
        self.address, folder = settings.resolved(server)
        self._lost = lost
        self._counting = threading.Lock()
        self._lose(0)  # the count exists from the beginning, also while it is 0
        self._spool = Spool(Path(folder), settings.max_waiting)
        self._collector = Collector(Path(folder), self.address, self._lose)
        self._has_new = True  # what an earlier process has left
        self._stopped = threading.Event()
        # A daemon, so that a worker that fails to stop it can still exit.
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    @classmethod
    def of(cls, config: Config, lost: Callable[[int], None]) -> Ledger | None:
        """What keeps usage as it is configured; None if it is not."""
        return cls(config.usage, config.server, lost) if config.usage is not None else None

    @property
    def with_text(self) -> bool:
        """Whether records have texts."""
        return self.settings.text

    def start(self) -> None:
        """Begin to collect."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Keep a record: from now on it survives this process."""
        if self._spool.append(record):
            self._has_new = True
        else:
            self._lose(1)

    def read(self) -> Database:
        """A connection to the database, with every record that was kept before. Blocks. To be closed.

        Raises:
            DatabaseError: the database cannot be reached.
        """
        self._collector.collect(wait=True)
        return open_database(self.address)

    def close(self) -> None:
        """Collect what is left. Blocks for as long as that takes; what cannot be written stays in its file."""
        self._spool.close()
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        with suppress(DatabaseError):
            self._collector.collect(wait=True)
        self._collector.close()

    def _run(self) -> None:
        delay, failed, next_deletion = _INTERVAL, False, 0.0
        while not self._stopped.wait(delay):
            try:
                if self._has_new:
                    self._has_new = False
                    # If another worker collects at this moment, it may have read this one's file already.
                    if not self._collector.collect(wait=False):
                        self._has_new = True  # and not `|=`: a record may have been kept meanwhile
                if (now := time.monotonic()) >= next_deletion:
                    next_deletion = now + _BETWEEN_DELETIONS
                    self._collector.delete_before(time.time() - self.settings.kept_seconds)
            except DatabaseError as error:
                self._has_new = True
                delay = min(2 * delay, _LONGEST_DELAY)
                if not failed:
                    log.error("usage.delayed", error=str(error))
                failed = True
            else:
                if failed:
                    log.info("usage.caught_up")
                delay, failed = _INTERVAL, False

    def _lose(self, records: int) -> None:
        with self._counting:  # called by the worker's thread and by the one that collects
            self._lost(records)
