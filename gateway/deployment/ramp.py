"""Ramps: an arm's share of the traffic, raised in steps. States and moves between them; pure.

`gateway.rollout.ramp` decides when to move, `gateway.service` carries it out, and the state file remembers it.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from gateway.config import Endpoint, Section

Status = Literal["running", "finished", "rolled_back", "ended"]
Move = Literal["begin", "advance", "finish", "roll_back"]


class RampStep(Section, frozen=True):
    """A step that was taken: the arm's share, since when (Unix time in nanoseconds), and why."""

    percentage: int
    since: int
    reason: str


class RampState(Section, frozen=True):
    """How far a ramp has come. `status` is "ended" if somebody changed the endpoint meanwhile."""

    status: Status
    history: tuple[RampStep, ...]

    @property
    def last(self) -> RampStep:
        """The step that was taken last."""
        return self.history[-1]


def next_percentage(endpoint: Endpoint, state: RampState | None) -> int | None:
    """The share of the next step; None: there is none."""
    ramp = endpoint.experiment.ramp
    if ramp is None or (state is not None and state.status != "running"):
        return None
    return next((step for step in ramp.steps if state is None or step > state.last.percentage), None)


def moved(
    endpoint: Endpoint, state: RampState | None, move: Move, reason: str, now: int
) -> tuple[Endpoint, RampState] | None:
    """An endpoint and its ramp after a move; None if the move is not possible from this state.

    Args:
        endpoint: it has a ramp.
        state: None: the ramp has not begun.
        move: what to do.
        reason: why, for the history.
        now: Unix time in nanoseconds.
    """
    ramp = endpoint.experiment.ramp
    assert ramp is not None
    if (state is None) != (move == "begin") or (state is not None and state.status != "running"):
        return None
    history = state.history if state is not None else ()
    if move == "finish":
        return endpoint, RampState(status="finished", history=history)
    percentage = 0 if move == "roll_back" else next_percentage(endpoint, state)
    if percentage is None:
        return None
    # With all of the traffic the control gets none: nothing is left to compare.
    status: Status = "rolled_back" if move == "roll_back" else "finished" if percentage == 100 else "running"
    step = RampStep(percentage=percentage, since=now, reason=reason)
    return with_share(endpoint, ramp.arm, percentage), RampState(status=status, history=(*history, step))


def with_share(endpoint: Endpoint, arm: str, percentage: int) -> Endpoint:
    """The endpoint with this share for an arm. The others divide the rest as they did before; if they had nothing, the
    first one gets it.
    """
    shares = {each.name: each.traffic_percentage for each in endpoint.served_entities if each.name != arm}
    rest, before = 100 - percentage, sum(shares.values())
    first = endpoint.served_entities[0].name
    new = {name: share * rest // before if before else 0 for name, share in shares.items()}
    new[first] += rest - sum(new.values())  # what rounding down has left
    new[arm] = percentage
    return replace(
        endpoint,
        served_entities=tuple(replace(each, traffic_percentage=new[each.name]) for each in endpoint.served_entities),
    )
