"""Triton Inference Server over HTTP: the generate extension, KServe v2 infer, metadata and statistics."""

from __future__ import annotations

from adapters.base import Adapter
from adapters.triton.client import TritonClient
from adapters.triton.dialects import DIALECTS
from adapters.triton.server import TritonServer

ADAPTER = Adapter(name="triton", dialects=DIALECTS, server=TritonServer, client=TritonClient)
