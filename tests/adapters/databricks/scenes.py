"""Codecs and requests for the tests of this folder. The event streams are in `tests.adapters.openai.scenes`."""

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


def dialect(**options: Any) -> Dialect:
    """The dialect with some fields set, as a configuration names them."""
    assert set(options) <= set(option_names(DATABRICKS))
    return with_options(DATABRICKS, options)


def server(**options: Any) -> DatabricksServer:
    return DatabricksServer(dialect(**options), now)


def client(**options: Any) -> DatabricksClient:
    return DatabricksClient(dialect(**options))


def call(**path: str) -> Call:
    return Call("r1", CATALOG, path)


def query(
    fields: dict[str, Any], *, operation: str = "invocations", options: dict[str, Any] | None = None, **path: str
) -> Generate | Embed:
    """A query as the server codec decodes it."""
    path = path or ({"name": "chat"} if operation == "invocations" else {})
    return server(**(options or {})).decode(ROUTES[operation], json.dumps(fields).encode(), call(**path))


def chat(*, options: dict[str, Any] | None = None, **fields: Any) -> Generate:
    request = query({"messages": HELLO} | fields, options=options)
    assert isinstance(request, Generate)
    return request


def completion(*, options: dict[str, Any] | None = None, **fields: Any) -> Generate:
    request = query({"prompt": "Once"} | fields, options=options)
    assert isinstance(request, Generate)
    return request
