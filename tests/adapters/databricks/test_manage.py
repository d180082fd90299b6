"""Changes of endpoints decoded, and the description of an endpoint that is being changed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from adapters.base import Call
from schemas.catalog import Catalog, Change, ModelCard, ServedEntity
from schemas.errors import InvalidRequest, ModelNotFound
from tests.adapters.databricks.scenes import GOLDEN, ROUTES, server

ARMS = (ServedEntity("a", "s/echo", 90), ServedEntity("b", "t", 10))
CARD = ModelCard(name="chat", created=1_690_000_000, served_entities=ARMS)
ENTITIES = [{"name": "a", "entity_name": "s/echo"}, {"name": "b", "entity_name": "t"}]


def change(name: str, body: Any) -> Change:
    call = Call("r1", Catalog({"chat": CARD}), {} if name == "create" else {"name": "chat"})
    read = server().decode(ROUTES[name], json.dumps(body).encode(), call)
    assert isinstance(read, Change)
    return read


def shares(**shares: int) -> dict[str, Any]:
    routes = [{"served_entity_name": name, "traffic_percentage": share} for name, share in shares.items()]
    return {"routes": routes}


READ: list[tuple[dict[str, Any], tuple[ServedEntity, ...]]] = [
    ({"served_entities": ENTITIES, "traffic_config": shares(b=10, a=90)}, ARMS),
    (
        {"served_entities": ENTITIES, "traffic_config": shares(a=100)},
        (ServedEntity("a", "s/echo", 100), ServedEntity("b", "t", 0)),
    ),
    ({"traffic_config": shares(b=100)}, (ServedEntity("a", "s/echo", 0), ServedEntity("b", "t", 100))),
    ({"served_entities": ENTITIES[:1]}, (ServedEntity("a", "s/echo", 100),)),
    (
        {"served_entities": [{"entity_name": "s/org/llama.3", "entity_version": "2", "workload_size": "Small"}]},
        (ServedEntity("s-org-llama-3-2", "s/org/llama.3", 100),),
    ),
    (
        {
            "served_entities": ENTITIES[:1],
            "traffic_config": {"routes": [{"served_model_name": "a", "traffic_percentage": 100}]},
        },
        (ServedEntity("a", "s/echo", 100),),
    ),
]


@pytest.mark.parametrize(("body", "arms"), READ)
def test_an_update_is_decoded(body: dict[str, Any], arms: tuple[ServedEntity, ...]) -> None:
    assert replace(change("update", body), unknown=()) == Change(action="update", endpoint="chat", served_entities=arms)


def test_a_new_endpoint_and_a_deletion_are_decoded() -> None:
    body = {"name": "new", "config": READ[0][0], "tags": [], "route_optimized": True}
    made = Change(action="create", endpoint="new", served_entities=ARMS, unknown=("route_optimized",))
    assert change("create", body) == made
    assert change("delete", {}) == Change(action="delete", endpoint="chat")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"served_entities": ENTITIES}, "'traffic_config'"),
        ({"served_entities": ENTITIES * 2, "traffic_config": shares(a=100)}, "same name"),
        ({"traffic_config": shares(c=100)}, "names 'c'"),
        ({"traffic_config": {"routes": shares(a=50)["routes"] * 2}}, "Two routes name 'a'"),
        ({"served_entities": [{"name": "a"}]}, "'entity_name'"),
        ({"served_entities": [{"external_model": {}}]}, "configured as a backend"),
        (
            {"traffic_config": {"routes": [{"served_entity_name": "a", "traffic_percentage": "50"}]}},
            "traffic_percentage",
        ),
    ],
)
def test_malformed_changes_are_refused(body: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        change("update", body)


def test_shares_alone_need_an_existing_endpoint() -> None:
    with pytest.raises(ModelNotFound):
        server().decode(ROUTES["update"], b"{}", Call("r1", Catalog({}), {"name": "chat"}))


def test_the_description_of_an_endpoint_during_an_update() -> None:
    pending = (ServedEntity("a", "s/echo", 50), ServedEntity("c", "u/new", 50, state="loading"))
    card = msgspec.structs.replace(CARD, version=3, changed=1_700_000_000, pending=pending)
    described = server().describe(ROUTES["endpoint"], Call("r1", Catalog({"chat": card}), {"name": "chat"}), b"")
    assert described.body == (GOLDEN / "endpoint-updating.json").read_bytes()


def test_the_description_of_an_endpoint_whose_update_failed() -> None:
    card = msgspec.structs.replace(CARD, update_failed=True)
    described = server().describe(ROUTES["endpoint"], Call("r1", Catalog({"chat": card}), {"name": "chat"}), b"")
    assert json.loads(described.body)["state"] == {"ready": "READY", "config_update": "UPDATE_FAILED"}
