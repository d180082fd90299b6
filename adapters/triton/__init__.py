"""Triton Inference Server: KServe v2 infer, metadata and statistics over HTTP and gRPC, and the generate extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.base import Adapter, Reply
from adapters.triton.client import TritonClient
from adapters.triton.dialects import DIALECTS, Dialect
from adapters.triton.server import TritonServer

if TYPE_CHECKING:
    from adapters.triton.grpc.client import TritonRpcClient
    from adapters.triton.grpc.server import TritonRpc


def _rpc(dialect: Dialect) -> TritonRpc:
    # Only where it is asked for: it needs a package that the gateway alone does not bring.
    from adapters.triton.grpc.server import TritonRpc

    return TritonRpc(dialect)


def _rpc_client(dialect: Dialect) -> TritonRpcClient:
    from adapters.triton.grpc.client import TritonRpcClient

    return TritonRpcClient(dialect)


def is_ready(reply: Reply) -> bool:
    """Whether the answer to `ServerReady` over gRPC says that all models can answer."""
    from adapters.triton.grpc.client import is_ready as read

    return read(reply)


def listed(body: bytes) -> list[str]:
    """The models in the answer to `RepositoryIndex` over gRPC."""
    from adapters.triton.grpc.client import listed as read

    return read(body)


ADAPTER = Adapter(
    name="triton", dialects=DIALECTS, server=TritonServer, client=TritonClient, rpc=_rpc, rpc_client=_rpc_client
)
