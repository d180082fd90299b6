"""The catalog: cards of endpoints, from deployments and the health of backends."""

from __future__ import annotations

from msgspec.structs import replace

from backends.base import Feature, Health
from backends.scripted import ScriptedBackend
from gateway.config import Endpoint, ServedEntity, Shadow
from gateway.deployment.catalog import catalog
from gateway.deployment.deployments import Deployment
from schemas.catalog import Catalog


def entity(name: str, backend: str = "s", model: str | None = None, share: int = 100) -> ServedEntity:
    return ServedEntity(name=name, backend=backend, model=model, traffic_percentage=share)


def backend(name: str, **capabilities: object) -> ScriptedBackend:
    made = ScriptedBackend(name)
    made.capabilities = replace(made.capabilities, **capabilities)
    return made


def build(deployments: dict[str, Deployment], **health: Health) -> Catalog:
    backends = {
        "s": backend("s", lora_adapters=("lora",), context_length=100, features=frozenset()),
        "t": backend("t", features=frozenset({Feature.IMAGES}), generates=False),
    }
    known = {"s": Health("ready"), "t": Health("ready")} | health
    return catalog(deployments, backends, known, created=7, max_concurrent_requests=9)


def one(*entities: ServedEntity) -> Deployment:
    return Deployment(endpoint=Endpoint(served_entities=entities))


def test_the_first_endpoint_is_the_default() -> None:
    found = build({"b": one(entity("x")), "a": one(entity("x"))})
    assert (list(found.cards), found.default, found.max_concurrent_requests) == (["b", "a"], "b", 9)
    assert build({}).default is None


def test_a_card_shows_the_first_served_entitys_capabilities() -> None:
    deployment = replace(one(entity("x", model="m")), since=3 * 10**9 + 5, version=4)
    card = build({"a": deployment}).cards["a"]
    assert (card.created, card.changed, card.version, card.context_length, card.task) == (7, 3, 4, 100, "chat")
    assert [(each.name, each.entity_name, each.state) for each in card.served_entities] == [("x", "s/m", "ready")]
    assert build({"a": one(entity("x", "t"))}).cards["a"].task == "embeddings"


def test_an_endpoint_is_ready_when_every_served_entity_but_shadows_is() -> None:
    shadow = replace(entity("y", "t", share=0), shadow=Shadow())
    loading = Health("loading", "1 of 2")
    deployments = {"plain": one(entity("x"), entity("y", "t", share=0)), "shadowed": one(entity("x"), shadow)}
    cards = build(deployments, t=loading).cards
    assert (cards["plain"].ready, cards["shadowed"].ready) == (False, True)
    assert (cards["plain"].served_entities[1].state, cards["plain"].served_entities[1].detail) == ("loading", "1 of 2")


def test_an_endpoint_takes_images_if_all_its_backends_do() -> None:
    cards = build({"a": one(entity("x", "t")), "b": one(entity("x", "t"), entity("y", "s", share=0))}).cards
    assert (cards["a"].images, cards["b"].images) == (True, False)


def test_the_parent_of_a_lora_adapter_is_the_first_endpoint_of_its_model() -> None:
    cards = build(
        {
            "lora": one(entity("x", model="lora")),
            "base": one(entity("x")),
            "again": one(entity("x", model="base")),
            "mixed": one(entity("x", model="lora", share=50), entity("y", share=50)),
        }
    ).cards
    assert {name: card.parent for name, card in cards.items()} == {
        "lora": "base",
        "base": None,
        "again": None,
        "mixed": None,
    }


def test_an_update_is_shown_while_it_is_pending_and_when_it_failed() -> None:
    pending = replace(one(entity("x")), pending=Endpoint(served_entities=(entity("y"),)))
    cards = build({"a": pending, "b": replace(one(entity("x")), failed="why")}).cards
    assert ([each.name for each in cards["a"].pending], cards["a"].update_failed) == (["y"], False)
    assert (cards["b"].pending, cards["b"].update_failed) == ((), True)


def test_lora_adapters_that_requests_may_name_have_the_first_endpoint_of_the_base_model_alone() -> None:
    deployments = {"mixed": one(entity("x", share=50), entity("y", "t", share=50)), "base": one(entity("x"))}
    found = build(deployments)
    assert found.lora_models == {"lora": "base"}
    assert found.narrowed(lambda name: name == "mixed").lora_models == {}
    assert build({"base": one(entity("x", model="m"))}).lora_models == {}, "its model has another name"
    assert build(deployments | {"lora": one(entity("x", "t"))}).lora_models == {}, "an endpoint has the name"
    named = Deployment(endpoint=Endpoint(served_entities=(entity("x", "t"),), aliases=("lo*",)))
    assert build(deployments | {"other": named}).lora_models == {}, "an alias has the name"
