"""The OpenAI protocol, and MindIE's version of it.

Routes: `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/embeddings` and `/v1/models`. Databricks
(`adapters.databricks`) has the same bodies under routes and rules of its own.
"""

from __future__ import annotations

from adapters.base import Adapter
from adapters.openai.client import OpenAIClient
from adapters.openai.dialects import DIALECTS
from adapters.openai.server import OpenAIServer

ADAPTER = Adapter(name="openai", dialects=DIALECTS, server=OpenAIServer, client=OpenAIClient)
