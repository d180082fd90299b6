"""Batches in the database: what clients ask of them, and what the worker does that has a batch.

Strategy: a worker that takes a batch has a lease on it, which it renews; when the worker dies, the lease runs out and
another one goes on. Whatever it writes is refused if the lease is another's by then. The answer of a line and the mark
that the line is done are one row, and lines are marked once only: no line has two answers, whoever was killed when.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from sqlite3 import Connection

import msgspec
from msgspec.structs import replace

from adapters.batches import OPEN, Batch, Line, NewBatch, Page, Problem, Range, Result, State, StoredFile
from gateway.batches.database import Database, in_thread
from gateway.batches.files import insert
from schemas.errors import InvalidRequest, RateLimited

LEASE = 10.0
"""Seconds after which the batch of a worker that has died goes to another one."""
WINDOW = 86_400
"""Seconds that a batch has: the only window of both protocols."""
_COLUMNS = "data, state, completed, failed, owner"


class LeaseLost(Exception):
    """The batch is another worker's by now, or there is none any more."""


class Claim(msgspec.Struct, frozen=True):
    """A batch that a worker has, and whose it is."""

    batch: Batch
    owner: str
    worker: str


class BatchStore:
    """The batches of all keys. `owner` is the digest of a key; one never sees another's batches.

    Args:
        database: shared with the files.
        max_open: batches of an owner that have not ended.
        kept: seconds that a batch is kept after its end.
    """

    def __init__(self, database: Database, max_open: int, kept: int) -> None:
        self.database = database
        self._max_open = max_open
        self._kept = kept

    # --- for clients ----------------------------------------------------------------------------------------------

    @in_thread
    def create(
        self, owner: str, protocol: str, id: str, asked: NewBatch, *, prefix: str = "", port: int | None = None
    ) -> Batch:
        """Make a batch, with its lines if the request has them; `prefix` and `port` are those of `Batch`.

        Raises:
            schemas.errors.RateLimited: the owner has too many batches that have not ended.
        """
        now, is_read = int(time.time()), asked.input_file is None
        state: State = "in_progress" if is_read else "validating"
        batch = Batch(
            id=id,
            protocol=protocol,
            endpoint=asked.endpoint,
            prefix=prefix,
            port=port,
            state=state,
            created=now,
            expires=now + WINDOW,
            times={state: now},
            input_file=asked.input_file,
            output_kept=asked.output_kept,
            metadata=asked.metadata,
            total=len(asked.lines),
        )
        with self.database.transaction() as connection:
            count = "SELECT count(*) FROM batch WHERE owner = ? AND keep_until IS NULL"
            if connection.execute(count, (owner,)).fetchone()[0] >= self._max_open:
                raise RateLimited(f"This key has {self._max_open} batches that have not ended; wait for one to end.")
            connection.execute(
                "INSERT INTO batch (id, owner, protocol, state, data) VALUES (?, ?, ?, ?, ?)",
                (id, owner, protocol, state, msgspec.json.encode(batch)),
            )
            _add_lines(connection, id, 1, asked.lines)
        return batch

    @in_thread
    def get(self, owner: str, protocol: str, id: str) -> Batch | None:
        """A batch; None if there is none, or no longer."""
        return _find(self.database.connection, owner, protocol, id)

    @in_thread
    def page(self, owner: str, protocol: str, range: Range) -> Page[Batch]:
        """A part of an owner's batches, the newest first. An unknown cursor is no error: it is left out."""
        connection = self.database.connection
        where, order, values = "owner = ? AND protocol = ?", "DESC", [owner, protocol]
        for cursor, beyond in ((range.after, "<"), (range.before, ">")):
            number = f"SELECT number FROM batch WHERE id = ? AND {where}"  # noqa: S608
            row = connection.execute(number, (cursor, *values)).fetchone() if cursor is not None else None
            if row is not None:
                where, values = f"{where} AND number {beyond} ?", [*values, row[0]]
                order = "ASC" if beyond == ">" else "DESC"
                break
        statement = f"SELECT {_COLUMNS} FROM batch WHERE {where} ORDER BY number {order} LIMIT ?"  # noqa: S608
        rows = connection.execute(statement, (*values, range.limit + 1)).fetchall()
        found = [_batch(row) for row in rows[: range.limit]]
        return Page(tuple(found if order == "DESC" else reversed(found)), len(rows) > range.limit)

    @in_thread
    def cancel(self, owner: str, protocol: str, id: str) -> Batch | None:
        """Have a batch cancelled by the worker that has it; None if there is none.

        Raises:
            schemas.errors.InvalidRequest: it has ended.
        """
        with self.database.transaction() as connection:
            batch = _find(connection, owner, protocol, id)
            if batch is None:
                return None
            if batch.state not in OPEN:
                raise InvalidRequest(f"The batch '{id}' is {batch.state}, and can no longer be cancelled.")
            # One whose files are being written has nothing left to cancel.
            return _move(connection, batch, "cancelling") if batch.state in ("validating", "in_progress") else batch

    @in_thread
    def delete(self, owner: str, protocol: str, id: str) -> Batch | None:
        """Delete a batch that has ended, and the row of its results; None if there is none.

        Raises:
            schemas.errors.InvalidRequest: it has not ended.
        """
        with self.database.transaction() as connection:
            batch = _find(connection, owner, protocol, id)
            if batch is not None and batch.state in OPEN:
                raise InvalidRequest(f"The batch '{id}' has not ended: cancel it first.")
            if batch is not None:
                connection.execute("DELETE FROM batch WHERE id = ?", (id,))
                connection.execute("DELETE FROM file WHERE id = ?", (batch.output_file,))
        return batch

    # --- for the worker that has a batch --------------------------------------------------------------------------

    @in_thread
    def claim(self, worker: str) -> Claim | None:
        """Take a batch that nobody has: the oldest one of the owner with the fewest that are being answered."""
        now = time.time()
        connection = self.database.connection
        free = "SELECT 1 FROM batch WHERE keep_until IS NULL AND lease < ? LIMIT 1"
        if connection.execute(free, (now,)).fetchone() is None:
            return None  # the usual case writes nothing
        taken = "SELECT count(*) FROM batch b WHERE b.owner = a.owner AND b.keep_until IS NULL AND b.lease >= ?1"
        next = f"SELECT id FROM batch a WHERE keep_until IS NULL AND lease < ?1 ORDER BY ({taken}), number LIMIT 1"  # noqa: S608
        statement = f"UPDATE batch SET worker = ?2, lease = ?1 + ?3 WHERE id = ({next}) RETURNING {_COLUMNS}"  # noqa: S608
        with self.database.transaction():
            row = connection.execute(statement, (now, worker, LEASE)).fetchone()
        return None if row is None else Claim(_batch(row), row[4], worker)

    @in_thread
    def renew(self, claim: Claim) -> Batch:
        """Keep a batch; return it as it is now.

        Raises:
            LeaseLost: it is another's.
        """
        with self.database.transaction() as connection:
            return _held(connection, claim)

    @in_thread
    def release(self, claim: Claim) -> None:
        """Leave a batch to others, if it is still this worker's."""
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE batch SET lease = 0, worker = '' WHERE id = ? AND worker = ?", (claim.batch.id, claim.worker)
            )

    @in_thread
    def clear(self, claim: Claim) -> None:
        """Forget the lines of a batch, to read them anew.

        Raises:
            LeaseLost: it is another's.
        """
        with self.database.transaction() as connection:
            _held(connection, claim)
            connection.execute("DELETE FROM line WHERE batch = ?", (claim.batch.id,))

    @in_thread
    def add_lines(self, claim: Claim, first: int, lines: Sequence[Line]) -> None:
        """Add lines to a batch that is being read; `first` is the number of the first of them.

        Raises:
            LeaseLost: it is another's.
        """
        with self.database.transaction() as connection:
            _held(connection, claim)
            _add_lines(connection, claim.batch.id, first, lines)

    @in_thread
    def begin(self, claim: Claim, total: int) -> Batch:
        """Begin to answer the lines of a batch, unless it was cancelled meanwhile.

        Raises:
            LeaseLost: it is another's.
        """
        with self.database.transaction() as connection:
            batch = replace(_held(connection, claim), total=total)
            return _move(connection, batch, "in_progress" if batch.state == "validating" else batch.state)

    @in_thread
    def pending(self, claim: Claim, after: int, limit: int) -> list[tuple[int, Line]]:
        """The next lines that have no answer, with their numbers."""
        rows = self.database.connection.execute(
            "SELECT number, custom_id, body FROM line WHERE batch = ? AND number > ? AND status IS NULL"
            " ORDER BY number LIMIT ?",
            (claim.batch.id, after, limit),
        ).fetchall()
        return [(number, Line(custom_id, body)) for number, custom_id, body in rows]

    @in_thread
    def answer(self, claim: Claim, results: Sequence[Result]) -> Batch:
        """Write answers, each with the mark that its line is done, or none of them; return the batch as it was before.

        Raises:
            LeaseLost: the batch is another's.
        """
        completed = failed = 0
        with self.database.transaction() as connection:
            batch = _held(connection, claim)
            for result in results:
                done = connection.execute(
                    "UPDATE line SET status = ?, request_id = ?, answer = ?"
                    " WHERE batch = ? AND number = ? AND status IS NULL",
                    (result.status, result.request_id, result.body, claim.batch.id, result.number),
                ).rowcount
                completed += done * result.succeeded
                failed += done * (not result.succeeded)
            connection.execute(
                "UPDATE batch SET completed = completed + ?, failed = failed + ? WHERE id = ?",
                (completed, failed, claim.batch.id),
            )
        return batch

    @in_thread
    def finalize(self, claim: Claim) -> Batch:
        """Begin to write the results. A batch that is being cancelled stays so.

        Raises:
            LeaseLost: it is another's.
        """
        with self.database.transaction() as connection:
            batch = _held(connection, claim)
            return _move(connection, batch, "finalizing") if batch.state == "in_progress" else batch

    @in_thread
    def results(self, batch: Batch, after: int, limit: int) -> list[Result]:
        """What became of the next lines; those without an answer have no status."""
        rows = self.database.connection.execute(
            "SELECT number, custom_id, coalesce(status, 0), coalesce(request_id, ''), coalesce(answer, x'') FROM line"
            " WHERE batch = ? AND number > ? ORDER BY number LIMIT ?",
            (batch.id, after, limit),
        ).fetchall()
        return [Result(*row) for row in rows]

    @in_thread
    def end(
        self,
        claim: Claim,
        state: State,
        output: StoredFile | None = None,
        errors: StoredFile | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        """End a batch: its files are there from now on, and its lines are forgotten.

        Raises:
            LeaseLost: it is another's.
        """
        with self.database.transaction() as connection:
            batch = _held(connection, claim)
            for file in (output, errors):
                if file is not None:
                    insert(connection, claim.owner, file)
            batch = replace(
                batch,
                output_file=output.id if output is not None else None,
                error_file=errors.id if errors is not None else None,
                problems=tuple(problems),
            )
            _move(connection, batch, state)
            connection.execute("DELETE FROM line WHERE batch = ?", (batch.id,))
            until = int(time.time()) + self._kept
            connection.execute("UPDATE batch SET keep_until = ?, lease = 0 WHERE id = ?", (until, batch.id))

    @in_thread
    def sweep(self) -> None:
        """Forget the batches that have been kept long enough."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM batch WHERE keep_until <= ?", (int(time.time()),))


def new_id(prefix: str) -> str:
    """A new id of a batch: 128 random bits."""
    return prefix + secrets.token_hex(16)


def _add_lines(connection: Connection, batch: str, first: int, lines: Iterable[Line]) -> None:
    connection.executemany(
        "INSERT INTO line (batch, number, custom_id, body) VALUES (?, ?, ?, ?)",
        ((batch, number, line.custom_id, line.body) for number, line in enumerate(lines, first)),
    )


def _find(connection: Connection, owner: str, protocol: str, id: str) -> Batch | None:
    statement = f"SELECT {_COLUMNS} FROM batch WHERE id = ? AND owner = ? AND protocol = ?"  # noqa: S608
    row = connection.execute(statement, (id, owner, protocol)).fetchone()
    return None if row is None else _batch(row)


def _held(connection: Connection, claim: Claim) -> Batch:
    """The batch of a worker, whose lease begins anew.

    Raises:
        LeaseLost: it is another's.
    """
    statement = f"UPDATE batch SET lease = ? WHERE id = ? AND worker = ? RETURNING {_COLUMNS}"  # noqa: S608
    row = connection.execute(statement, (time.time() + LEASE, claim.batch.id, claim.worker)).fetchone()
    if row is None:
        raise LeaseLost(claim.batch.id)
    return _batch(row)


def _move(connection: Connection, batch: Batch, state: State) -> Batch:
    """Write a batch in another state, and when it came to it."""
    times = batch.times if state in batch.times else {**batch.times, state: int(time.time())}
    batch = replace(batch, state=state, times=times)
    data = msgspec.json.encode(batch)
    connection.execute("UPDATE batch SET state = ?, data = ? WHERE id = ?", (state, data, batch.id))
    return batch


def _batch(row: tuple[bytes, State, int, int, str]) -> Batch:
    data, state, completed, failed, _ = row
    return replace(msgspec.json.decode(data, type=Batch), state=state, completed=completed, failed=failed)
