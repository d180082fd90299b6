"""Which backend answers a request: an endpoint's served entity, by its share of the traffic.

The share is taken by a hash of the request's id, so that it needs no state and no random source.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from backends.base import Backend
from gateway.config import Endpoint, ServedEntity
from schemas.errors import ModelNotFound
from schemas.ir import Request


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where a request goes. `model` is the name that the backend knows."""

    endpoint: str
    entity: ServedEntity
    backend: Backend
    model: str


class Router:
    """The endpoints' arms.

    Args:
        endpoints: by name.
        backends: by name; started elsewhere.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], backends: Mapping[str, Backend]) -> None:
        self._arms = {
            name: [
                (entity.traffic_percentage, Target(name, entity, backends[entity.backend], entity.model or name))
                for entity in endpoint.served_entities
            ]
            for name, endpoint in endpoints.items()
        }
        self._direct = {
            f"{name}:{target.entity.name}": target for name, arms in self._arms.items() for _, target in arms
        }

    def pick(self, request: Request) -> Target:
        """The target of a request: of its endpoint, or the very arm if the model is `endpoint:served`.

        Raises:
            schemas.errors.ModelNotFound: there is no such endpoint or arm.
        """
        arms = self._arms.get(request.model)
        if arms is None:
            if (direct := self._direct.get(request.model)) is not None:
                return direct
            raise ModelNotFound(f"The model '{request.model}' does not exist.", param="model", code="model_not_found")
        if len(arms) == 1:
            return arms[0][1]
        point = zlib.crc32(request.id.encode()) % 100
        for share, target in arms:
            point -= share
            if point < 0:
                return target
        raise AssertionError("shares add up to 100")
