"""The section `usage`: records of requests, and the database that keeps them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec

from gateway.config.base import Count, Section
from gateway.config.server import ServerSection

Users = Literal["hashed", "plain", "none"]
"""What a record has of the user that a request names: a hash of it, the text itself, or nothing."""

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_POSTGRES = ("postgresql://", "postgres://")


class UsageSection(Section, frozen=True):
    """One record per request, in a database.

    Attributes:
        database: a file of SQLite, or a URL of PostgreSQL (`postgresql://user@host/name`); None: a file beside the
            state file or the keys file.
        retention: how long records are kept: hours, days or weeks ("12h", "400d", "8w").
        users: what records have of users.
        text: whether records have the client's body and the answer's text.
        max_waiting: bytes of records on the disk that wait for the database; what comes beyond is lost, and counted.
    """

    database: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    retention: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,4}[hdw]$")] = "400d"
    users: Users = "hashed"
    text: bool = False
    max_waiting: Count = 256 * 1024 * 1024

    @property
    def is_postgres(self) -> bool:
        """Whether the database is a server of PostgreSQL."""
        return self.database is not None and self.database.startswith(_POSTGRES)

    @property
    def kept_seconds(self) -> float:
        """The retention in seconds."""
        return (int(self.retention[:-1]) * _UNITS[self.retention[-1]]).total_seconds()

    def resolved(self, server: ServerSection) -> tuple[str, str]:
        """The database (a path or a URL), and the folder of records that wait for it."""
        lasting = server.state_file or server.keys_file
        default = f"{lasting}.usage" if lasting is not None else "usage.sqlite3"
        database = self.database or default
        return database, f"{default if self.is_postgres else database}.spool"
