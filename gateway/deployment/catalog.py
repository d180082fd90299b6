"""What listings tell: every endpoint's card, from what is deployed and how its backends are. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

import gateway
from backends.base import Backend, Feature, Health
from gateway.config import Endpoint
from gateway.deployment.deployments import Deployment, Deployments, entity_name
from schemas.catalog import Catalog, ModelCard, ServedEntity


def catalog(
    deployments: Deployments,
    backends: Mapping[str, Backend],
    health: Mapping[str, Health],
    created: int,
    max_concurrent_requests: int,
) -> Catalog:
    """The catalog; `created` is a Unix time in seconds."""
    models = {name: _model(deployed.serving, backends) for name, deployed in deployments.items()}
    bases = {backend: name for name, (backend, is_lora) in reversed(models.items()) if backend and not is_lora}
    cards = {name: _card(name, deployed, backends, health, created) for name, deployed in deployments.items()}
    for name, (backend, is_lora) in models.items():
        if is_lora and backend in bases:
            cards[name] = replace(cards[name], parent=bases[backend])
    return Catalog(cards, next(iter(cards), None), gateway.__version__, max_concurrent_requests)


def _card(
    name: str, deployed: Deployment, backends: Mapping[str, Backend], health: Mapping[str, Health], created: int
) -> ModelCard:
    endpoint = deployed.serving
    behind = [backends[arm.backend] for arm in endpoint.served_entities]
    arms = _arms(endpoint, health)
    can = behind[0].capabilities
    return ModelCard(
        name=name,
        task=endpoint.task if can.generates else "embeddings",
        created=created,
        changed=deployed.since // 10**9,
        version=deployed.version,
        ready=all(health[arm.backend].status == "ready" for arm in endpoint.served_entities if arm.shadow is None),
        served_entities=arms,
        pending=_arms(deployed.pending, health) if deployed.pending is not None else (),
        update_failed=bool(deployed.failed),
        context_length=can.context_length,
        dtype=can.dtype,
        device=can.device,
        vocab_size=can.vocab_size,
        images=all(Feature.IMAGES in backend.capabilities.features for backend in behind),
        lora_adapters=can.lora_adapters,
        tensors=endpoint.tensors,
    )


def _model(endpoint: Endpoint, backends: Mapping[str, Backend]) -> tuple[str, bool]:
    """The backend that all arms are of, and whether they are LoRA adapters there; "" if not all are the same."""
    found = {
        (arm.backend, arm.model in backends[arm.backend].capabilities.lora_adapters) for arm in endpoint.served_entities
    }
    return found.pop() if len(found) == 1 else ("", False)


def _arms(endpoint: Endpoint, health: Mapping[str, Health]) -> tuple[ServedEntity, ...]:
    return tuple(
        ServedEntity(arm.name, entity_name(arm), arm.traffic_percentage, state.status, state.detail)
        for arm in endpoint.served_entities
        for state in (health[arm.backend],)
    )
