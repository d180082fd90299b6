"""The work on one batch: reads its input, has its lines answered, and writes its results.

It goes on where the worker before was ended, whenever that was: a step is repeated unless its end is in the database.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from time import monotonic
from typing import BinaryIO

import structlog

from adapters.batches import Batch, BatchCodec, Line, Problem, Result, State, StoredFile, Unasked
from gateway.batches.files import FileStore, describe
from gateway.batches.input import InputReader
from gateway.batches.store import BatchStore, Claim
from gateway.config import BatchesSection
from gateway.http.batches.line import LineRequest
from gateway.http.batches.pace import Pace, Timed
from gateway.mounts import Operation
from gateway.service import Service

log = structlog.get_logger()

_BEAT = 1.0
"""Seconds between two looks whether the batch is still ours and wanted."""
_PART = 200
"""Lines that are read from the database at a time."""
_ATTEMPTS = 10
"""How often a line is asked whose model is not there; one that a limit refuses is asked until the batch expires."""
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0


class BatchRun:
    """Works on a batch that this worker has.

    Args:
        service: the worker's.
        settings: the section `batches`.
        stores: of batches and of files.
        pace: of all lines of the worker.
        claim: the batch.
        codec: of its protocol.
        operation: that answers its lines.
    """

    def __init__(
        self,
        service: Service,
        settings: BatchesSection,
        stores: tuple[BatchStore, FileStore],
        pace: Pace,
        claim: Claim,
        codec: BatchCodec,
        operation: Operation,
    ) -> None:
        self._service = service
        self._settings = settings
        self._store, self._files = stores
        self._pace = pace
        self._claim = claim
        self._codec = codec
        self._operation = operation
        self._pending: list[tuple[int, Line]] = []
        self._after = 0
        self._fetching = asyncio.Lock()
        self._resume_at = 0.0
        self._state: State = claim.batch.state
        self._held_at = 0.0
        self._answered: list[tuple[Result, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def work(self) -> None:
        """Bring the batch to its end, or as far as it comes before the server stops.

        Raises:
            LeaseLost: another worker has it now.
            OSError, sqlite3.Error: the disk or the database fails.
        """
        batch = self._claim.batch
        if batch.state == "validating":
            read = await self._read()
            if read is None:
                return
            batch = read
        if batch.state == "in_progress":
            await self._ask(batch)
            if self._service.draining:
                return  # the next one goes on
        batch = await self._store.finalize(self._claim)
        await self._write(batch)

    # --- reading --------------------------------------------------------------------------------------------------

    async def _read(self) -> Batch | None:
        """Read the lines; None if they are refused, and the batch has failed."""
        batch, limits = self._claim.batch, self._service.limits
        await self._store.clear(self._claim)
        path = self._files.path(batch.input_file or "")
        reader = InputReader(path, self._codec, batch.endpoint, self._settings.max_lines, limits.max_image_body)
        first = 1
        try:
            while (lines := await asyncio.to_thread(reader.read)) is not None:
                if not reader.problems:
                    await self._store.add_lines(self._claim, first, lines)
                    first += len(lines)
        except FileNotFoundError:
            reader.problems.append(Problem("input_file_not_found", "The input file was deleted."))
        if reader.problems:
            await self._store.end(self._claim, "failed", problems=reader.problems)
            self._log("failed")
            return None
        return await self._store.begin(self._claim, reader.count)

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _ask(self, batch: Batch) -> None:
        """Have the lines answered until none is left, or the batch is cancelled or expires."""
        self._note(batch)
        asking = [asyncio.create_task(self._ask_in_turn()) for _ in range(self._settings.at_once)]
        try:
            waiting = set(asking)
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=_BEAT, return_when=asyncio.FIRST_EXCEPTION)
                for each in done:
                    each.result()
                # Each transaction waits for the disk; one with answers has renewed the lease.
                if monotonic() - self._held_at > max(_BEAT, self._pace.delay):
                    self._note(await self._store.renew(self._claim))
                if self._state != "in_progress" or time.time() >= batch.expires:
                    return
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            if self._writing is not None:
                await self._writing

    def _note(self, batch: Batch) -> None:
        """Note what the database says of the batch, which another worker may have had cancelled."""
        self._state, self._held_at = batch.state, monotonic()

    async def _ask_in_turn(self) -> None:
        while not self._service.draining and (next := await self._next()) is not None:
            await self._answer(*next)

    async def _next(self) -> tuple[int, Line] | None:
        async with self._fetching:
            if not self._pending:
                self._pending = await self._store.pending(self._claim, self._after, _PART)
                self._pending.reverse()
            if not self._pending:
                return None
            number, line = self._pending.pop()
            self._after = number
            return number, line

    async def _answer(self, number: int, line: Line) -> None:
        """Have a line answered, and its answer written, or leave it to the next worker if the server stops."""
        delay, attempts = _FIRST_DELAY, 1
        while True:
            await self._rest()
            if self._service.draining:
                return
            async with self._pace.line():
                asked = Timed(LineRequest(self._service, self._operation, self._claim.owner, line.body).ask())
                answer = await asked
                self._pace.note(asked.spent)
            is_limit = answer.status == 429
            if answer.retry_after is None or (attempts == _ATTEMPTS and not is_limit):
                await self._keep(Result(number, line.custom_id, answer.status, answer.request_id, answer.body))
                return
            # The others would fare alike.
            wait = max(answer.retry_after, 0.0 if is_limit and answer.retry_after else delay)
            self._resume_at = max(self._resume_at, monotonic() + wait)
            delay, attempts = min(2 * delay, _LONGEST_DELAY), attempts + (not is_limit)

    async def _rest(self) -> None:
        # Polled: the time may be moved on, and the server may begin to stop.
        while (left := self._resume_at - monotonic()) > 0 and not self._service.draining:  # noqa: ASYNC110
            await asyncio.sleep(min(left, _BEAT))

    async def _keep(self, result: Result) -> None:
        """Write an answer, together with others that come in the meantime."""
        done = asyncio.get_running_loop().create_future()
        self._answered.append((result, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_answers())
        await done

    async def _write_answers(self) -> None:
        while self._answered:
            await asyncio.sleep(self._pace.delay)
            taken, self._answered = self._answered, []
            try:
                self._note(await self._store.answer(self._claim, [result for result, _ in taken]))
            except Exception as error:  # whatever it is, each line that waits must learn of it
                for _, done in taken:
                    if not done.done():
                        done.set_exception(error)
            else:
                for _, done in taken:
                    if not done.done():
                        done.set_result(None)

    # --- results --------------------------------------------------------------------------------------------------

    async def _write(self, batch: Batch) -> None:
        """Write the files of results, and end the batch."""
        state, unasked = _end_of(batch)
        paths = (self._files.new(), self._files.new())
        try:
            counts = await self._write_results(batch, unasked, paths)
            output = await asyncio.to_thread(self._keep_file, batch, paths[0], "output", counts[0])
            errors = await asyncio.to_thread(self._keep_file, batch, paths[1], "error", counts[1])
            await self._store.end(self._claim, state, output, errors)
        except BaseException:
            # The next attempt writes others: a full disk must not become fuller.
            for path in paths:
                path.unlink(missing_ok=True)
            raise
        self._log(state)

    async def _write_results(self, batch: Batch, unasked: Unasked, paths: tuple[Path, Path]) -> list[int]:
        """Write the results of all lines; return how many are in each file."""
        counts, after = [0, 0], 0
        with paths[0].open("xb") as output, paths[1].open("xb") as errors:
            # Without a total the lines were not read to the end.
            while batch.total and (results := await self._store.results(batch, after, _PART)):
                after = results[-1].number
                await self._store.renew(self._claim)
                await asyncio.to_thread(self._write_part, batch, unasked, results, (output, errors), counts)
        return counts

    def _write_part(
        self,
        batch: Batch,
        unasked: Unasked,
        results: list[Result],
        files: tuple[BinaryIO, BinaryIO],
        counts: list[int],
    ) -> None:
        for result in results:
            shown = result if result.status else Result(result.number, result.custom_id, unasked=unasked)
            place = int(self._codec.separates_errors and not shown.succeeded)
            files[place].write(self._codec.encode_result(batch, shown))
            counts[place] += 1

    def _keep_file(self, batch: Batch, path: Path, what: str, count: int) -> StoredFile | None:
        """A file of results. One without lines is removed; but where results are one file, there always is one."""
        listed = self._codec.separates_errors
        if not count and (listed or what == "error"):
            path.unlink()
            return None
        kept = batch.output_kept or self._settings.kept_seconds
        purpose = "batch_output" if listed else ""
        return describe(path, f"{batch.id}_{what}.jsonl", purpose, kept)

    def _log(self, state: State) -> None:
        batch = self._claim.batch
        log.info("batch.ended", batch=batch.id, protocol=batch.protocol, state=state)


def _end_of(batch: Batch) -> tuple[State, Unasked]:
    """The state in which a batch ends, and what becomes of its lines without an answer."""
    if "cancelling" in batch.times:
        return "cancelled", "cancelled"
    left = batch.total - batch.completed - batch.failed
    return ("expired" if left else "completed"), "expired"
