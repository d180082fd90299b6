"""Endpoints and the host, as Databricks' SDKs list and describe them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET

from adapters.base import Call, Reply
from schemas.catalog import Change, ClientFilters, ModelCard, TextRules
from schemas.catalog import ServedEntity as Entity
from schemas.databricks import (
    AiGateway,
    Enabled,
    EndpointConfig,
    EndpointList,
    EndpointState,
    GuardrailParameters,
    Guardrails,
    HostMetadata,
    PendingConfig,
    PiiBehavior,
    RateLimit,
    ServedEntity,
    ServedEntityState,
    ServingEndpoint,
    TrafficConfig,
    TrafficRoute,
)
from schemas.errors import ModelNotFound

_CREATOR = "interlingua"
_LIMITED: dict[str, Literal["endpoint", "user"]] = {"endpoint": "endpoint", "key": "user"}
"""Whose a rate limit is, in the catalog -> here. The users of Databricks are the API keys."""


def list_endpoints(call: Call) -> Reply:
    """The answer of `GET /api/2.0/serving-endpoints`."""
    cards = call.catalog.cards.values()
    return Reply(msgspec.json.encode(EndpointList(tuple(_endpoint(card, detailed=False) for card in cards))))


def get_endpoint(call: Call) -> Reply:
    """The answer of `GET /api/2.0/serving-endpoints/{name}`.

    Raises:
        schemas.errors.ModelNotFound: there is no endpoint of that name.
    """
    return Reply(msgspec.json.encode(_endpoint(find_card(call, call.path["name"]), detailed=True)))


def describe_change(change: Change, call: Call) -> Reply:
    """The answer to a change: the changed endpoint or settings, or an empty object after a deletion."""
    if change.action == "delete":
        return Reply(b"{}")
    if change.action == "configure":
        return Reply(msgspec.json.encode(_ai_gateway(find_card(call, change.endpoint))))
    return Reply(msgspec.json.encode(_endpoint(find_card(call, change.endpoint), detailed=True)))


def find_card(call: Call, name: str) -> ModelCard:
    """The catalog's card of an endpoint.

    Raises:
        schemas.errors.ModelNotFound: there is no endpoint of that name.
    """
    card = call.catalog.cards.get(name)
    if card is None:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
    return card


def host_metadata() -> Reply:
    """The answer of `GET /.well-known/databricks-config`, the SDK's first request."""
    return Reply(msgspec.json.encode(HostMetadata()))


def _endpoint(card: ModelCard, *, detailed: bool) -> ServingEndpoint:
    return ServingEndpoint(
        name=card.name,
        creator=_CREATOR,
        # The card has seconds, the API milliseconds.
        creation_timestamp=card.created * 1000,
        last_updated_timestamp=(card.changed or card.created) * 1000,
        state=EndpointState("READY" if card.ready else "NOT_READY", _update(card)),
        config=EndpointConfig(
            tuple(_entity(entity, detailed=detailed) for entity in card.served_entities),
            _traffic(card.served_entities) if detailed else UNSET,
            card.version if detailed else UNSET,
        ),
        pending_config=_pending(card) if detailed and card.pending else UNSET,
        id=card.name,
        task=f"llm/v1/{card.task}",
        permission_level="CAN_QUERY" if detailed else UNSET,
        # Only if a client has configured it: the SDK shows None otherwise, as for an endpoint without an AI gateway.
        ai_gateway=_ai_gateway(card) if _has_ai_gateway(card) else UNSET,
        route_optimized=False if detailed else UNSET,
    )


def _has_ai_gateway(card: ModelCard) -> bool:
    return card.usage_tracking is not None or bool(card.rate_limits) or card.filters != ClientFilters()


def _ai_gateway(card: ModelCard) -> AiGateway:
    limits = tuple(
        RateLimit("minute", _LIMITED[limit.per], limit.requests or UNSET, limit.tokens or UNSET)
        for limit in card.rate_limits
    )
    guardrails = UNSET if card.filters == ClientFilters() else _guardrails(card.filters)
    # What no client has configured is tracked: a client that writes back what it has read must change nothing.
    return AiGateway(Enabled(card.usage_tracking is not False), Enabled(card.fallback), limits, guardrails)


def _guardrails(filters: ClientFilters) -> Guardrails:
    return Guardrails(_parameters(filters.request), _parameters(filters.answer))


def _parameters(rules: TextRules) -> GuardrailParameters | None:
    if rules == TextRules():
        return None
    pii = PiiBehavior("MASK" if rules.pii == "mask" else "BLOCK") if rules.pii is not None else None
    return GuardrailParameters(pii, rules.keywords or None)


def _entity(entity: Entity, *, detailed: bool) -> ServedEntity:
    # Entities have no versions here; the field is required.
    return ServedEntity(entity.name, entity.entity_name, "1", _deployment(entity) if detailed else UNSET)


def _deployment(entity: Entity) -> ServedEntityState:
    match entity.state:
        case "ready":
            # A ready entity with a detail: others answer in its place.
            return ServedEntityState("DEPLOYMENT_RECOVERING" if entity.detail else "DEPLOYMENT_READY", entity.detail)
        case "loading":
            return ServedEntityState("DEPLOYMENT_CREATING", entity.detail)
        case "failed":
            return ServedEntityState("DEPLOYMENT_FAILED", entity.detail)


def _update(card: ModelCard) -> Literal["NOT_UPDATING", "IN_PROGRESS", "UPDATE_FAILED"]:
    if card.pending:
        return "IN_PROGRESS"
    return "UPDATE_FAILED" if card.update_failed else "NOT_UPDATING"


def _pending(card: ModelCard) -> PendingConfig:
    entities = tuple(_entity(entity, detailed=True) for entity in card.pending)
    # The version that the configuration will have once the update is in force.
    return PendingConfig(entities, _traffic(card.pending), card.version + 1)


def _traffic(entities: tuple[Entity, ...]) -> TrafficConfig:
    return TrafficConfig(tuple(map(_route, entities)))


def _route(entity: Entity) -> TrafficRoute:
    # The name twice: `served_model_name` is the deprecated field.
    return TrafficRoute(entity.name, entity.name, entity.traffic_percentage)
