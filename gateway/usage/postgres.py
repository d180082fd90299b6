"""Records in PostgreSQL. Needs the extra `postgres`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gateway.usage.errors import DatabaseError

_CREATE_LOCK = 7_226_112_318_064_217
"""Any number: gateways that create the tables at the same time wait for each other."""
_SETTINGS = {
    "connect_timeout": "5",
    "tcp_user_timeout": "30000",
    "application_name": "interlingua",
    "client_encoding": "UTF8",
}
"""What a URL need not say: a server that is silent must not hold a thread for ever, and text must be text, also in a
database without an encoding.
"""


class Postgres:
    """A connection to a server.

    Args:
        url: as of libpq, which also reads `PGPASSWORD` and `~/.pgpass`.
        schema: the statements that create the tables.
        version: of the schema.

    Raises:
        DatabaseError: psycopg is missing, the server cannot be reached, or it has another version.
    """

    def __init__(self, url: str, schema: Sequence[str], version: int) -> None:
        try:
            import psycopg
            from psycopg import conninfo
        except ImportError:  # also of libpq
            raise DatabaseError("PostgreSQL needs psycopg: pip install 'interlingua[postgres]'") from None
        self._psycopg = psycopg
        with self._errors():
            settings = _SETTINGS | conninfo.conninfo_to_dict(url)
            # Server-side binding and prepared statements fail behind some poolers, so nothing is prepared.
            self._connection = psycopg.connect(**settings, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
        try:
            self._create(schema, version)
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        with self._errors():
            cursor = self._connection.execute(statement.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block writes, or nothing of it if the block raises."""
        with self._errors(), self._connection.transaction():
            yield

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _create(self, schema: Sequence[str], version: int) -> None:
        with self.transaction():
            self.execute("SELECT pg_advisory_xact_lock(?)", (_CREATE_LOCK,))
            if self.execute("SELECT to_regclass('usage_version') IS NULL")[0][0]:
                for statement in (*schema, "CREATE TABLE usage_version (version BIGINT NOT NULL)"):
                    self.execute(statement)
                self.execute("INSERT INTO usage_version VALUES (?)", (version,))
            found = self.execute("SELECT version FROM usage_version")[0][0]
        if found != version:
            raise DatabaseError(f"the database has schema version {found}, this program needs {version}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            raise DatabaseError(str(error).strip()) from None
