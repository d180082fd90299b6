"""What a key may see in the console: the session, its endpoints and the rights of its key."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

import gateway
from gateway.access.keys import given_key
from gateway.access.keys_file import Key
from gateway.config import Price, Role, ServedEntity
from gateway.service import Service
from schemas.catalog import ModelCard, Task
from schemas.catalog import ServedEntity as ListedEntity


class Arm(msgspec.Struct, frozen=True):
    """A served entity as the console shows it.

    Attributes:
        name: sent as `served-model-name`.
        model: of its backend, as listings call it.
        backend: the section of the configuration.
        traffic_percentage: its share.
        state: of its backend.
        detail: why the backend failed, or why others answer in its place.
        kind: "shadow" gets copies only; "paired" answers again what the first has answered; else "arm".
        price: of its tokens; null: its answers cost nothing.
    """

    name: str
    model: str
    backend: str
    traffic_percentage: int
    state: str
    detail: str
    kind: str
    price: Price | None


class EndpointView(msgspec.Struct, frozen=True):
    """An endpoint as the console shows it. `arms` are in the order of the configuration, the control first."""

    name: str
    task: Task
    ready: bool
    images: bool
    context_length: int | None
    lora_adapters: tuple[str, ...]
    has_experiment: bool
    version: int
    arms: tuple[Arm, ...]
    pending: bool


class Session(msgspec.Struct, frozen=True):
    """What is served, and what the key may do.

    Attributes:
        version: the gateway's.
        key: its name; null without one.
        roles: those of the key; of somebody without a key those that need none.
        needs_key: whether requests need a key.
        can_change: whether the key may change endpoints.
        has_admins: whether any key may.
        keeps_usage: whether records of requests are kept.
        keeps_texts: whether they have the texts of requests and answers.
        has_keys_file: whether keys can be made and revoked here.
        is_changeable: whether endpoints can be changed while they are served.
        default: the endpoint of protocols that name none.
        endpoints: those that the key may ask.
    """

    version: str
    key: str | None
    roles: tuple[Role, ...]
    needs_key: bool
    can_change: bool
    has_admins: bool
    keeps_usage: bool
    keeps_texts: bool
    has_keys_file: bool
    is_changeable: bool
    default: str | None
    endpoints: tuple[EndpointView, ...]


def key_of(service: Service, headers: Mapping[str, str]) -> Key | None:
    """The key of a request; None if it has none and needs none.

    Raises:
        schemas.errors.Unauthorized: it needs one and has none, or its key is unknown or has expired.
    """
    keys = service.keys
    # A wrong key is refused also where none is needed: somebody has typed it to log in.
    return keys.identify(headers) if keys.required or given_key(headers) else None


def session(service: Service, key: Key | None) -> Session:
    """The session of a key."""
    service.refresh()
    catalog = service.catalog if key is None else service.catalog.narrowed(key.may_ask)
    roles: tuple[Role, ...] = key.roles if key is not None else ("ask", "metrics")
    server = service.config.server
    return Session(
        version=gateway.__version__,
        key=key.name if key is not None else None,
        roles=roles,
        needs_key=service.keys.required,
        can_change=key is not None and key.may("admin"),
        has_admins=service.keys.has_admins,
        keeps_usage=service.usage is not None,
        keeps_texts=service.usage is not None and service.usage.settings.text,
        has_keys_file=server.keys_file is not None,
        is_changeable=service.config.is_changeable,
        default=catalog.default,
        endpoints=tuple(_endpoint(service, card) for card in catalog.cards.values()),
    )


def _endpoint(service: Service, card: ModelCard) -> EndpointView:
    deployed = service.deployed(card.name)
    entities = {entity.name: entity for entity in deployed.served_entities}
    return EndpointView(
        card.name,
        card.task,
        card.ready,
        card.images,
        card.context_length,
        card.lora_adapters,
        deployed.has_experiment,
        card.version,
        tuple(_arm(entity, entities[entity.name]) for entity in card.served_entities if entity.name in entities),
        bool(card.pending),
    )


def _arm(listed: ListedEntity, entity: ServedEntity) -> Arm:
    kind = "shadow" if entity.shadow is not None else "paired" if entity.paired is not None else "arm"
    return Arm(
        listed.name,
        listed.entity_name,
        entity.backend,
        listed.traffic_percentage,
        listed.state,
        listed.detail,
        kind,
        entity.price,
    )
