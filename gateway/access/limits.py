"""Limits of keys, endpoints and users: each request is counted when it is routed, and corrected when it has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil
from pathlib import Path
from typing import Literal

import msgspec

from gateway.access.counters import COUNTS, RUNNING, CounterTable, Name, Span, name_of, spans
from gateway.access.keys_file import Key
from gateway.config import EndpointLimit, Limit, ServerSection, Window
from gateway.storage.slot import Slot
from schemas.errors import RateLimited
from schemas.ir import Embed, Generate, Request, Tokenize
from schemas.origin import Relay
from schemas.prompts import ChatPrompt, TextPart, TextPrompt, TokensPrompt
from schemas.quota import Quota

Kind = Literal["requests", "tokens", "cost"]

_RUNNING_ROWS = 1 << 10
_BYTES_PER_TOKEN = 4
"""Of English text, for the estimate of a prompt."""


class Rule(msgspec.Struct, frozen=True):
    """One number of a `Limit`, for one key, endpoint or user.

    Attributes:
        name: of its row.
        kind: what is limited; `most` of it in a `window`.
        subject: whose limit it is, for the error.
    """

    name: Name
    kind: Kind
    most: float
    window: Window
    subject: str


class Rules(msgspec.Struct, frozen=True):
    """What is to be checked for a request: rules with windows, and (name, most, subject) of those without one."""

    windows: tuple[Rule, ...] = ()
    concurrent: tuple[tuple[Name, int, str], ...] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """What a request has been counted for.

    Attributes:
        charged: what its end corrects: rule, tick of the count, and amount.
        running: names of the rows in which it counts as running.
        quotas: the tightest of its limits of requests and of tokens.
    """

    charged: list[tuple[Rule, int, float]] = field(default_factory=list)
    running: list[Name] = field(default_factory=list)
    quotas: tuple[Quota, ...] = ()


class Limiter:
    """Counts the requests of one worker together with those of the others.

    Args:
        lasting: file of the windows, which survives restarts; None: memory of this process alone.
        folder: shared by the workers, for what runs now; None: likewise.
    """

    def __init__(self, lasting: Path | None, folder: Path | None) -> None:
        self._lasting = lasting
        self._folder = folder / "running" if folder is not None else None
        self._slot: Slot | None = None
        self._column = 0
        self._second, self._spans = 0, spans(0.0)

    # Both are made at first use: a server without limits has no such files.
    @cached_property
    def _windows(self) -> CounterTable:
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

    def enter(self, rules: Rules, tokens: int) -> Ticket:
        """Count a request.

        Args:
            rules: its limits.
            tokens: an estimate of its prompt and answer.

        Raises:
            schemas.errors.RateLimited: one of its limits is reached; then it is counted nowhere.
        """
        ticket = Ticket()
        try:
            self._enter_running(rules, ticket)
            self._enter_windows(rules, tokens, ticket)
        except RateLimited:
            self._leave_running(ticket)
            raise
        return ticket

    def leave(self, ticket: Ticket, tokens: int | None, cost: float) -> None:
        """Count a request's end.

        Args:
            ticket: what `enter` returned.
            tokens: of its prompt and answer; None: the estimate stays.
            cost: of its answer.
        """
        self._leave_running(ticket)
        changes = [
            (rule, tick, change)
            for rule, tick, amount in ticket.charged
            if (change := _actual(rule.kind, amount, tokens, cost) - amount)
        ]
        if not changes:
            return
        now = self._now()
        with self._windows:
            for rule, tick, change in changes:
                span = now[rule.window]
                row = self._windows.row(rule.name, span)
                self._windows.total(row, span)
                if span.tick - tick < span.counts:
                    self._windows.add(row, tick, span, change)
                elif change > 0:  # the estimate is over and the rest has just been used; a refund would be for nothing
                    self._windows.add(row, span.tick, span, change)

    def close(self) -> None:
        """Release the files."""
        for table in ("_windows", "_running"):
            if table in self.__dict__:
                self.__dict__[table].close()
        if self._slot is not None:
            self._slot.close()

    def _now(self) -> dict[str, Span]:
        # Made once a second: a calendar is slow.
        if (second := int(now := time.time())) != self._second:
            self._second, self._spans = second, spans(now)
        return self._spans

    def _enter_running(self, rules: Rules, ticket: Ticket) -> None:
        if not rules.concurrent:
            return
        table = self._running
        with table:
            for name, most, subject in rules.concurrent:
                if table.total(row := table.row(name, RUNNING), RUNNING) >= most:
                    raise RateLimited(f"{subject} has {most} requests running, which is its limit.", retry_after=1.0)
                table.add(row, self._column, RUNNING, 1.0)
                ticket.running.append(name)

    def _leave_running(self, ticket: Ticket) -> None:
        if not ticket.running:
            return
        table = self._running
        with table:
            for name in ticket.running:
                table.add(row := table.row(name, RUNNING), self._column, RUNNING, -1.0)
                if not table.total(row, RUNNING):
                    table.free(row)
        ticket.running.clear()

    def _enter_windows(self, rules: Rules, tokens: int, ticket: Ticket) -> None:
        if not rules.windows:
            return
        now, table = self._now(), self._windows
        taken: list[tuple[Rule, Span, float, float]] = []
        with table:
            for rule in rules.windows:
                span, kind = now[rule.window], rule.kind
                amount = 1.0 if kind == "requests" else float(tokens) if kind == "tokens" else 0.0
                left = table.take(rule.name, span, rule.most, amount)
                if left < 0:
                    for other, window, back, _ in taken:
                        table.add(table.row(other.name, window), window.tick, window, -back)
                    raise self._refusal(rule, span, amount)
                taken.append((rule, span, amount, left))
        ticket.charged = [(rule, span.tick, amount) for rule, span, amount, _ in taken if rule.kind != "requests"]
        ticket.quotas = _quotas(taken)

    def _refusal(self, rule: Rule, span: Span, amount: float) -> RateLimited:
        window = f"a {rule.window}"
        if amount > rule.most:
            # Whatever becomes free, it is not enough: no `retry_after`.
            return RateLimited(
                f"This request may take {amount:g} tokens, and {rule.subject} has a limit of {rule.most:g} {window}. "
                "Ask for fewer tokens.",
                code="rate_limit_exceeded",
            )
        row = self._windows.row(rule.name, span)
        left = rule.most - self._windows.total(row, span)
        # At least something must become free, also for what is counted at its end.
        wait = self._windows.seconds_until_free(row, span, max(amount - left, 1e-9), time.time())
        error = RateLimited(
            f"{rule.subject} has reached its limit of {rule.most:g} {_NOUNS[rule.kind]} {window}.",
            retry_after=max(0.001, wait),
            code="insufficient_quota" if rule.kind == "cost" else "rate_limit_exceeded",
        )
        error.quotas = (_quota(rule, span, left),) if rule.kind != "cost" else ()
        return error


_NOUNS = {"requests": "requests", "tokens": "tokens", "cost": "(cost)"}


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


def rules_for(key: Key | None, endpoint: str, limits: Sequence[EndpointLimit], user: str | None) -> Rules | None:
    """The limits of a request; None if it has none.

    Args:
        key: who asks; None: no key is needed.
        endpoint: the name of what is asked.
        limits: the endpoint's.
        user: the user that the request names.
    """
    if not limits and (key is None or not key.limits):
        return None
    return _rules(key, endpoint, tuple(limits), user)


@lru_cache(maxsize=4096)
def _rules(key: Key | None, endpoint: str, limits: tuple[EndpointLimit, ...], user: str | None) -> Rules:
    subjects: list[tuple[Limit, str, tuple[str, ...]]] = []
    if key is not None:
        subjects += [(limit, f"The key '{key.name}'", ("key", key.digest)) for limit in key.limits]
    for asked in limits:
        if asked.per == "endpoint":
            subjects.append((asked, f"The endpoint '{endpoint}'", ("endpoint", endpoint)))
        elif asked.per == "key" and key is not None:
            subjects.append((asked, f"The key '{key.name}'", ("endpoint-key", endpoint, key.digest)))
        elif asked.per == "user" and user is not None:
            subjects.append((asked, "The user", ("endpoint-user", endpoint, user)))
    windows, concurrent = [], []
    for limit, subject, name in subjects:
        numbers: tuple[tuple[Kind, float | None], ...] = (
            ("requests", limit.requests),
            ("tokens", limit.tokens),
            ("cost", limit.cost),
        )
        for kind, most in numbers:
            if most is not None:
                windows.append(Rule(name_of(kind, limit.window, *name), kind, most, limit.window, subject))
        if limit.concurrent is not None:
            concurrent.append((name_of("running", *name), limit.concurrent, subject))
    return Rules(tuple(windows), tuple(concurrent))


def estimated_tokens(request: Request) -> int:
    """The most tokens that a request may take, as far as it is known without a tokenizer.

    A prompt counts by its length, an answer with the most that the request allows. Images count nothing until the
    answer has sent its usage.
    """
    match request:
        case Generate():
            answer = (request.stopping.max_new_tokens or 0) * max(request.n, request.best_of or 1)
            return sum(map(_prompt_tokens, request.prompts)) + answer
        case Embed():
            return sum(map(_prompt_tokens, request.inputs))
        case Tokenize() | Relay():
            return 0


def _prompt_tokens(prompt: TextPrompt | TokensPrompt | ChatPrompt) -> int:
    match prompt:
        case TokensPrompt():
            return len(prompt.ids)
        case TextPrompt():
            return ceil(len(prompt.text) / _BYTES_PER_TOKEN)
        case ChatPrompt():
            texts = 0
            for message in prompt.messages:
                content = message.content or ""
                if isinstance(content, str):
                    texts += len(content)
                else:
                    texts += sum(len(part.text) for part in content if isinstance(part, TextPart))
            return ceil(texts / _BYTES_PER_TOKEN)


def _actual(kind: Kind, charged: float, tokens: int | None, cost: float) -> float:
    """What a request counts when it has ended."""
    if kind == "cost":
        return cost
    return float(tokens) if kind == "tokens" and tokens is not None else charged


def _quotas(taken: Sequence[tuple[Rule, Span, float, float]]) -> tuple[Quota, ...]:
    """The tightest limit of requests and that of tokens, of rules with what is left of them."""
    tightest: dict[str, tuple[float, Quota]] = {}
    for rule, span, _, left in taken:
        share = left / rule.most
        if rule.kind != "cost" and (rule.kind not in tightest or share < tightest[rule.kind][0]):
            tightest[rule.kind] = share, _quota(rule, span, left)
    return tuple([quota for _, quota in tightest.values()])


def _quota(rule: Rule, span: Span, left: float) -> Quota:
    kind: Literal["requests", "tokens"] = "tokens" if rule.kind == "tokens" else "requests"
    return Quota(kind, int(rule.most), max(0, int(left)), max(0.0, span.until - time.time()))
