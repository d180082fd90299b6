"""Requests that create, change or delete an endpoint. Fields that mean nothing here are ignored."""

from __future__ import annotations

import re
from typing import Literal

from adapters.base import Call, Route
from adapters.body import read
from adapters.databricks.describe import find_card
from schemas import databricks as wire
from schemas.catalog import Change, ClientFilters, RateLimit, ServedEntity, TextRules
from schemas.databricks import AiGatewayRequest, ConfigRequest, CreateRequest, ServedEntityInput, TrafficConfigInput
from schemas.errors import InvalidRequest

_ENTITIES = "config.served_entities"
_ROUTES = "config.traffic_config.routes"


def read_change(route: Route, body: bytes, call: Call) -> Change:
    """The change that a request asks for.

    Raises:
        schemas.errors.RequestError: the body cannot be read, or its entities and shares do not fit.
        schemas.errors.ModelNotFound: the body has shares alone, and there is no such endpoint.
    """
    if route.name == "delete":
        return Change(action="delete", endpoint=call.path["name"])
    if route.name == "create":
        asked, unknown = read(body, CreateRequest)
        entities = _entities(asked.config, ())
        return Change(action="create", endpoint=asked.name, served_entities=entities, unknown=unknown.paths)
    if route.name in ("ai_gateway", "rate_limits"):
        return _settings(body, call.path["name"])
    name = call.path["name"]
    config, unknown = read(body, ConfigRequest)
    # Shares alone keep the endpoint's present entities. Only such a change needs the card.
    current = find_card(call, name).served_entities if config.served_entities is None else ()
    entities = _entities(config, current)
    return Change(action="update", endpoint=name, served_entities=entities, unknown=unknown.paths)


def _settings(body: bytes, name: str) -> Change:
    """The settings of an endpoint's AI gateway. What would have no effect here is refused by name."""
    asked, unknown = read(body, AiGatewayRequest)
    table = asked.inference_table_config
    if table and table.get("enabled") is not False:
        field = "inference_table_config"
        raise InvalidRequest(f"Requests and answers are not recorded here, so '{field}' is refused.", param=field)
    tracking, fallback = asked.usage_tracking_config, asked.fallback_config
    return Change(
        action="configure",
        endpoint=name,
        usage_tracking=tracking.enabled if tracking is not None else None,
        fallback=fallback.enabled if fallback is not None else None,
        rate_limits=None if asked.rate_limits is None else tuple(map(_rate_limit, asked.rate_limits)),
        filters=None if asked.guardrails is None else _filters(asked.guardrails),
        unknown=unknown.paths,
    )


def _filters(asked: wire.Guardrails) -> ClientFilters:
    """The filters for guardrails. Those that need a model to judge texts are refused by name."""
    made = {}
    for side, given in (("input", asked.input), ("output", asked.output)):
        found = given or wire.GuardrailParameters()
        for field, wanted in (("safety", found.safety), ("valid_topics", found.valid_topics)):
            if wanted:
                name = f"guardrails.{side}.{field}"
                raise InvalidRequest(f"No model judges texts here, so '{name}' is refused.", param=name)
        made[side] = TextRules(
            _PII[found.pii.behavior] if found.pii is not None else None, found.invalid_keywords or ()
        )
    return ClientFilters(made["input"], made["output"])


_PII: dict[str, Literal["mask", "block"] | None] = {"NONE": None, "MASK": "mask", "BLOCK": "block"}


def _rate_limit(asked: wire.RateLimit) -> RateLimit:
    """A rate limit. Users of Databricks are here the API keys."""
    if asked.key not in ("endpoint", "user"):
        raise InvalidRequest(f"There are no 'rate_limits' of a {asked.key} here.", param="rate_limits")
    requests, tokens = asked.calls or None, asked.tokens or None
    if requests is None and tokens is None:
        raise InvalidRequest("Each of the 'rate_limits' needs 'calls' or 'tokens'.", param="rate_limits")
    return RateLimit("endpoint" if asked.key == "endpoint" else "key", requests, tokens)


def _entities(config: ConfigRequest, current: tuple[ServedEntity, ...]) -> tuple[ServedEntity, ...]:
    """The served entities with their shares: those of the body, or else the endpoint's current ones."""
    given = [_names(entity) for entity in config.served_entities or ()]
    # A dict drops duplicate names, which the next line detects.
    entities = dict(given) or {entity.name: entity.entity_name for entity in current}
    if len(given) > len(entities):
        raise InvalidRequest("Two served entities have the same name.", param=_ENTITIES)
    shares = _shares(config.traffic_config, tuple(entities))
    # An entity that no route names gets no traffic. The gateway checks that the shares add up to 100.
    return tuple(ServedEntity(name, entity, shares.get(name, 0)) for name, entity in entities.items())


def _names(entity: ServedEntityInput) -> tuple[str, str]:
    """The name of a served entity and of what it serves. Like the platform, derives the former from the latter."""
    if entity.entity_name is None:
        why = " An external model is configured as a backend." if entity.external_model is not None else ""
        raise InvalidRequest(
            f"A served entity needs an 'entity_name', 'backend/model' or a backend's name.{why}", param=_ENTITIES
        )
    # The platform's rule: entity name and version, with "-" for characters that a name cannot have.
    derived = re.sub(r"[^A-Za-z0-9_-]", "-", f"{entity.entity_name}-{entity.entity_version or 1}")
    return entity.name or derived, entity.entity_name


def _shares(traffic: TrafficConfigInput | None, names: tuple[str, ...]) -> dict[str, int]:
    """Name of a served entity -> percentage of the traffic. A single entity gets all of it by default."""
    if traffic is None:
        if len(names) == 1:
            return {names[0]: 100}
        raise InvalidRequest("Several served entities need a 'traffic_config'.", param="config.traffic_config")
    shares: dict[str, int] = {}
    for route in traffic.routes:
        # `served_model_name` is the deprecated name of the same field; older SDKs send it alone.
        name = route.served_entity_name or route.served_model_name or ""
        if name not in names:
            raise InvalidRequest(f"A route names '{name}', which is no served entity.", param=_ROUTES)
        if name in shares:
            raise InvalidRequest(f"Two routes name '{name}'.", param=_ROUTES)
        shares[name] = route.traffic_percentage
    return shares
