"""What Databricks' clients ask to be changed. Of the platform's fields those are read that mean something here."""

from __future__ import annotations

import re

from adapters.base import Call, Route
from adapters.body import read
from adapters.databricks.describe import find_card
from schemas.catalog import Change, ServedEntity
from schemas.databricks import ConfigRequest, CreateRequest, ServedEntityInput, TrafficConfigInput
from schemas.errors import InvalidRequest

_ENTITIES = "config.served_entities"
_ROUTES = "config.traffic_config.routes"


def read_change(route: Route, body: bytes, call: Call) -> Change:
    """The body of a route that changes something.

    Raises:
        schemas.errors.RequestError: it is not one we can read.
        schemas.errors.ModelNotFound: only shares are given, and there is no such endpoint.
    """
    if route.name == "delete":
        return Change(action="delete", endpoint=call.path["name"])
    if route.name == "create":
        asked, _ = read(body, CreateRequest)
        return Change(action="create", endpoint=asked.name, served_entities=_arms(asked.config, ()))
    name = call.path["name"]
    config, _ = read(body, ConfigRequest)
    present = find_card(call, name).served_entities if config.served_entities is None else ()
    return Change(action="update", endpoint=name, served_entities=_arms(config, present))


def _arms(config: ConfigRequest, present: tuple[ServedEntity, ...]) -> tuple[ServedEntity, ...]:
    """The arms with their shares: those given, else those that are present."""
    given = [_named(entity) for entity in config.served_entities or ()]
    entities = dict(given) or {arm.name: arm.entity_name for arm in present}
    if len(given) > len(entities):
        raise InvalidRequest("Two served entities have the same name.", param=_ENTITIES)
    shares = _shares(config.traffic_config, tuple(entities))
    return tuple(ServedEntity(name, entity, shares.get(name, 0)) for name, entity in entities.items())


def _named(entity: ServedEntityInput) -> tuple[str, str]:
    """An arm's name and its entity's; the platform makes a name of the latter if none is given."""
    if entity.entity_name is None:
        why = " An external model is configured as a backend." if entity.external_model is not None else ""
        raise InvalidRequest(
            f"A served entity needs an 'entity_name', 'backend/model' or a backend's name.{why}", param=_ENTITIES
        )
    made = re.sub(r"[^A-Za-z0-9_-]", "-", f"{entity.entity_name}-{entity.entity_version or 1}")
    return entity.name or made, entity.entity_name


def _shares(traffic: TrafficConfigInput | None, names: tuple[str, ...]) -> dict[str, int]:
    if traffic is None:
        if len(names) == 1:
            return {names[0]: 100}
        raise InvalidRequest("Several served entities need a 'traffic_config'.", param="config.traffic_config")
    shares: dict[str, int] = {}
    for route in traffic.routes:
        name = route.served_entity_name or route.served_model_name or ""
        if name not in names:
            raise InvalidRequest(f"A route names '{name}', which is no served entity.", param=_ROUTES)
        if name in shares:
            raise InvalidRequest(f"Two routes name '{name}'.", param=_ROUTES)
        shares[name] = route.traffic_percentage
    return shares
