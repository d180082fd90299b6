"""Shared by the tests of this folder: a gateway over scripted models that listens for gRPC, and its methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio
from litestar import Litestar

from adapters.triton.grpc.messages import MESSAGES, SERVICE
from gateway.grpc.server import GrpcServer
from gateway.mounts import rpc_operations
from gateway.registry import adapters
from tests.gateway.serving import running

_NO_PROXY = (("grpc.enable_http_proxy", 0),)


@asynccontextmanager
async def listening(app: Litestar, end: bool = True) -> AsyncIterator[tuple[GrpcServer, int]]:
    """The application's server for gRPC, and its port."""
    service = app.state.service
    async with running(app):
        tasks: set[asyncio.Task[None]] = set()
        server = GrpcServer(service, rpc_operations(adapters(), service.config), 0)
        port = await server.start(tasks)
        try:
            yield server, port
        finally:
            if end:
                server.end()
            await server.close()
            assert not tasks


@asynccontextmanager
async def channel(port: int, credentials: Any = None, more: Any = ()) -> AsyncIterator[aio.Channel]:
    address, options = f"localhost:{port}", (*_NO_PROXY, *more)
    if credentials is None:
        made = aio.insecure_channel(address, options=options)
    else:
        made = aio.secure_channel(address, credentials, options=options)
    async with made as found:
        yield found


@asynccontextmanager
async def grpc_port(app: Litestar) -> AsyncIterator[int]:
    """The port for gRPC of an application that runs."""
    service = app.state.service
    server = GrpcServer(service, rpc_operations(adapters(), service.config), 0)
    try:
        yield await server.start(set())
    finally:
        server.end()
        await server.close()


@asynccontextmanager
async def over_grpc(app: Litestar) -> AsyncIterator[aio.Channel]:
    """A connection for gRPC to an application that runs."""
    async with grpc_port(app) as port, channel(port) as found:
        yield found


def method(channel: aio.Channel, name: str) -> Any:
    """A method of the service, with messages as clients have them."""
    answer = MESSAGES["ModelStreamInferResponse" if name == "ModelStreamInfer" else f"{name}Response"]
    coding = {
        "request_serializer": lambda message: message.SerializeToString(),
        "response_deserializer": answer.FromString,
    }
    path = f"/{SERVICE}/{name}"
    if name == "ModelStreamInfer":
        return channel.stream_stream(path, **coding)
    return channel.unary_unary(path, **coding)


def ask(model: str, text: str = "one two three", **fields: Any) -> Any:
    """A request for an inference."""
    message = MESSAGES["ModelInferRequest"](model_name=model, **fields)
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    return message


def said(response: Any) -> str:
    """The text of a response."""
    return response.raw_output_contents[0][4:].decode()


def is_last(response: Any) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)
