"""Google's Gemini API: `models/{model}:generateContent`, streamed as events or as a JSON array."""

from __future__ import annotations

from adapters.base import Adapter
from adapters.gemini.client import GeminiClient
from adapters.gemini.dialects import DIALECTS
from adapters.gemini.server import GeminiServer

ADAPTER = Adapter(name="gemini", dialects=DIALECTS, server=GeminiServer, client=GeminiClient)
