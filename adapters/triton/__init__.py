"""Triton Inference Server over HTTP: the generate extension, KServe v2 infer, and what Triton tells of itself."""

from __future__ import annotations

from adapters.base import Adapter
from adapters.triton.client import TritonClient
from adapters.triton.dialects import DIALECTS
from adapters.triton.server import TritonServer

ADAPTER = Adapter(name="triton", dialects=DIALECTS, server=TritonServer, client=TritonClient)
