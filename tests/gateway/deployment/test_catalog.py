"""What listings say of an endpoint, from its deployment and its backends."""

from __future__ import annotations

import msgspec

from backends.base import Backend, Capabilities, Feature, Health
from backends.scripted import ScriptedBackend
from gateway.config import Endpoint, ServedEntity, Shadow
from gateway.deployment.catalog import catalog
from gateway.deployment.deployments import Deployment
from schemas.catalog import Catalog

READY, LOADING = Health("ready"), Health("loading", "weights 40%")


def backend(name: str, **capabilities: object) -> ScriptedBackend:
    made = ScriptedBackend(name)
    made.capabilities = Capabilities(**capabilities)  # type: ignore[arg-type]
    return made


def arm(backend: str, model: str | None = None, name: str = "", share: int = 100, **fields: object) -> ServedEntity:
    return ServedEntity(name=name or backend, backend=backend, model=model, traffic_percentage=share, **fields)  # type: ignore[arg-type]


def listed(backends: list[ScriptedBackend], health: dict[str, Health] | None = None, **found: Deployment) -> Catalog:
    by_name: dict[str, Backend] = {each.name: each for each in backends}
    states = dict.fromkeys(by_name, READY) | (health or {})
    return catalog(found, by_name, states, created=7, max_concurrent_requests=9)


def deployed(*arms: ServedEntity, **fields: object) -> Deployment:
    return Deployment(endpoint=Endpoint(served_entities=arms), **fields)  # type: ignore[arg-type]


def test_a_card_lists_the_first_backend_and_every_arm() -> None:
    first = backend("s", context_length=512, dtype="int8", device="cpu", vocab_size=99)
    found = listed(
        [first, backend("t")], chat=deployed(arm("s", "m", share=60), arm("t", share=40), since=5 * 10**9, version=3)
    )
    card = found.cards["chat"]
    assert (card.context_length, card.dtype, card.device, card.vocab_size) == (512, "int8", "cpu", 99)
    assert (card.created, card.changed, card.version) == (7, 5, 3)
    assert [(each.name, each.entity_name, each.traffic_percentage) for each in card.served_entities] == [
        ("s", "s/m", 60),
        ("t", "t", 40),
    ]
    assert (found.default, found.max_concurrent_requests) == ("chat", 9)


def test_an_endpoint_is_ready_when_all_its_arms_but_shadows_are() -> None:
    arms = arm("s"), arm("t", share=0, shadow=Shadow())
    both = [backend("s"), backend("t")]
    assert listed(both, {"t": LOADING}, chat=deployed(*arms)).cards["chat"].ready
    loading = listed(both, {"s": LOADING}, chat=deployed(*arms)).cards["chat"]
    assert not loading.ready
    assert (loading.served_entities[0].state, loading.served_entities[0].detail) == ("loading", "weights 40%")


def test_images_are_listed_only_if_every_arm_takes_them() -> None:
    sees, blind = backend("s", features=frozenset({Feature.IMAGES})), backend("t")
    assert listed([sees], chat=deployed(arm("s"))).cards["chat"].images
    assert not listed([sees, blind], chat=deployed(arm("s", share=50), arm("t", share=50))).cards["chat"].images


def test_a_model_that_makes_only_vectors_is_for_embeddings() -> None:
    assert listed([backend("s", generates=False)], chat=deployed(arm("s"))).cards["chat"].task == "embeddings"


def test_an_update_under_way_is_pending_and_a_failed_one_is_marked() -> None:
    waiting = msgspec.structs.replace(
        deployed(arm("s")), pending=Endpoint(served_entities=(arm("t"),)), failed="It failed."
    )
    card = listed([backend("s"), backend("t")], {"t": LOADING}, chat=waiting).cards["chat"]
    assert [each.name for each in card.served_entities] == ["s"]
    assert [(each.name, each.state) for each in card.pending] == [("t", "loading")]
    assert card.update_failed


def test_an_endpoint_of_a_lora_adapter_has_its_model_for_a_parent() -> None:
    found = listed(
        [backend("s", adapters=("polite",))], base=deployed(arm("s")), polite=deployed(arm("s", "polite", "p"))
    )
    assert (found.cards["base"].parent, found.cards["polite"].parent) == (None, "base")


def test_nothing_deployed_is_an_empty_catalog() -> None:
    assert (listed([]).cards, listed([]).default) == ({}, None)
