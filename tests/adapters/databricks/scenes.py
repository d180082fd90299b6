"""What the tests of this folder share; the event streams are `tests.adapters.openai.scenes`'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapters.base import Call
from adapters.databricks.client import DatabricksClient
from adapters.databricks.dialects import DATABRICKS, Dialect
from adapters.databricks.server import DatabricksServer
from adapters.dialect import option_names, with_options
from schemas.ir import Embed, Generate
from tests.adapters.openai.scenes import CATALOG, HELLO, now

GOLDEN = Path(__file__).parents[2] / "golden" / "databricks"
ROUTES = {route.name: route for route in DatabricksServer.routes}


def dialect(**knobs: Any) -> Dialect:
    """The dialect with some fields set, as a configuration names them."""
    assert set(knobs) <= set(option_names(DATABRICKS))
    return with_options(DATABRICKS, knobs)


def server(**knobs: Any) -> DatabricksServer:
    return DatabricksServer(dialect(**knobs), now)


def client(**knobs: Any) -> DatabricksClient:
    return DatabricksClient(dialect(**knobs))


def call(**path: str) -> Call:
    return Call("r1", CATALOG, path)


def query(
    fields: dict[str, Any], *, operation: str = "invocations", knobs: dict[str, Any] | None = None, **path: str
) -> Generate | Embed:
    """What the server face reads of a query."""
    path = path or ({"name": "chat"} if operation == "invocations" else {})
    return server(**(knobs or {})).decode(ROUTES[operation], json.dumps(fields).encode(), call(**path))


def chat(*, knobs: dict[str, Any] | None = None, **fields: Any) -> Generate:
    request = query({"messages": HELLO} | fields, knobs=knobs)
    assert isinstance(request, Generate)
    return request


def completion(*, knobs: dict[str, Any] | None = None, **fields: Any) -> Generate:
    request = query({"prompt": "Once"} | fields, knobs=knobs)
    assert isinstance(request, Generate)
    return request
