"""Limits of keys, endpoints and users: each request is counted when it is routed, and corrected when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from gateway.access.counters import Name, Span
from gateway.access.rules import Rule, Rules
from schemas.errors import Quota, RateLimited


class Windows(msgspec.Struct, frozen=True, eq=False):
    """The windows in which a request is counted. Those that begin in the same second may have them in common.

    Attributes:
        rules: the limits.
        ticks: of each rule's count.
        resets: seconds to each rule's reset.
        second: in which they begin (Unix time).
        by_tokens, by_cost: whether a limit of tokens or of costs is among the rules.
        quoted: place, kind, limit and reset of the rules whose quotas clients are sent, if each kind has one rule; else
            they are found out each time.
        rows: of the rules, for `gateway.access.usual_rows`; b"": they are counted one by one.
    """

    rules: Sequence[Rule] = ()
    ticks: Sequence[int] = ()
    resets: Sequence[int] = ()
    second: float = 0.0
    by_tokens: bool = False
    by_cost: bool = False
    quoted: Sequence[tuple[int, Literal["requests", "tokens"], int, int]] = ()
    rows: bytes = b""


NO_WINDOWS = Windows()


class Ticket(msgspec.Struct, frozen=True, eq=False):
    """What a request has been counted for.

    Attributes:
        windows: in which windows.
        left: of each of their limits.
        tokens: the estimate by which it was counted.
        running: names of what counts it as running.
    """

    windows: Windows = NO_WINDOWS
    left: Sequence[float] = ()
    tokens: float = 0.0
    running: Sequence[Name] = ()

    @property
    def quotas(self) -> Sequence[Quota]:
        """The tightest of its limits of requests and of tokens; made anew each time."""
        windows, left = self.windows, self.left
        if windows.quoted:
            return [Quota(kind, whole, int(left[at]), reset) for at, kind, whole, reset in windows.quoted]
        found: dict[str, Quota] = {}
        for rule, remaining, reset in zip(windows.rules, left, windows.resets, strict=True):
            kind = rule.kind
            if kind != "cost":
                quota, other = Quota(kind, rule.whole, int(remaining), reset), found.get(kind)
                # Of several limits of the same kind, the one of which the least part is left.
                if other is None or quota.remaining / quota.limit < other.remaining / other.limit:
                    found[kind] = quota
        return [*found.values()]


class Limiter(Protocol):
    """Counts requests together with everybody who serves the same keys and endpoints."""

    async def enter(self, rules: Rules, tokens: int) -> Ticket:
        """Count a request.

        Args:
            rules: its limits.
            tokens: an estimate of its prompt and answer; used only with `rules.by_tokens`.

        Raises:
            schemas.errors.RateLimited: one of its limits is reached; then it is counted nowhere.
        """
        ...

    def enter_at_once(self, rules: Rules, tokens: int) -> Ticket | None:
        """As `enter`; None: that may have to wait."""
        ...

    def leave(self, ticket: Ticket, tokens: int | None, cost: float) -> None:
        """Count a request's end. Returns at once.

        Args:
            ticket: what `enter` returned.
            tokens: of its prompt and answer; None: the estimate stays.
            cost: of its answer.
        """
        ...

    async def aclose(self) -> None:
        """Release what it holds. What it has counted stays for the others."""
        ...


def amount_of(rule: Rule, tokens: float) -> float:
    """What a request counts for a rule when it begins; the cost of its answer is not known then."""
    return 1.0 if rule.kind == "requests" else float(tokens) if rule.kind == "tokens" else 0.0


def corrections(windows: Windows, tokens: float, cost: float) -> list[tuple[Rule, int, float]]:
    """What has to be added for a request that has ended, or taken away if it is below 0.

    Args:
        windows: in which it was counted.
        tokens: that were counted too little.
        cost: likewise.

    Returns:
        Rule, tick of the count, and amount.
    """
    changes = {"requests": 0.0, "tokens": tokens, "cost": cost}  # a request stays one
    return [
        (rule, tick, change)
        for rule, tick in zip(windows.rules, windows.ticks, strict=True)
        if (change := changes[rule.kind])
    ]


def refusal(rule: Rule, span: Span, amount: float, left: float, wait: float) -> RateLimited:
    """The error for a request that a rule refuses.

    Args:
        rule: which one.
        span: its window.
        amount: what the request would have counted.
        left: of the limit.
        wait: seconds until enough is left.
    """
    if amount > rule.most:
        # Whatever becomes free, it is not enough: no `retry_after`.
        return RateLimited(
            f"This request may take {amount:g} tokens, and {rule.subject} has a limit of {rule.most:g} "
            f"a {rule.window}. Ask for fewer tokens.",
            code="rate_limit_exceeded",
        )
    error = RateLimited(
        f"{rule.subject} has reached its limit of {rule.most:g} {_NOUNS[rule.kind]} a {rule.window}.",
        retry_after=max(0.001, wait),
        code="insufficient_quota" if rule.kind == "cost" else "rate_limit_exceeded",
    )
    if rule.kind != "cost":
        error.quotas = (Quota(rule.kind, rule.whole, max(0, int(left)), span.reset),)
    return error


_NOUNS = {"requests": "requests", "tokens": "tokens", "cost": "(cost)"}
