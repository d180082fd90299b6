"""How a request ended, as its experiment counts it. Imported by every worker, so without NumPy."""

from __future__ import annotations

import msgspec

from gateway.experiments.metrics import LOADING
from gateway.routing.target import Plan
from schemas.ir import FinishReason, Usage


class Outcome(msgspec.Struct, eq=False):
    """How a request ended.

    Attributes:
        outcome: what the client saw: "ok", an error's kind, "client_gone" (it left), or "cancelled" (by the shutdown).
        own: what the assigned arm did: the same where it was the only one asked, else its own failure's kind.
        streamed: whether the client asked for a stream.
        first: seconds until the first token of a stream; None: it is not known.
        total: seconds until the end.
        usage: None if the answer did not end.
        reasons: the finish reason of each choice.
        elsewhere: whether another arm was asked last.
    """

    outcome: str
    own: str = ""
    streamed: bool = False
    first: float | None = None
    total: float = 0.0
    usage: Usage | None = None
    reasons: tuple[FinishReason, ...] = ()
    elsewhere: bool = False

    def __post_init__(self) -> None:
        self.own = self.own or self.outcome


def exclusion(plan: Plan, outcome: str) -> str | None:
    """Why a request is not compared; None if it is."""
    # The order matters: a request counts under the first reason that applies.
    if plan.unit is None:
        return "direct"
    if plan.only_one_arm:
        return "only_one_arm"
    if plan.arm_loads:
        # For whichever arm: those that are ready carry the load of the one that is not.
        return LOADING
    return "cancelled" if outcome == "cancelled" else None
