"""What Databricks' SDKs ask of a workspace beside answers: its endpoints, and what kind of host it is."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from adapters.base import Call, Reply
from schemas.databricks import (
    EndpointConfig,
    EndpointList,
    EndpointState,
    HostMetadata,
    ServedEntity,
    ServedEntityState,
    ServingEndpoint,
    TrafficConfig,
    TrafficRoute,
)
from schemas.errors import ModelNotFound
from schemas.ir import ModelCard
from schemas.ir import ServedEntity as Entity

_CREATOR = "interlingua"


def list_endpoints(call: Call) -> Reply:
    """The answer of `/api/2.0/serving-endpoints`."""
    cards = call.catalog.cards.values()
    return Reply(msgspec.json.encode(EndpointList(tuple(_endpoint(card, detailed=False) for card in cards))))


def get_endpoint(call: Call) -> Reply:
    """The answer of `/api/2.0/serving-endpoints/{name}`.

    Raises:
        schemas.errors.ModelNotFound: no endpoint of that name.
    """
    name = call.path["name"]
    card = call.catalog.cards.get(name)
    if card is None:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
    return Reply(msgspec.json.encode(_endpoint(card, detailed=True)))


def host_metadata() -> Reply:
    """The answer of `/.well-known/databricks-config`, the first thing the SDK asks."""
    return Reply(msgspec.json.encode(HostMetadata()))


def _endpoint(card: ModelCard, *, detailed: bool) -> ServingEndpoint:
    created = card.created * 1000
    return ServingEndpoint(
        name=card.name,
        creator=_CREATOR,
        creation_timestamp=created,
        last_updated_timestamp=created,
        state=EndpointState("READY" if card.ready else "NOT_READY"),
        config=EndpointConfig(
            tuple(_entity(entity, detailed=detailed) for entity in card.served_entities),
            TrafficConfig(tuple(map(_route, card.served_entities))) if detailed else UNSET,
            1 if detailed else UNSET,
        ),
        id=card.name,
        task=f"llm/v1/{card.task}",
        permission_level="CAN_QUERY" if detailed else UNSET,
        route_optimized=False if detailed else UNSET,
    )


def _entity(entity: Entity, *, detailed: bool) -> ServedEntity:
    deployment = ServedEntityState("DEPLOYMENT_READY" if entity.ready else "DEPLOYMENT_CREATING")
    return ServedEntity(entity.name, entity.entity_name, "1", deployment if detailed else UNSET)


def _route(entity: Entity) -> TrafficRoute:
    return TrafficRoute(entity.name, entity.name, entity.traffic_percentage)
