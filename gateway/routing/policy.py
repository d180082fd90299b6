"""Routing policies: in which order the targets of an endpoint are asked for a request.

A policy is an entry in `POLICIES`, under the name that an endpoint's `routing` key takes (`gateway.config.Routing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.config import Endpoint, Routing
from gateway.routing.assignment import OWN_ID, Rendezvous, Unit, assign, bucket_of, source_of, sources
from gateway.routing.target import Target
from schemas.ir import Request

_REMEMBERED = 1024
"""Units whose order a policy remembers: users and conversations come back, and hashing them is most of the work."""
_LONGEST_REMEMBERED = 256
"""Characters: clients choose the values, so long ones are not kept."""


class Order(msgspec.Struct, frozen=True, gc=False):
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
        self._sources = sources(self._units)
        self._targets: Sequence[Target] | None = None
        self._rendezvous: Rendezvous
        self._orders: list[tuple[Target, ...]]
        self._remembered: dict[str, Order] = {}

    def order(self, request: Request, headers: Mapping[str, str], targets: Sequence[Target]) -> Order:
        """The target with the unit's highest score, then the others."""
        # Targets change when an arm is stopped, and for kinds of requests that not every arm takes.
        if targets is not self._targets:
            self._prepare(targets)
        source, value = source_of(request, headers, self._sources)
        known = self._remembered.get(value)
        if known is not None and known.unit.source == source:
            return known
        order = Order(self._orders[self._rendezvous.chosen(value)], Unit(source, value, bucket_of(value)))
        if source != OWN_ID and len(value) <= _LONGEST_REMEMBERED:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()  # those in use come back with their next request
            self._remembered[value] = order
        return order

    def _prepare(self, targets: Sequence[Target]) -> None:
        """Take the scores of these targets, and for each of them the order in which it is the first."""
        self._rendezvous = Rendezvous(self._name, {target.entity.name: target.weight for target in targets})
        self._orders = [(each, *targets[:at], *targets[at + 1 :]) for at, each in enumerate(targets)]
        self._targets = targets
        self._remembered.clear()

    def explain(self, unit: str, weights: Mapping[str, float]) -> Iterator[str]:
        """The winner, where units come from, and every served entity's score."""
        yield f"{self._name}: unit '{unit}' is answered by {assign(self._name, weights, unit)}"
        yield f"  the unit is the first that a request has of: {', '.join(self._units)}"
        yield "  the highest score, weight / -ln(hash of endpoint, entity and unit), wins:"
        for name, score in zip(weights, Rendezvous(self._name, weights).scores(unit), strict=True):
            yield f"    {name:20} {weights[name]:3.0f} %  {score:10.3f}"


POLICIES: Mapping[Routing, Callable[[str, Endpoint], Policy]] = {"hash": WeightedRendezvous}
"""How to make each policy, from an endpoint's name and configuration."""


def policy_for(name: str, endpoint: Endpoint) -> Policy:
    """The policy that an endpoint asks for."""
    return POLICIES[endpoint.routing](name, endpoint)
