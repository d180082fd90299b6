"""The catalog for listings: a card for every endpoint, from its deployment and the health of its backends. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

import gateway
from backends.base import Backend, Capabilities, Feature, Health
from gateway.config import Endpoint, aliases_of
from gateway.deployment.deployments import Deployment, Deployments, entity_name
from schemas.catalog import Catalog, ModelCard, RateLimit, ServedEntity, Task


def catalog(
    deployments: Deployments,
    backends: Mapping[str, Backend],
    health: Mapping[str, Health],
    created: int,
    max_concurrent_requests: int,
    default: str | None = None,
) -> Catalog:
    """Build the catalog.

    Args:
        deployments: by endpoint.
        backends: by name.
        health: of the backends, by name.
        created: Unix time in seconds.
        max_concurrent_requests: the limit of a worker.
        default: the endpoint that answers requests which name no model; None: the first.
    """
    models = {name: _model(deployment.serving, backends) for name, deployment in deployments.items()}
    # Reversed, so that of several endpoints with the same base model the first one is named as the parent.
    bases = {backend: name for name, (backend, lora) in reversed(models.items()) if backend and not lora}
    cards = {name: _card(name, deployment, backends, health, created) for name, deployment in deployments.items()}
    for name, (backend, lora) in models.items():
        if lora and backend in bases:
            cards[name] = replace(cards[name], parent=bases[backend])
    aliases = aliases_of({name: deployment.serving for name, deployment in deployments.items()})
    loras = {lora: name for lora, name in _lora_models(deployments, backends).items() if lora not in cards}
    loras = {lora: name for lora, name in loras.items() if aliases.endpoint(lora) is None}
    first = next(iter(cards), None)
    return Catalog(cards, default or first, gateway.__version__, max_concurrent_requests, aliases, loras)


def _lora_models(deployments: Deployments, backends: Mapping[str, Backend]) -> dict[str, str]:
    """The LoRA adapters that a request may name, each with the first endpoint of its base model alone, as routed."""
    found: dict[str, str] = {}
    for name, deployment in deployments.items():
        arms = deployment.serving.served_entities
        if len(arms) == 1 and arms[0].model is None:
            for lora in backends[arms[0].backend].capabilities.lora_adapters:
                found.setdefault(lora, name)
    return found


def _card(
    name: str, deployment: Deployment, backends: Mapping[str, Backend], health: Mapping[str, Health], created: int
) -> ModelCard:
    endpoint = deployment.serving
    used = [backends[arm.backend] for arm in endpoint.served_entities]
    served_entities = _served_entities(endpoint, health)
    can = used[0].capabilities  # the first arm speaks for the endpoint
    lengths = can.context_lengths
    return ModelCard(
        name=name,
        task=(endpoint.task or endpoint.served_entities[0].task or "chat") if can.generates else _textless(can),
        declared_task=endpoint.task is not None,
        created=created,
        changed=deployment.since // 10**9,  # nanoseconds to seconds
        version=deployment.version,
        ready=all(health[arm.backend].status == "ready" for arm in endpoint.served_entities if arm.shadow is None),
        served_entities=served_entities,
        pending=_served_entities(deployment.pending, health) if deployment.pending is not None else (),
        update_failed=bool(deployment.failed),
        context_length=can.context_length or lengths.get(endpoint.served_entities[0].model or name) or lengths.get(""),
        dtype=can.dtype,
        device=can.device,
        vocab_size=can.vocab_size,
        # Every arm must take images: which one answers is decided after the client has read the listing.
        images=all(Feature.IMAGES in backend.capabilities.features for backend in used),
        lora_adapters=can.lora_adapters,
        tensors=endpoint.tensors,
        tokenizer=can.tokenizer_info,
        usage_tracking=endpoint.usage_tracking,
        fallback=endpoint.fallback.enabled,
        rate_limits=tuple(
            RateLimit(limit.per, limit.requests, limit.tokens)
            for limit in endpoint.limits
            if limit.is_rate and limit.per != "user"
        ),
        filters=endpoint.client_filters,
    )


def _textless(can: Capabilities) -> Task:
    """The task of a model that generates no text."""
    if can.embeddings or can.scoring.isdisjoint({"rerank", "classify"}):
        return "embeddings"
    return "rerank" if "rerank" in can.scoring else "classify"


def _model(endpoint: Endpoint, backends: Mapping[str, Backend]) -> tuple[str, bool]:
    """Return the common backend of all arms and whether they are LoRA adapters of it; ("", False) if they differ."""
    found = {
        (arm.backend, arm.model in backends[arm.backend].capabilities.lora_adapters) for arm in endpoint.served_entities
    }
    return found.pop() if len(found) == 1 else ("", False)


def _served_entities(endpoint: Endpoint, health: Mapping[str, Health]) -> tuple[ServedEntity, ...]:
    return tuple(
        ServedEntity(arm.name, entity_name(arm), arm.traffic_percentage, state.status, state.detail)
        for arm in endpoint.served_entities
        for state in (health[arm.backend],)
    )
