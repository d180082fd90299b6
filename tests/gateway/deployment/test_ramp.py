"""The moves of a ramp: which are possible, what they do to the shares, and what is remembered."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.base import Health
from gateway.config import Endpoint, Experiment, Ramp, ServedEntity
from gateway.deployment.deployments import Deployment, changed, ramped, restarted
from gateway.deployment.ramp import Move, RampState, RampStep, next_percentage, with_share
from schemas.catalog import Change
from schemas.catalog import ServedEntity as Entity
from schemas.errors import Conflict, InvalidRequest


def endpoint(steps: tuple[int, ...] = (1, 5, 100), **shares: int) -> Endpoint:
    arms = tuple(
        ServedEntity(name=name, backend="s", traffic_percentage=share)
        for name, share in (shares or {"a": 100, "b": 0}).items()
    )
    return Endpoint(served_entities=arms, experiment=Experiment(ramp=Ramp(arm="b", steps=steps)))


def shares(found: Endpoint) -> dict[str, int]:
    return {arm.name: arm.traffic_percentage for arm in found.served_entities}


def after(*moves: Move, steps: tuple[int, ...] = (1, 5, 100)) -> Deployment:
    deployed = Deployment(endpoint=endpoint(steps))
    for now, move in enumerate(moves, 1):
        deployed = ramped(deployed, deployed.ramp, move, f"because of {now}", now)
    return deployed


@pytest.mark.parametrize(
    ("moves", "share", "status"),
    [
        (("begin",), 1, "running"),
        (("begin", "advance"), 5, "running"),
        (("begin", "advance", "advance"), 100, "finished"),
        (("begin", "advance", "roll_back"), 0, "rolled_back"),
        # What has ended stays as it is.
        (("begin", "advance", "advance", "roll_back"), 100, "finished"),
        (("begin", "roll_back", "advance"), 0, "rolled_back"),
        (("begin", "begin"), 1, "running"),
    ],
)
def test_moves(moves: tuple[Move, ...], share: int, status: str) -> None:
    found = after(*moves)
    assert found.ramp is not None
    assert (shares(found.serving), found.ramp.status) == ({"a": 100 - share, "b": share}, status)


def test_every_step_is_a_version_and_is_remembered_with_its_reason() -> None:
    found = after("begin", "advance")
    assert (found.version, found.since) == (3, 2)
    assert found.ramp == RampState(
        status="running",
        history=(
            RampStep(percentage=1, since=1, reason="because of 1"),
            RampStep(percentage=5, since=2, reason="because of 2"),
        ),
    )
    assert next_percentage(found.serving, found.ramp) == 100


def test_a_last_step_below_100_holds_and_then_changes_no_share() -> None:
    held = after("begin", "advance", steps=(10, 50))
    finished = after("begin", "advance", "finish", steps=(10, 50))
    assert held.ramp is not None
    assert finished.ramp is not None
    assert (held.ramp.status, finished.ramp.status) == ("running", "finished")
    assert finished.serving == held.serving
    assert finished.version == held.version


def test_a_move_decided_on_an_older_state_is_not_made() -> None:
    """Two workers decide at once: the second one finds that the ramp has moved."""
    before = after("begin")
    one = ramped(before, before.ramp, "advance", "", 5)
    assert ramped(one, before.ramp, "advance", "", 6) == one


def test_an_update_by_hand_ends_the_ramp() -> None:
    before = after("begin")
    change = Change(action="update", endpoint="chat", served_entities=(Entity("a", "s", 70), Entity("b", "s", 30)))
    found = changed({"chat": before}, change, {"s": Health("ready")}, 9)
    assert found is not None
    assert found.ramp is not None
    assert (found.ramp.status, shares(found.serving)) == ("ended", {"a": 70, "b": 30})
    assert ramped(found, found.ramp, "advance", "", 10) == found


@pytest.mark.parametrize(
    ("before", "share", "expected"),
    [
        ({"a": 60, "b": 0, "c": 40}, 10, {"a": 54, "b": 10, "c": 36}),
        ({"a": 50, "b": 0, "c": 50}, 1, {"a": 50, "b": 1, "c": 49}),
        ({"a": 0, "b": 100, "c": 0}, 0, {"a": 100, "b": 0, "c": 0}),
        ({"a": 60, "b": 0, "c": 40}, 100, {"a": 0, "b": 100, "c": 0}),
    ],
)
def test_the_others_divide_what_is_left_as_before(before: dict[str, int], share: int, expected: dict[str, int]) -> None:
    assert shares(with_share(endpoint(**before), "b", share)) == expected


def test_a_restart_takes_the_share_and_forgets_the_steps() -> None:
    for moves in (("begin", "advance", "roll_back"), ("begin", "advance"), ("begin", "advance", "advance")):
        before = after(*moves)  # type: ignore[arg-type]
        found = restarted("chat", before, 20)
        assert (shares(found.serving), found.ramp, found.since) == ({"a": 100, "b": 0}, None, 20)
        assert found.version == before.version + 1
        assert next_percentage(found.serving, found.ramp) == 1
    with pytest.raises(Conflict):
        restarted("chat", replace(after("begin"), pending=endpoint(a=70, b=30)), 20)
    with pytest.raises(InvalidRequest):
        restarted("chat", Deployment(endpoint=replace(endpoint(), experiment=Experiment())), 20)
