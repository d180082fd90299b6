"""Limits of keys, endpoints and users: each request is counted when it is routed, and corrected when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.access.counters import Name, Span
from gateway.access.rules import Kind, Rule, Rules
from schemas.errors import Quota, RateLimited

Counted = tuple[Rule, int, float, float, int]
"""A rule, the tick of its count, the amount that was counted, what is left of the limit, and seconds to its reset."""


class Ticket(msgspec.Struct, frozen=True):
    """What a request has been counted for.

    Attributes:
        counted: for which rules.
        running: names of what counts it as running.
    """

    counted: Sequence[Counted] = ()
    running: Sequence[Name] = ()

    @property
    def quotas(self) -> Sequence[Quota]:
        """The tightest of its limits of requests and of tokens; made anew each time."""
        found: dict[str, Quota] = {}
        for rule, _, _, left, reset in self.counted:
            if rule.kind != "cost":
                quota, other = Quota(rule.kind, rule.whole, int(left), reset), found.get(rule.kind)
                # Of several limits of the same kind, the one of which the least part is left.
                if other is None or quota.remaining / quota.limit < other.remaining / other.limit:
                    found[quota.kind] = quota
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


def corrections(ticket: Ticket, tokens: int | None, cost: float) -> list[tuple[Rule, int, float]]:
    """What a request has counted too little, or too much if it is below 0: rule, tick of the count, and amount."""
    return [
        (rule, tick, change)
        for rule, tick, amount, _, _ in ticket.counted
        if (change := _correction(rule.kind, amount, tokens, cost))
    ]


def _correction(kind: Kind, amount: float, tokens: int | None, cost: float) -> float:
    if kind == "cost":
        return cost - amount
    return tokens - amount if tokens is not None and kind == "tokens" else 0.0  # a request stays one


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
