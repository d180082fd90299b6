"""Databricks' model serving: OpenAI's bodies (read and written by `adapters.openai`) under other routes and rules."""

from __future__ import annotations

from adapters.base import Adapter
from adapters.databricks.client import DatabricksClient
from adapters.databricks.dialects import DIALECTS
from adapters.databricks.server import DatabricksServer

ADAPTER = Adapter(name="databricks", dialects=DIALECTS, server=DatabricksServer, client=DatabricksClient)
