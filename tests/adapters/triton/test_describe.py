"""Routes that run no model; their bodies are golden files."""

from __future__ import annotations

import json

import pytest

from adapters.base import Call
from schemas.catalog import Catalog, ModelCard
from schemas.errors import InvalidRequest, MalformedBody, ModelNotFound, RouteNotFound
from tests.adapters.triton.cases import ROUTES, SERVERS, call


def test_paths() -> None:
    found = {(route.method, route.path) for route in SERVERS["triton"].routes}
    model = "/v2/models/{model}"
    expected = {("POST", f"{model}{version}/{name}") for version in ("", "/versions/{version}") for name in POSTED}
    expected |= {("GET", f"{model}{version}{name}") for version in ("", "/versions/{version}") for name in READ}
    expected |= {("GET", path) for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats")}
    expected |= {("POST", "/v2/repository/index")}
    expected |= {("POST", f"/v2/repository/models/{{model}}/{name}") for name in ("load", "unload")}
    assert found == expected
    assert len(ROUTES) == len(expected)  # names are unique


POSTED = ("generate", "generate_stream", "infer")
READ = ("", "/ready", "/config", "/stats")


def describe(operation: str, body: bytes = b"", model: str = "mymodel", version: str | None = None):
    return SERVERS["triton"].describe(ROUTES[operation], call(model, version), body)


def test_readiness() -> None:
    assert (describe("live").status, describe("live").body) == (200, b"")
    assert (describe("ready").status, describe("ready").body) == (400, b"")  # one model of the catalog is loading
    assert (describe("model_ready").status, describe("model_ready").body) == (200, b"")
    assert describe("model_ready_version", version="1").status == 200
    assert describe("model_ready", model="loading").status == 400
    ready = Call("req-1", Catalog({"m": ModelCard(name="m")}))
    assert SERVERS["triton"].describe(ROUTES["ready"], ready, b"").status == 200


@pytest.mark.parametrize("operation", ["load", "unload"])
@pytest.mark.parametrize("model", ["mymodel", "nope"])
def test_load_and_unload_are_refused_in_tritons_words(operation: str, model: str) -> None:
    reply = describe(operation, b'{"parameters": {"unload_dependents": true}}', model)
    assert reply.status == 503
    assert json.loads(reply.body) == {"error": "explicit model load / unload is not allowed if polling is enabled"}


@pytest.mark.parametrize("operation", ["model", "model_ready", "config", "stats"])
def test_unknown_models_and_versions(operation: str) -> None:
    with pytest.raises(ModelNotFound, match="Request for unknown model: 'nope' is not found"):
        describe(operation, model="nope")
    with pytest.raises(ModelNotFound, match="version 3 is not found"):
        describe(f"{operation}_version", version="3")
    with pytest.raises(RouteNotFound):
        describe(f"{operation}_version", version="x")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"ready": false}', b'{"new": 1}'])
def test_index_bodies(body: bytes) -> None:
    assert describe("index", body).body.count(b'"name"') == 3


def test_index_refusals() -> None:
    with pytest.raises(InvalidRequest, match="Invalid value for 'ready': expected a boolean"):
        describe("index", b'{"ready": 1}')
    with pytest.raises(MalformedBody):
        describe("index", b"{")
