"""A small Triton over gRPC: a real server, whose answers a test writes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from adapters.triton.grpc.messages import MESSAGES, SERVICE
from backends.remote import kinds
from backends.remote.backend import RemoteBackend

Play = Callable[[Any, "Turn"], Awaitable[None]]
STATUS = grpc.StatusCode


@dataclass(slots=True, eq=False)
class Turn:
    """One call of `ModelInfer` or `ModelStreamInfer`, as a play answers it."""

    method: str
    context: aio.ServicerContext
    written: list[bytes] = field(default_factory=list)

    async def say(self, text: str, reason: str = "", **counts: int) -> None:
        """Answer with the outputs of vLLM's backend."""
        response = MESSAGES["ModelInferResponse"](model_name="m", model_version="1")
        outputs = {"text_output": text, "finish_reason": reason}
        for name, value in outputs.items():
            response.outputs.add(name=name, datatype="BYTES", shape=[1])
            response.raw_output_contents.append(struct.pack("<I", len(value.encode())) + value.encode())
        for name, count in counts.items():
            response.outputs.add(name=name, datatype="UINT32", shape=[1])
            response.raw_output_contents.append(struct.pack("<I", count))
        await self.send(response)

    async def send(self, response: Any) -> None:
        """Answer with a response."""
        if self.method == "ModelInfer":
            self.written.append(response.SerializeToString())
        else:
            part = MESSAGES["ModelStreamInferResponse"](infer_response=response)
            await self.context.write(part.SerializeToString())

    async def fail(self, message: str) -> None:
        """Report an error in a stream."""
        await self.context.write(MESSAGES["ModelStreamInferResponse"](error_message=message).SerializeToString())


@dataclass(slots=True, eq=False)
class Server:
    """What a server was asked, and how its calls ended."""

    port: int = 0
    calls: list[str] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    remaining: list[float | None] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    ready: bool = True
    inner: aio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def triton(play: Play, *, port: int = 0, credentials: Any = None, options: Any = ()) -> AsyncIterator[Server]:
    """A server that answers inferences by `play`."""
    there = Server()

    async def begin(name: str, body: bytes, context: aio.ServicerContext) -> Turn:
        request = MESSAGES["ModelInferRequest"].FromString(body)
        there.calls.append(name)
        there.requests.append(request)
        there.metadata.append(dict(context.invocation_metadata() or ()))
        there.remaining.append(context.time_remaining())
        turn = Turn(name, context)
        try:
            await play(request, turn)
        except asyncio.CancelledError:
            there.cancelled.set()
            raise
        return turn

    async def infer(body: bytes, context: aio.ServicerContext) -> bytes:
        return (await begin("ModelInfer", body, context)).written[0]

    async def stream(bodies: Any, context: aio.ServicerContext) -> None:
        async for body in bodies:
            await begin("ModelStreamInfer", body, context)

    async def is_ready(body: bytes, context: aio.ServicerContext) -> bytes:
        answer: bytes = MESSAGES["ServerReadyResponse"](ready=there.ready).SerializeToString()
        return answer

    async def index(body: bytes, context: aio.ServicerContext) -> bytes:
        answer = MESSAGES["RepositoryIndexResponse"]()
        for name in ("a", "b"):
            answer.models.add(name=name)
        return bytes(answer.SerializeToString())

    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
        "ServerReady": grpc.unary_unary_rpc_method_handler(is_ready),
        "RepositoryIndex": grpc.unary_unary_rpc_method_handler(index),
    }
    server = aio.server(options=[("grpc.so_reuseport", 0), *options])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    address = f"localhost:{port}"
    there.port = (
        server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    )
    there.inner = server
    await server.start()
    try:
        yield there
    finally:
        await server.stop(0)


@asynccontextmanager
async def remote(url: str, **options: Any) -> AsyncIterator[RemoteBackend]:
    """A started backend in front of a server, with a connect timeout for busy machines."""
    timeouts = {"connect": 60.0} | options.pop("timeouts", {})
    made = kinds.triton_grpc("far", {"url": url, "health_interval": 3600.0, "timeouts": timeouts} | options)
    assert isinstance(made, RemoteBackend)
    await made.start()
    try:
        yield made
    finally:
        await made.aclose()
