"""The OpenAPI document of every protocol's routes."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from adapters.base import Adapter, Route
from gateway.app import adapters
from gateway.http.openapi import document
from gateway.http.routes import routes


class Body(msgspec.Struct):
    text: str


class Answer(msgspec.Struct):
    length: int


class Server:
    routes = (
        Route("POST", "/m/{model}/ask", "ask", "generate", "Ask", body=Body, answer=Answer, streams=True),
        Route("GET", "/m/{model:path}", "look", "describe", "Look"),
    )


@pytest.fixture
def made() -> dict[str, Any]:
    adapter = Adapter("toy", {"toy": None}, lambda _: Server(), lambda _: None)  # type: ignore[arg-type,return-value]
    return json.loads(document({"toy": adapter}))


def test_a_route_has_its_schemas(made: dict[str, Any]) -> None:
    ask = made["paths"]["/m/{model}/ask"]["post"]
    assert (ask["operationId"], ask["tags"], ask["summary"]) == ("toy_ask", ["toy"], "Ask")
    assert ask["requestBody"]["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}
    content = ask["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/Answer"}
    assert content["text/event-stream"]["schema"] == {"type": "string"}
    assert set(made["components"]["schemas"]) == {"Body", "Answer"}


def test_a_parameter_of_a_path_is_listed_without_its_kind(made: dict[str, Any]) -> None:
    look = made["paths"]["/m/{model}"]["get"]
    assert look["parameters"] == [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    assert "requestBody" not in look
    assert look["responses"]["200"]["content"] == {}


def test_every_route_is_in_it_once_and_every_reference_leads_somewhere() -> None:
    text = document(adapters())
    made = json.loads(text)
    wanted = {(re.sub(r":\w+}", "}", route.path), route.method.lower()) for _, route in routes(adapters())}
    assert {(path, method) for path, methods in made["paths"].items() for method in methods} == wanted
    ids = [operation["operationId"] for methods in made["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text.decode()))
    assert names <= set(made["components"]["schemas"])
