"""How many engines a model needs: a function of its queue and of time.

Pure: no I/O and no clock, so that a simulation drives the code that decides in a cluster. The rule is that of Ray Serve
and of Kubernetes' autoscaler: the queue divided by what one engine should have, within limits. A change must have been
due for some time, so that a short burst starts nothing and a short pause stops nothing: an engine loads for longer.

    state = ScalingState()
    while True:
        target, state = scale(scaling, state, queue, target, now)
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of the number of engines of a model, and when it changes.

    Attributes:
        min: engines that are there without any request.
        max: engines at most.
        per_queue: sequences that one engine should have, running and waiting together.
        up_after: seconds for which more engines must have been needed before they are started.
        down_after: seconds for which fewer engines must have been enough before the others are drained.
    """

    min: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    per_queue: Annotated[float, msgspec.Meta(gt=0)] = 16.0
    up_after: _Seconds = 5.0
    down_after: _Seconds = 120.0

    def __post_init__(self) -> None:
        """Refuse limits that no number is within."""
        if self.max < self.min:
            raise ValueError(f"`max` ({self.max}) must be at least `min` ({self.min})")


class ScalingState(msgspec.Struct, frozen=True, gc=False):
    """What `scale` remembers between two calls.

    Attributes:
        above_since: when more engines than there are began to be needed; None: they are not.
        above: the fewest that were needed since then.
        below_since: when fewer engines than there are began to be enough; None: they are not.
        below: the most that were needed since then.
    """

    above_since: float | None = None
    above: int = 0
    below_since: float | None = None
    below: int = 0


_SETTLED = ScalingState()


def scale(scaling: Scaling, state: ScalingState, queue: float, engines: int, now: float) -> tuple[int, ScalingState]:
    """The number of engines that there should be from now on, and the state for the next call.

    Args:
        scaling: the limits.
        state: the state of the call before; `ScalingState()` at first.
        queue: sequences of all engines, running and waiting, and those that wait at gateways for any engine.
        engines: the number that there should be by now: what the call before returned. Engines that load are among
            them, engines that are drained are not.
        now: seconds on any clock that never goes back.
    """
    within = min(max(engines, scaling.min), scaling.max)
    if within != engines:  # the limits have changed, or there is no engine yet
        return within, _SETTLED
    # Rounded first: 0.3 / 0.1 is 2.9999999999999996, and 0.7 / 0.1 is 6.999999999999999.
    needed = min(max(math.ceil(round(queue / scaling.per_queue, 9)), scaling.min), scaling.max)
    if needed > engines:
        since = now if state.above_since is None else state.above_since
        above = needed if state.above_since is None else min(state.above, needed)
        if now - since >= scaling.up_after:
            return above, _SETTLED
        return engines, ScalingState(above_since=since, above=above)
    if needed < engines:
        since = now if state.below_since is None else state.below_since
        below = needed if state.below_since is None else max(state.below, needed)
        if now - since >= scaling.down_after:
            return below, _SETTLED
        return engines, ScalingState(below_since=since, below=below)
    return engines, _SETTLED
