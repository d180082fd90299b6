"""Limits that the workers of one machine count together, in tables that all of them map into memory.

Exact: a worker checks all limits of a request, and counts it, while it holds the lock of the table. Corrections by
requests that ended are counted together with the worker's next request, which takes the lock anyway, or at the end of
the event loop's turn. What depends on a request's limits and the second alone is made once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from gateway.access import usual_rows
from gateway.access.counters import COUNTS, RUNNING, CounterTable, Name, Span, spans
from gateway.access.limits import NO_WINDOWS, Ticket, Windows, amount_of, corrections, refusal
from gateway.access.rules import Rule, Rules
from gateway.config import ServerSection
from gateway.storage.slot import Slot
from schemas.errors import RateLimited

_RUNNING_ROWS = 1 << 10


class LocalLimiter:
    """Counts the requests of one worker together with those of the others; see `Limiter`.

    Args:
        lasting: file of the windows, which survives restarts; None: memory of this process alone.
        folder: shared by the workers, for what runs now; None: likewise.
    """

    def __init__(self, lasting: Path | None, folder: Path | None) -> None:
        self._lasting = lasting
        self._folder = folder / "running" if folder is not None else None
        self._slot: Slot | None = None
        self._column = 0
        self._second, self._spans = 0.0, spans(0.0)
        # Of this second: by the identity of rules, which are kept here, so that no others can have it.
        self._known: dict[int, tuple[Rules, Windows]] = {}
        self._corrections: list[tuple[Windows, float, float]] = []  # of ended requests: tokens and cost

    # Both are made at first use: a server without limits has no such files.
    @cached_property
    def _table(self) -> CounterTable:
        return CounterTable(self._lasting)

    @cached_property
    def _running(self) -> CounterTable:
        if self._folder is None:
            return CounterTable(None, _RUNNING_ROWS)
        self._slot = Slot(self._folder)
        self._column = self._slot.number % COUNTS
        table = CounterTable(self._folder / "counts", _RUNNING_ROWS)
        table.clear_column(self._column)  # of a worker that was killed
        return table

    async def enter(self, rules: Rules, tokens: int) -> Ticket:
        """Count a request. Never waits.

        Raises:
            schemas.errors.RateLimited: one of its limits is reached; then it is counted nowhere.
        """
        return self.enter_at_once(rules, tokens)

    def enter_at_once(self, rules: Rules, tokens: int) -> Ticket:
        """Count a request.

        Raises:
            schemas.errors.RateLimited: one of its limits is reached; then it is counted nowhere.
        """
        running = self._enter_running(rules) if rules.concurrent else ()
        if not rules.windows:
            return Ticket(NO_WINDOWS, (), tokens, running)
        now, table = self._now(), self._table
        if (known := self._known.get(id(rules))) is None:
            known = self._known[id(rules)] = rules, self._make_windows(rules, now)
        windows = known[1]
        table.lock()
        try:
            if self._corrections:
                self._correct(now)
            left = usual_rows.take(table.memory, windows.rows, tokens) if windows.rows else None
            if left is None:
                left = self._take(rules, tokens, now)
        except RateLimited:
            if running:
                self._leave_running(running)
            raise
        finally:
            table.unlock()
        return Ticket(windows, left, tokens, running)

    def leave(self, ticket: Ticket, tokens: int | None, cost: float) -> None:
        """Count a request's end."""
        if ticket.running:
            self._leave_running(ticket.running)
        windows, change = ticket.windows, 0.0 if tokens is None else tokens - ticket.tokens
        if (change and windows.by_tokens) or (cost and windows.by_cost):
            if not self._corrections:
                asyncio.get_running_loop().call_soon(self._settle)
            self._corrections.append((windows, change, cost))

    def _settle(self) -> None:
        """Count what ended requests have left to correct."""
        if self._corrections:
            now = self._now()
            with self._table:
                self._correct(now)

    def _correct(self, now: Mapping[str, Span]) -> None:
        table = self._table
        for windows, tokens, cost in self._corrections:
            is_present = windows.rows and windows.second == self._second
            if not (is_present and usual_rows.correct(table.memory, windows.rows, tokens, cost)):
                for rule, tick, change in corrections(windows, tokens, cost):
                    table.correct(rule.name, now[rule.window], tick, change)
        self._corrections.clear()

    async def aclose(self) -> None:
        """Count what is left to correct, and release the files."""
        self._settle()
        for table in ("_table", "_running"):
            if table in self.__dict__:
                self.__dict__[table].close()
        if self._slot is not None:
            self._slot.close()

    def _now(self) -> Mapping[str, Span]:
        # Made once a second: a calendar is slow.
        if not self._second <= (now := time.time()) < self._second + 1.0:
            self._second, self._spans = float(int(now)), spans(now)
            self._known.clear()
        return self._spans

    def _make_windows(self, rules: Rules, now: Mapping[str, Span]) -> Windows:
        rows = []
        for rule in rules.windows:
            span = now[rule.window]
            row, count = self._table.places(rule.name, span)
            rows.append((row, rule.name, count, rule.kind, span.until, rule.most))
        quoted = [
            (at, rule.kind, rule.whole, now[rule.window].reset)
            for at, rule in enumerate(rules.windows)
            if rule.kind != "cost"
        ]
        return Windows(
            rules.windows,
            tuple([now[rule.window].tick for rule in rules.windows]),
            tuple([now[rule.window].reset for rule in rules.windows]),
            self._second,
            rules.by_tokens,
            any(rule.kind == "cost" for rule in rules.windows),
            quoted if len({kind for _, kind, *_ in quoted}) == len(quoted) else (),
            # A limit that is given twice is counted twice, in the same row.
            usual_rows.packed(rows) if len({row for row, *_ in rows}) == len(rows) else b"",
        )

    def _enter_running(self, rules: Rules) -> list[Name]:
        table, entered = self._running, list[Name]()
        with table:
            for name, most, subject in rules.concurrent:
                if table.total(row := table.row(name, RUNNING), RUNNING) >= most:
                    self._free(entered)
                    raise RateLimited(f"{subject} has {most} requests running, which is its limit.", retry_after=1.0)
                table.add(row, self._column, RUNNING, 1.0)
                entered.append(name)
        return entered

    def _leave_running(self, running: Sequence[Name]) -> None:
        with self._running:
            self._free(running)

    def _free(self, running: Sequence[Name]) -> None:
        table = self._running
        for name in running:
            table.add(row := table.row(name, RUNNING), self._column, RUNNING, -1.0)
            if not table.total(row, RUNNING):
                table.free(row)

    def _take(self, rules: Rules, tokens: int, now: Mapping[str, Span]) -> tuple[float, ...]:
        """Count a request for one rule after the other; returns what is left of each."""
        found: list[float] = []
        for rule in rules.windows:
            span, amount = now[rule.window], amount_of(rule, tokens)
            if (left := self._table.take(rule.name, span, rule.most, amount)) < 0:
                # What the rules before this one have counted is taken back.
                for other in rules.windows[: len(found)]:
                    span_of_other = now[other.window]
                    self._table.correct(other.name, span_of_other, span_of_other.tick, -amount_of(other, tokens))
                raise self._refusal(rule, span, amount)
            found.append(left)
        return tuple(found)

    def _refusal(self, rule: Rule, span: Span, amount: float) -> RateLimited:
        table = self._table
        row = table.row(rule.name, span)
        left = rule.most - table.total(row, span)
        # At least something must become free, also for what is counted at its end.
        wait = table.seconds_until_free(row, span, max(amount - left, 1e-9), time.time())
        return refusal(rule, span, amount, left, wait)


def limits_file(server: ServerSection, folder: Path | None) -> Path | None:
    """Where limits are counted: beside a file that lasts, so that a month's does, too; else with the workers.

    Args:
        server: the configuration.
        folder: shared by the workers; None for a worker alone.
    """
    lasting = server.keys_file or server.state_file
    if lasting is not None:
        return Path(f"{lasting}.limits")
    return folder / "limits" if folder is not None else None
