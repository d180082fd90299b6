"""Hugging Face's text-generation-inference (TGI), versions 3 and 0.9, and MindIE's variant of it.

Routes: `/`, `/generate`, `/generate_stream`, `/tokenize`, `/info`. TGI's `/v1` routes are in `adapters.openai`.
"""

from __future__ import annotations

from adapters.base import Adapter
from adapters.tgi.client import TgiClient
from adapters.tgi.dialects import DIALECTS
from adapters.tgi.server import TgiServer

ADAPTER = Adapter(name="tgi", dialects=DIALECTS, server=TgiServer, client=TgiClient)
