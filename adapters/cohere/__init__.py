"""Cohere's API, version 2, for remotes: `/v2/chat`, `/v2/embed` and `/v2/rerank`."""

from __future__ import annotations

from adapters.base import RemoteAdapter
from adapters.cohere.client import CohereClient
from adapters.cohere.dialects import DIALECTS

ADAPTER = RemoteAdapter(name="cohere", dialects=DIALECTS, client=CohereClient)
