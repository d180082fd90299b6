"""The section `batches`: files of clients, and batches of requests that are answered in the background."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from gateway.config.base import Count, Section
from gateway.config.server import ServerSection

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


class BatchesSection(Section, frozen=True):
    """Batches, behind everything else. Sizes in bytes.

    Attributes:
        folder: for the database and the files, shared by all workers; None: beside the state file or the keys file.
        max_file_bytes: of an uploaded file.
        max_bytes: of all files of a key.
        max_lines: requests of a batch.
        max_open: batches of a key that have not ended.
        keep: how long files, and batches that have ended, are kept: hours, days or weeks ("12h", "30d", "8w").
        at_once: lines that a worker has answered at a time while no client waits for it.
        beside_clients: the same while clients do; 0: none.
    """

    folder: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    max_file_bytes: Count = 200 * 1024 * 1024
    max_bytes: Count = 2 * 1024 * 1024 * 1024
    max_lines: Count = 50_000
    max_open: Count = 16
    keep: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,4}[hdw]$")] = "30d"
    at_once: Count = 8
    beside_clients: Annotated[int, msgspec.Meta(ge=0)] = 1

    @property
    def kept_seconds(self) -> int:
        """How long files are kept, in seconds."""
        return int((int(self.keep[:-1]) * _UNITS[self.keep[-1]]).total_seconds())

    def resolved(self, server: ServerSection) -> str:
        """The folder."""
        lasting = server.state_file or server.keys_file
        return self.folder or (f"{lasting}.batches" if lasting is not None else "batches")
