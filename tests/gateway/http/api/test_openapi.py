"""The OpenAPI document of every route."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from litestar import Litestar

from adapters.base import Route
from gateway.app import create_app
from gateway.config import Config
from gateway.http.api import experiment, keys
from gateway.http.api.openapi import document
from gateway.http.ui import console_files
from gateway.mounts import routes
from gateway.registry import adapters


@pytest.fixture(scope="module")
def app() -> Litestar:
    return create_app(Config())


@pytest.fixture(scope="module")
def made(app: Litestar) -> dict[str, Any]:
    return json.loads(app.state.openapi())


def operation(made: dict[str, Any], route: Route) -> dict[str, Any]:
    return made["paths"][re.sub(r":\w+}", "}", route.path)][route.method.lower()]


@pytest.mark.slow
def test_every_route_of_every_protocol_is_in_it(made: dict[str, Any]) -> None:
    for protocol, route in routes(adapters()):
        described = operation(made, route)
        assert protocol in described["tags"]
        assert ("requestBody" in described) == (route.body is not None)
        form = {"ollama": "application/x-ndjson", "gemini": "application/json"}.get(protocol, "text/event-stream")
        assert (form in described["responses"]["200"]["content"]) == (route.streams or form == "application/json")
        named = [parameter["name"] for parameter in described.get("parameters", ()) if parameter["in"] == "path"]
        assert named == re.findall(r"{(\w+)", route.path)


def test_every_route_of_the_gateway_is_in_it_and_nothing_else(app: Litestar, made: dict[str, Any]) -> None:
    files = {path for path, file in console_files() if file.suffix != ".html"} | {
        path for path in app.route_handler_method_map if path.startswith("/docs/")
    }
    own = set(app.route_handler_method_map) - files | {"/", *experiment.PATHS, *keys.PATHS}
    protocols = {re.sub(r":\w+}", "}", route.path) for _, route in routes(adapters())}
    assert set(made["paths"]) == own | protocols
    for path in own:
        for described in made["paths"][path].values():
            assert described["tags"] != ["gateway"] or described["summary"]


def test_the_parameters_of_usage_are_described(made: dict[str, Any]) -> None:
    names = {each["name"] for each in made["paths"]["/v1/usage"]["get"]["parameters"]}
    assert {"group_by", "start", "end", "key", "endpoint", "limit", "after", "format"} <= names


def test_operations_have_ids_of_their_own_and_references_lead_somewhere(made: dict[str, Any]) -> None:
    operations = [each for methods in made["paths"].values() for each in methods.values()]
    ids = [each["operationId"] for each in operations if "operationId" in each]
    assert len(ids) == len(set(ids))
    for kind in ("schemas", "responses"):
        names = set(re.findall(rf'"#/components/{kind}/([^"]+)"', json.dumps(made)))
        assert names <= set(made["components"][kind])


def test_errors_are_those_that_the_codec_writes(made: dict[str, Any]) -> None:
    chat = made["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"400", "401", "404", "413", "500", "502", "503", "504"} <= set(chat)
    missing = made["components"]["responses"]["openai_404"]["content"]["application/json"]["examples"]
    assert missing["model_not_found"]["value"]["error"]["code"] == "model_not_found"
    models = made["paths"]["/v1/models"]["get"]["responses"]
    assert set(models) == {"200", "401", "404", "500"}


def test_streams_are_shown_as_the_codec_writes_them(made: dict[str, Any]) -> None:
    def example(path: str) -> str:
        return made["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["example"]

    assert example("/v1/chat/completions").endswith("data: [DONE]\n\n")
    assert example("/v1/responses").startswith("event: response.created\n")
    assert example("/v1/messages").startswith("event: message_start\n")
    assert '"generated_text":"Paris"' in example("/generate_stream")
    assert example("/v2/models/{model}/generate_stream").startswith("data: {")


def test_a_header_adds_the_other_protocols_answer(made: dict[str, Any]) -> None:
    listing = made["paths"]["/v1/models"]["get"]
    assert listing["tags"] == ["openai", "anthropic", "gemini"]
    assert len(listing["responses"]["200"]["content"]["application/json"]["schema"]["oneOf"]) == 2
    assert [parameter["name"] for parameter in listing["parameters"]] == ["anthropic-version", "x-goog-api-client"]


def test_the_ways_to_send_a_key(made: dict[str, Any]) -> None:
    assert set(made["components"]["securitySchemes"]) == {"bearer", "x-api-key", "api-key", "x-goog-api-key"}
    assert {} in made["security"]
    assert made["paths"]["/health"]["get"]["security"] == []
    assert "security" not in made["paths"]["/metrics"]["get"]


@pytest.mark.slow
def test_it_is_the_same_at_every_start() -> None:
    assert document(adapters()) == document(adapters())
