"""Routing policies: their names, and what the first of them decides and explains."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from backends.scripted import ScriptedBackend
from gateway.config import Routing
from gateway.routing.assignment import Unit, assign, bucket_of
from gateway.routing.policy import POLICIES, WeightedRendezvous, policy_for
from gateway.routing.target import Target
from schemas.ir import Generate, TextPrompt
from tests.gateway.serving import endpoint

ARMS = endpoint(("a", "echo", 50), ("b", "echo", 30), ("c", "echo", 20))
BACKEND = ScriptedBackend("s")
TARGETS = tuple(
    Target("chat", entity, BACKEND, "echo", weight=float(entity.traffic_percentage)) for entity in ARMS.served_entities
)
WEIGHTS = {target.entity.name: target.weight for target in TARGETS}


def test_every_name_that_a_configuration_may_have_is_a_policy() -> None:
    assert set(POLICIES) == set(get_args(Routing))
    assert isinstance(policy_for("chat", ARMS), WeightedRendezvous)


def test_the_unit_picks_the_first_and_the_others_follow_in_their_order() -> None:
    policy = WeightedRendezvous("chat", ARMS)
    seen = set()
    for user in map(str, range(50)):
        request = Generate(id="r", model="chat", prompts=(TextPrompt("Hi"),), user=user)
        order = policy.order(request, {}, TARGETS)
        first, *others = (target.entity.name for target in order.targets)
        assert first == assign("chat", WEIGHTS, user)
        assert others == [name for name in "abc" if name != first]
        assert order.unit == Unit("user", user, bucket_of(user))
        seen.add(first)
    assert seen == {"a", "b", "c"}


def test_a_remembered_unit_keeps_its_arm_until_the_targets_change() -> None:
    policy = WeightedRendezvous("chat", ARMS)
    stopped = tuple(replace(target, weight=0.0) if target.entity.name == "a" else target for target in TARGETS)
    left = {name: 0.0 if name == "a" else weight for name, weight in WEIGHTS.items()}
    # More units than are remembered, and one with two sources.
    for targets, weights in ((TARGETS, WEIGHTS), (TARGETS, WEIGHTS), (stopped, left)):
        for user in map(str, range(1100)):
            request = Generate(id="r", model="chat", prompts=(TextPrompt("Hi"),), user=user)
            order = policy.order(request, {}, targets)
            assert order.targets[0].entity.name == assign("chat", weights, user)
            assert order.unit == Unit("user", user, bucket_of(user))
    same_value = policy.order(request, {"x-ab-unit": user}, stopped)
    assert same_value.unit == Unit("header:x-ab-unit", user, bucket_of(user))


def test_a_policy_explains_what_it_decides() -> None:
    policy = WeightedRendezvous("chat", ARMS)
    for unit in map(str, range(20)):
        first, _, _, *scored = policy.explain(unit, WEIGHTS)
        assert first == f"chat: unit '{unit}' is answered by {assign('chat', WEIGHTS, unit)}"
        best = max(scored, key=lambda line: float(line.split()[-1]))
        assert best.split()[0] == assign("chat", WEIGHTS, unit)
