"""Limits that all gateways with the same state server count together.

Strategy: leases. What may be taken of a limit is counted on the state server, by one script that runs as one step, so
it is never exceeded, whoever asks. A worker that has many requests takes more than the one that it has just now: for as
long as a tenth of a second at its present rate, and at most a fiftieth of what is left. So a limit that is nearly
reached is shared out one by one, and one that is far away costs a round trip for many requests. A lease ends with the
second in which it was taken, in whose count it stands, and what is left of it is given back. What a worker that was
killed had leased stays counted.

While the state server is away, the workers of each gateway count by themselves (`LocalLimiter`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, time
from typing import NamedTuple

from gateway.access.counters import Name, Span, spans
from gateway.access.lease_scripts import CORRECT, HOLD, RELEASE, TAKE, Grant, granted, of_window
from gateway.access.limits import Limiter, Ticket, Windows, amount_of, corrections, refusal
from gateway.access.rules import Rule, Rules
from gateway.storage.shared.state_server import ServerAway, StateServer
from schemas.errors import RateLimited

_LATEST = 0.05
"""Seconds after which corrections are counted, and after which slots that nobody uses are given back."""
_LEASE = 0.1
"""Seconds for which a lease is to last, at the present rate."""
_REFUSED = 0.1
"""Seconds for which a refusal is believed."""
_COST = 0.25
"""Seconds for which a limit of costs, which nobody knows beforehand, counts as not reached."""
_MOST_CORRECTIONS = 10_000
"""That wait while the state server is away."""
_RENEW = 1.0


class _SharedTicket(Ticket, frozen=True):
    """One that the state server knows of."""


@dataclass(slots=True, eq=False)
class _Lease:
    """What a worker may still take of a limit.

    Attributes:
        rule: the limit.
        tick: in whose count it stands.
        began, until: on the clock of `time.monotonic`.
        size: that it had.
        left: of it.
        beyond: what was left of the limit when it was taken.
    """

    rule: Rule
    tick: int
    began: float
    until: float
    size: float
    left: float
    beyond: float


@dataclass(slots=True, eq=False)
class _Slots:
    """Requests at the same time.

    Attributes:
        held: how many this worker may have.
        used: how many it has.
        idle: how many it had to spare at any time since they were last looked at.
        waiting: requests that wait for the state server.
        refused: until when a refusal is believed; on the clock of `time.monotonic`, as `renewed`.
        lock: of calls to the state server, of which the last one must be the last there, too.
    """

    held: int = 0
    used: int = 0
    idle: int = 0
    waiting: int = 0
    refused: float = 0.0
    renewed: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Refused(NamedTuple):
    """A limit that is reached: until when that is believed, for requests of how much at least, and their error."""

    until: float
    amount: float
    error: Callable[[], RateLimited]


class SharedLimiter:
    """Counts the requests of one worker together with those of all gateways; see `Limiter`.

    Args:
        server: the state server.
        local: counts while that is away.
    """

    def __init__(self, server: StateServer, local: Limiter) -> None:
        self._server = server
        self._local = local
        self._worker = secrets.token_hex(8)
        self._leases: dict[Name, _Lease] = {}
        self._slots: dict[Name, _Slots] = {}
        self._refused: dict[Name, _Refused] = {}
        self._asking: dict[Name, asyncio.Future[None]] = {}
        self._wanted: dict[Name, float] = {}
        self._corrections: list[tuple[Rule, int, float]] = []
        self._settling: asyncio.Task[None] | None = None
        self._second, self._spans = 0.0, spans(0.0)

    async def enter(self, rules: Rules, tokens: int) -> Ticket:
        """Count a request. Waits for the state server if there is no lease; not at all while that is away.

        Raises:
            schemas.errors.RateLimited: one of its limits is reached; then it is counted nowhere.
        """
        if self._server.is_away:
            return await self._local.enter(rules, tokens)
        held: list[Name] = []
        try:
            for name, most, subject in rules.concurrent:
                await self._hold(name, most, subject)
                held.append(name)
            return await self._enter(rules, tokens, tuple(held))
        except ServerAway:
            self._let_go(held)
            return await self._local.enter(rules, tokens)
        except BaseException:
            self._let_go(held)
            raise

    def enter_at_once(self, rules: Rules, tokens: int) -> Ticket | None:
        """Count a request, if that never waits."""
        return self._local.enter_at_once(rules, tokens) if self._server.is_away else None

    def leave(self, ticket: Ticket, tokens: int | None, cost: float) -> None:
        """Count a request's end."""
        if not isinstance(ticket, _SharedTicket):
            self._local.leave(ticket, tokens, cost)
            return
        self._let_go(ticket.running)
        change = 0.0 if tokens is None else tokens - ticket.tokens
        self._corrections += corrections(ticket.windows, change, cost)
        self._settle_later()

    async def aclose(self) -> None:
        """Give back what is leased."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait([self._settling])
        for lease in self._leases.values():
            lease.until = 0.0
        for slots in self._slots.values():
            slots.idle, slots.renewed = slots.held - slots.used, 0.0
        with suppress(ServerAway):  # they end by themselves
            await self._settle()
        await self._local.aclose()

    async def _enter(self, rules: Rules, tokens: int, running: Sequence[Name]) -> Ticket:
        while lacking := self._lacking(rules, tokens, now := monotonic()):
            if (
                asking := next((self._asking[rule.name] for rule, _ in lacking if rule.name in self._asking), None)
            ) is None:
                # What this request needs is its own: it is counted at once, before others run.
                return await self._ask(rules, tokens, now, lacking, running)
            for rule, need in lacking:
                self._wanted[rule.name] = self._wanted.get(rule.name, 0.0) + need
            await asyncio.wait([asking])
        return self._ticket(rules, tokens, running)

    def _lacking(self, rules: Rules, tokens: int, now: float) -> list[tuple[Rule, float]]:
        """Rules whose leases do not suffice, and how much they lack.

        Raises:
            schemas.errors.RateLimited: one of them has just been refused.
        """
        found = []
        for rule in rules.windows:
            amount = amount_of(rule, tokens)
            lease = self._leases.get(rule.name)
            left = -1.0 if lease is None or lease.until <= now else lease.left
            if left >= amount:
                continue
            if (refused := self._refused.get(rule.name)) is not None:
                if refused.until > now and amount >= refused.amount:
                    raise refused.error()
                if refused.until <= now:
                    del self._refused[rule.name]
            found.append((rule, amount - max(left, 0.0)))
        return found

    def _ticket(self, rules: Rules, tokens: int, running: Sequence[Name]) -> Ticket:
        """Take what a request needs from leases that suffice."""
        left, ticks, now = [], [], self._now()
        for rule in rules.windows:
            lease = self._leases[rule.name]
            lease.left -= amount_of(rule, tokens)
            left.append(max(0.0, lease.left + lease.beyond))
            ticks.append(lease.tick)
        windows = Windows(rules.windows, ticks, [now[rule.window].reset for rule in rules.windows])
        return _SharedTicket(windows, left, tokens, running)

    async def _ask(
        self, rules: Rules, tokens: int, now: float, lacking: Sequence[tuple[Rule, float]], running: Sequence[Name]
    ) -> Ticket:
        """Lease what a request lacks, and what others wait for.

        Raises:
            schemas.errors.RateLimited: a limit is reached.
            ServerAway: the state server does not answer.
        """
        asked = asyncio.get_running_loop().create_future()
        kept = []  # from others who run meanwhile
        for rule in rules.windows:
            if (lease := self._leases.get(rule.name)) is not None and lease.until > now:
                taken = min(lease.left, amount_of(rule, tokens))
                lease.left -= taken
                kept.append((lease, taken))
        for rule, _ in lacking:
            self._asking[rule.name] = asked
        try:
            await self._lease(lacking, tokens)
        except BaseException:
            # Its lease may have ended, and been given back, meanwhile.
            self._corrections += [(lease.rule, lease.tick, -taken) for lease, taken in kept if taken]
            raise
        finally:
            for rule, _ in lacking:
                del self._asking[rule.name]
            asked.set_result(None)
            self._settle_later()
        for lease, taken in kept:
            self._leases.setdefault(lease.rule.name, lease).left += taken
        return self._ticket(rules, tokens, running)

    async def _lease(self, lacking: Sequence[tuple[Rule, float]], tokens: int) -> None:
        now, values = self._now(), []
        for rule, need in lacking:
            wanted = self._wanted.pop(rule.name, 0.0)
            values += [*of_window(rule, now[rule.window]), rule.most, need, wanted, self._next_size(rule)]
        names = [self._key(rule.name) for rule, _ in lacking]
        found = granted(await self._server.evaluate(TAKE, names, values))
        if not isinstance(found, Grant):
            rule, _ = lacking[found.place]
            span, amount = now[rule.window], amount_of(rule, tokens)
            wait = found.wait if span.counts > 1 else span.until - time()
            error = partial(refusal, rule, span, amount, found.left, wait)
            self._refused[rule.name] = _Refused(monotonic() + min(max(wait, 0.0), _REFUSED), amount, error)
            raise error()
        began = monotonic()
        for (rule, _), (tick, size, beyond) in zip(lacking, found.parts, strict=True):
            until = began + (min(found.seconds, _COST) if rule.kind == "cost" else found.seconds)
            before = self._leases.get(rule.name)
            left = size
            if before is not None:
                # What was left of it is part of what this request needs, unless its second is over.
                if before.tick == tick:
                    left += before.left
                else:
                    self._return(before)
            self._leases[rule.name] = _Lease(rule, tick, began, until, size, left, beyond)

    def _next_size(self, rule: Rule) -> float:
        """How much more than needed to lease: as much as was taken of late in the time of a lease."""
        if rule.kind == "cost" or (lease := self._leases.get(rule.name)) is None:
            return 0.0
        elapsed = max(monotonic() - lease.began, 1e-3)
        return (lease.size - lease.left) * min(_LEASE / elapsed, 4.0) if elapsed < 10 * _LEASE else 0.0

    async def _hold(self, name: Name, most: int, subject: str) -> None:
        """Count a request that runs.

        Raises:
            schemas.errors.RateLimited: too many run.
        """
        slots = self._slots.setdefault(name, _Slots())
        if slots.used >= slots.held and monotonic() >= slots.refused:
            slots.waiting += 1
            try:
                async with slots.lock:
                    await self._hold_more(name, most, slots)
            finally:
                slots.waiting -= 1
        if slots.used >= slots.held:
            self._settle_later()
            raise RateLimited(f"{subject} has {most} requests running, which is its limit.", retry_after=1.0)
        slots.used += 1
        slots.idle = min(slots.idle, slots.held - slots.used)

    async def _hold_more(self, name: Name, most: int, slots: _Slots) -> None:
        """Ask for as many slots as requests wait for, unless another request has got them meanwhile."""
        if slots.used < slots.held or monotonic() < slots.refused:
            return
        wanted = slots.used + slots.waiting
        values = (self._worker, most, wanted)
        slots.held = int(await self._server.evaluate(HOLD, (self._key(name, "running"),), values))
        slots.renewed = monotonic()
        if slots.held < wanted:
            slots.refused = monotonic() + _LATEST

    def _let_go(self, names: Sequence[Name]) -> None:
        for name in names:
            self._slots[name].used -= 1
        if names:
            self._settle_later()

    def _settle_later(self) -> None:
        if self._settling is None and (self._corrections or self._leases or self._slots):
            self._settling = asyncio.create_task(self._settle_all())

    async def _settle_all(self) -> None:
        """Settle until there is nothing to be settled."""
        try:
            while self._corrections or self._leases or self._slots:
                await asyncio.sleep(_LATEST)
                try:
                    await self._settle()
                except ServerAway:
                    del self._corrections[:-_MOST_CORRECTIONS]
        finally:
            self._settling = None

    async def _settle(self) -> None:
        """Count what ended requests have left to correct, and give back what was leased and not used.

        Raises:
            ServerAway: the state server does not answer; the next call does it.
        """
        now = monotonic()
        for lease in [lease for lease in self._leases.values() if lease.until <= now]:
            self._return(lease)
            del self._leases[lease.rule.name]
        if self._corrections:
            sent, self._corrections = self._corrections, []
            try:
                await self._correct(sent)
            except ServerAway:
                self._corrections += sent
                raise
        for name, slots in list(self._slots.items()):
            await self._release(name, slots, now)

    async def _correct(self, sent: Sequence[tuple[Rule, int, float]]) -> None:
        # Those of one count together: under load there are many of few limits.
        sums: dict[tuple[Name, int], tuple[Rule, float]] = {}
        for rule, tick, change in sent:
            before = sums.get((rule.name, tick))
            sums[rule.name, tick] = rule, change if before is None else before[1] + change
        now, names, values = self._now(), list[str](), list[float]()
        for (name, tick), (rule, change) in sums.items():
            names.append(self._key(name))
            values += [*of_window(rule, now[rule.window]), tick, change]
        await self._server.evaluate(CORRECT, names, values)

    async def _release(self, name: Name, slots: _Slots, now: float) -> None:
        """Give back the slots that nobody has used since the last time, and keep the others."""
        async with slots.lock:
            if (idle := min(slots.idle, slots.held - slots.used)) > 0 or now - slots.renewed > _RENEW:
                slots.held -= max(idle, 0)
                slots.renewed = now
                await self._server.evaluate(RELEASE, (self._key(name, "running"),), (self._worker, slots.held))
            slots.idle = slots.held - slots.used
        if not slots.held and not slots.used and not slots.waiting:
            self._slots.pop(name, None)

    def _return(self, lease: _Lease) -> None:
        if lease.left > 0:
            self._corrections.append((lease.rule, lease.tick, -lease.left))
        lease.left = 0.0  # a request that has taken from it may put back what it has not used

    def _key(self, name: Name, kind: str = "limits") -> str:
        return self._server.key(kind, f"{name[0]:x}.{name[1]:x}")

    def _now(self) -> Mapping[str, Span]:
        # Made once a second: a calendar is slow.
        if not self._second <= (now := time()) < self._second + 1.0:
            self._second, self._spans = float(int(now)), spans(now)
        return self._spans
