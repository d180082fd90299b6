"""Anthropic's Messages protocol: `/v1/messages`, streamed as named events, and `/v1/messages/count_tokens`."""

from __future__ import annotations

from adapters.anthropic.client import AnthropicClient
from adapters.anthropic.dialects import DIALECTS
from adapters.anthropic.server import AnthropicServer
from adapters.base import Adapter

ADAPTER = Adapter(name="anthropic", dialects=DIALECTS, server=AnthropicServer, client=AnthropicClient)
