"""Routing policies: in which order the targets of an endpoint are asked for a request.

A policy is an entry in `POLICIES`, under the name that an endpoint's `routing` key takes (`gateway.config.Routing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.config import Endpoint, Routing
from gateway.routing.assignment import Unit, assign, scores, unit_of
from gateway.routing.target import Target
from schemas.ir import Request


class Order(NamedTuple):
    """A policy's decision: `targets` in the order in which they are asked, and the unit that it was made by."""

    targets: tuple[Target, ...]
    unit: Unit


class Policy(Protocol):
    """Orders the targets of one endpoint. Holds for all workers: they share no state."""

    def order(self, request: Request, headers: Mapping[str, str], targets: Sequence[Target]) -> Order:
        """Decide for one request.

        Args:
            request: what was asked.
            headers: the request's, by lower-case name.
            targets: those that may answer, in the configuration's order; at least one has a positive weight.
        """
        ...

    def explain(self, unit: str, weights: Mapping[str, float]) -> Iterator[str]:
        """Lines for `gateway explain`: which served entity answers a unit, then why.

        Args:
            unit: the value of a unit.
            weights: of the served entities, by name.
        """
        ...


class WeightedRendezvous:
    """Weighted rendezvous hashing of a sticky unit; the other targets follow in the configuration's order.

    Args:
        name: the endpoint's.
        endpoint: says where a request's unit comes from.
    """

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self._name = name
        self._units = endpoint.experiment.unit

    def order(self, request: Request, headers: Mapping[str, str], targets: Sequence[Target]) -> Order:
        """The target with the unit's highest score, then the others."""
        unit = unit_of(request, headers, self._units)
        weights = {target.entity.name: target.weight for target in targets}
        chosen = list(weights).index(assign(self._name, weights, unit.value))
        return Order((targets[chosen], *targets[:chosen], *targets[chosen + 1 :]), unit)

    def explain(self, unit: str, weights: Mapping[str, float]) -> Iterator[str]:
        """The winner, where units come from, and every served entity's score."""
        yield f"{self._name}: unit '{unit}' is answered by {assign(self._name, weights, unit)}"
        yield f"  the unit is the first that a request has of: {', '.join(self._units)}"
        yield "  the highest score, weight / -ln(hash of endpoint, entity and unit), wins:"
        for name, score in scores(self._name, weights, unit).items():
            yield f"    {name:20} {weights[name]:3.0f} %  {score:10.3f}"


POLICIES: Mapping[Routing, Callable[[str, Endpoint], Policy]] = {"hash": WeightedRendezvous}
"""How to make each policy, from an endpoint's name and configuration."""


def policy_for(name: str, endpoint: Endpoint) -> Policy:
    """The policy that an endpoint asks for."""
    return POLICIES[endpoint.routing](name, endpoint)
