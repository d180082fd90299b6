"""Ollama's protocol: `/api/chat`, `/api/generate` and `/api/embed`, streamed as lines of JSON."""

from __future__ import annotations

from adapters.base import Adapter
from adapters.ollama.client import OllamaClient
from adapters.ollama.dialects import DIALECTS
from adapters.ollama.server import OllamaServer

ADAPTER = Adapter(name="ollama", dialects=DIALECTS, server=OllamaServer, client=OllamaClient)
