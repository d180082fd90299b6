"""Where a request goes: an endpoint's served entity by its unit, and the entities to fall back to.

`gateway.routing.assignment` assigns alike on every worker. The only state here is which arms were stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from backends.base import Backend
from gateway.config import Endpoint, ServedEntity, Task
from gateway.routing.assignment import Unit, assign, unit_of
from schemas.errors import ModelNotFound
from schemas.ir import Request, Tokenize

_Request = TypeVar("_Request", bound=Request)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where a request goes. `model` is the name that the backend knows, its model's or one of its LoRA adapters';
    `task` is the endpoint's.
    """

    endpoint: str
    entity: ServedEntity
    backend: Backend
    model: str
    task: Task = "chat"

    def addressed(self, request: _Request) -> _Request:
        """The request as the backend is to get it. A LoRA adapter that the client chose overrides the entity's.

        Raises:
            schemas.errors.ModelNotFound: the entity names a LoRA adapter that the backend does not have.
        """
        lora_adapters, named = self.backend.capabilities.lora_adapters, self.entity.model
        if not lora_adapters or named is None or isinstance(request, Tokenize):
            return replace(request, model=self.model)
        if named not in lora_adapters:
            raise ModelNotFound(
                f"The backend '{self.entity.backend}' has no LoRA adapter '{named}'.", code="model_not_found"
            )
        return replace(request, model=named, lora_adapter=request.lora_adapter or named)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What to do with a request: `targets` in the order in which they are asked, the first by assignment.

    `unit` None: the client asked for this very arm. `shadows` get copies. `paired` answer again what the first target
    has answered, if that is the endpoint's first arm.
    """

    targets: tuple[Target, ...]
    unit: Unit | None = None
    shadows: tuple[Target, ...] = ()
    paired: tuple[Target, ...] = ()


class Router:
    """The endpoints' arms.

    Args:
        endpoints: by name.
        backends: by name; started elsewhere.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], backends: Mapping[str, Backend]) -> None:
        self._arms = {name: _Arms(name, endpoint, backends) for name, endpoint in endpoints.items()}
        self._direct = {
            f"{name}:{served}": Plan((target,)) for name, arms in self._arms.items() for served, target in arms.targets
        }

    def plan(self, request: Request, headers: Mapping[str, str]) -> Plan:
        """The targets of a request: of its endpoint, or the very arm if the model is `endpoint:served`.

        Raises:
            schemas.errors.ModelNotFound: there is no such endpoint or arm.
        """
        if (arms := self._arms.get(request.model)) is not None:
            return arms.plan(request, headers)
        if (direct := self._direct.get(request.model)) is not None:
            return direct
        raise ModelNotFound(f"The model '{request.model}' does not exist.", param="model", code="model_not_found")

    def stop(self, stopped: Mapping[str, Collection[str]]) -> None:
        """Assign no unit to these arms, by endpoint, unless an endpoint has no other."""
        for name, arms in self._arms.items():
            arms.stop(stopped.get(name, ()))


class _Arms:
    """One endpoint's."""

    def __init__(self, name: str, endpoint: Endpoint, backends: Mapping[str, Backend]) -> None:
        self._name = name
        self._units = endpoint.experiment.unit
        self._shares = {entity.name: float(entity.traffic_percentage) for entity in endpoint.served_entities}
        self._weights = self._shares
        self.targets = tuple(
            (entity.name, Target(name, entity, backends[entity.backend], entity.model or name, endpoint.task))
            for entity in endpoint.served_entities
        )
        live = [target for _, target in self.targets if target.entity.shadow is None]
        self._shadows = tuple(target for _, target in self.targets if target.entity.shadow is not None)
        self._first = endpoint.served_entities[0].name
        self._paired = tuple(target for _, target in self.targets if target.entity.paired is not None)
        self._orders = {
            target.entity.name: (
                target,
                *(other for other in live if other is not target and endpoint.fallback.enabled),
            )
            for target in live
        }

    def plan(self, request: Request, headers: Mapping[str, str]) -> Plan:
        unit = unit_of(request, headers, self._units)
        arm = assign(self._name, self._weights, unit.value)
        return Plan(self._orders[arm], unit, self._shadows, self._paired if arm == self._first else ())

    def stop(self, names: Collection[str]) -> None:
        weights = {name: 0.0 if name in names else share for name, share in self._shares.items()}
        self._weights = weights if any(weights.values()) else self._shares
