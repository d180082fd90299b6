"""The client of one upstream over gRPC: an `Outbound` names a method, its body is a message, and so is each answer's.

Strategy:
- The status of a call that has no answer becomes the HTTP status that stands for it, so that keys, retries, the breaker
  and errors see the same as over HTTP. The body of an answer is its messages as gRPC frames them on the wire.
- gRPC reports a server that was not reached, one that broke off and one that is busy as the same UNAVAILABLE. The
  state of the channel tells them apart: only what came over a connection that still stands was said by the server.
- A call with one answer has the deadline of the exchange, which the server learns. A stream has none as a whole: its
  first message has that of the exchange, the next ones those of their reads. Ending a call early cancels it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc import aio

from adapters.base import Headers, Outbound
from adapters.formats.length_prefixed import frame
from backends.transport.limits import TransportLimits
from backends.transport.response import Response
from backends.transport.url import VIA, check_headers, port_of, split_url
from backends.transport.waiting_line import Turns
from schemas.errors import BackendFailed, BackendTimeout, BackendUnavailable, Fault, GatewayError, Incomplete

Code = grpc.StatusCode
State = grpc.ChannelConnectivity
Messages: TypeAlias = "aio.StreamStreamCall[bytes, bytes]"

MEDIA_TYPE = "application/grpc"
METHOD_HEADER = "grpc-method"
"""The header of an answer with the method that was called."""
MESSAGE_HEADER = "grpc-message"
"""The header of an answer with an error status: the server's text."""

# google/rpc/code.proto, "HTTP Mapping"; the statuses of the others are 500.
_STATUSES = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.UNAUTHENTICATED: 401,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
}
_TOO_LARGE = "message larger than max"
"""In the text of a RESOURCE_EXHAUSTED that is about a message, not about too many requests."""
_CLOSE = 0.05
"""Seconds before a deadline at which the server, whose clock is another, may say that it is past."""
_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))
"""gRPC alone would wait up to two minutes before it tries an upstream again that was away."""


class RpcTransport:
    """The client of one upstream over gRPC.

    Args:
        url: the upstream's, without a path; `https` for TLS.
        headers: metadata of every call. They may hold a key: no error text repeats them.
        limits: bounds. `connections` are calls at a time, which share one connection; `body` is that of a message.
        connect_timeout: seconds to open a connection, TLS included.
        tls: what is trusted with `https`; by default the system's certificates.
        certificate: files of a certificate to show to the upstream, with its chain, and of its private key.
        proxy: the URL of an HTTP proxy; "" for none.
        unix_socket: the path of a socket to connect to, instead of the URL's host.

    Raises:
        ValueError: an argument cannot be used.
        OSError: a file cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Headers = (),
        limits: TransportLimits | None = None,
        connect_timeout: float = 2.0,
        tls: ssl.SSLContext | None = None,
        certificate: tuple[str, str] | None = None,
        proxy: str = "",
        unix_socket: str | None = None,
    ) -> None:
        parts = split_url(url)
        assert parts.hostname is not None
        if parts.path.strip("/"):
            raise ValueError("the URL of a server that speaks gRPC has no path")
        check_headers(headers)
        if proxy and not proxy.startswith("http:"):
            raise ValueError("gRPC goes through HTTP proxies only")
        self._headers = _metadata(headers)
        self._limits = limits or TransportLimits()
        self._connect_timeout = connect_timeout
        self._turns = Turns(self._limits, self._limits.connections)
        self._streams_only = False  # whether the upstream has refused `path` where `stream_path` was there, too
        options = [
            *_RECONNECT,
            ("grpc.min_reconnect_backoff_ms", int(connect_timeout * 1000)),
            ("grpc.max_receive_message_length", self._limits.body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", self._limits.head),
            ("grpc.absolute_max_metadata_size", self._limits.head),
            ("grpc.primary_user_agent", "interlingua"),
            # Retries are the caller's: here nobody counts them.
            ("grpc.enable_retries", 0),
            # A channel of its own, not one that is shared by all of this process with the same target.
            ("grpc.use_local_subchannel_pool", 1),
            # The caller has chosen the proxy. gRPC's own choice would be the environment's.
            ("grpc.http_proxy", proxy) if proxy else ("grpc.enable_http_proxy", 0),
        ]
        target = f"unix:{unix_socket}" if unix_socket is not None else f"dns:///{parts.hostname}:{port_of(parts)}"
        if parts.scheme == "https":
            if unix_socket is not None:  # the certificate is for the URL's host
                options.append(("grpc.ssl_target_name_override", parts.hostname))
            self._channel = aio.secure_channel(target, _credentials(tls, certificate), options=options)
        else:
            self._channel = aio.insecure_channel(target, options=options)

    async def exchange(self, request: Outbound, deadline: float | None = None) -> Response:
        """Call a method and return once its answer, of a stream the first message or the end, has arrived.

        Raises:
            schemas.errors.GatewayError: there is no answer, or none by `deadline`.
        """
        await self._turns.enter(request, deadline)
        response: Response | None = None
        try:
            was_reached = await self._reach(deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._call(request, deadline)
            except TimeoutError:
                raise _late() from None
            except aio.AioRpcError as error:
                response = self._refused(error, was_reached, deadline)
            return response
        finally:
            if not isinstance(response, _Stream):  # which goes on
                self._turns.leave()

    async def aclose(self) -> None:
        """Cancel all calls and close the connection. Idempotent."""
        await self._channel.close()

    async def _reach(self, deadline: float | None) -> bool:
        """Connect, unless there is a connection; whether there is one."""
        state = self._channel.get_state(try_to_connect=True)
        if state is State.READY:
            return True
        until = asyncio.get_running_loop().time() + self._connect_timeout
        try:
            async with asyncio.timeout_at(until if deadline is None else min(until, deadline)):
                while state not in (State.READY, State.TRANSIENT_FAILURE):
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError as error:
            raise BackendUnavailable("The backend could not be reached in time.", fault=Fault.CONNECT) from error
        return state is State.READY

    async def _call(self, request: Outbound, deadline: float | None) -> Response:
        metadata = (*self._headers, *_metadata((*request.headers, *request.trace, *VIA)))
        if request.path and not (request.stream_path and self._streams_only):
            try:
                return await self._whole(request, metadata, deadline)
            except aio.AioRpcError as error:
                wants_stream = request.stream_path and request.stream_if in (error.details() or "")
                if error.code() is not Code.UNIMPLEMENTED or not wants_stream:
                    raise
            self._streams_only = True
        return await self._stream(request, metadata)

    async def _whole(self, request: Outbound, metadata: Headers, deadline: float | None) -> Response:
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        call = self._channel.unary_unary(request.path)(request.body, metadata=metadata, timeout=left)
        message = await call
        headers = (*_headers(await call.initial_metadata()), *_headers(await call.trailing_metadata()))
        return _Whole(200, request.path, headers, frame(message))

    async def _stream(self, request: Outbound, metadata: Headers) -> Response:
        call: Messages = self._channel.stream_stream(request.stream_path)(metadata=metadata)
        try:
            # The status of a call that has ended is raised by `read`, not by these two.
            with suppress(asyncio.InvalidStateError):
                await call.write(request.body)
                await call.done_writing()
            first = await call.read()
            headers = _headers(await call.initial_metadata())
        except BaseException:
            call.cancel()
            raise
        return _Stream(call, first, (*_described(request.stream_path), *headers), self._limits, self._turns.leave)

    def _refused(self, error: aio.AioRpcError, was_reached: bool, deadline: float | None) -> Response:
        """The answer that the status of a call stands for.

        Raises:
            schemas.errors.GatewayError: it was not the server that gave it.
        """
        code, text = error.code(), error.details() or ""
        now = asyncio.get_running_loop().time()
        if code is Code.UNAVAILABLE and not was_reached:
            raise BackendUnavailable("The backend could not be reached.", fault=Fault.CONNECT) from OSError(text)
        if code is Code.UNAVAILABLE and self._channel.get_state() is not State.READY:
            message = "The backend closed the connection before it answered."
            raise BackendUnavailable(message, fault=Fault.RESET) from OSError(text)
        if code is Code.DEADLINE_EXCEEDED and deadline is not None and now >= deadline - _CLOSE:
            raise _late()
        status = _STATUSES.get(code, 500)
        if code is Code.RESOURCE_EXHAUSTED and _TOO_LARGE in text:
            if "CLIENT" in text:
                raise _too_large()
            status = 413
        headers = (*_headers(error.initial_metadata()), *_headers(error.trailing_metadata()))
        return _Whole(status, "", ((MESSAGE_HEADER, text), *headers), b"")


class _Whole(Response):
    """An answer that has arrived as a whole."""

    __slots__ = ("_body",)

    def __init__(self, status: int, method: str, headers: Headers, body: bytes) -> None:
        super().__init__(status, (*_described(method), *headers), len(body))
        self._body = body

    async def read(self, deadline: float | None) -> bytes:  # noqa: ARG002
        body, self._body = self._body, b""
        return body

    def finish(self) -> None:
        """Nothing is left to end."""

    def close(self) -> None:
        """Nothing is left to end."""


class _Stream(Response):
    """A stream of messages, each framed."""

    __slots__ = ("_call", "_first_message", "_leave")

    def __init__(
        self, call: Messages, first: Any, headers: Headers, limits: TransportLimits, leave: Callable[[], None]
    ) -> None:
        super().__init__(200, headers, limits.body)
        self._call = call
        self._first_message: Any = first
        self._leave: Callable[[], None] | None = leave

    async def read(self, deadline: float | None) -> bytes:
        message, self._first_message = self._first_message, None
        if message is None:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self._call.read()
            except TimeoutError:
                raise _late() from None
            except aio.AioRpcError as error:
                if error.code() is Code.RESOURCE_EXHAUSTED and _TOO_LARGE in (error.details() or ""):
                    raise _too_large() from None
                text = "The backend's answer stopped before it was finished."
                raise Incomplete(text, fault=Fault.TRUNCATED) from OSError(error.details())
        return b"" if message is aio.EOF else frame(message)

    def finish(self) -> None:
        # The last message has the end of the answer; the call's own status says nothing more.
        self.close()

    def close(self) -> None:
        if (leave := self._leave) is not None:
            self._leave = None
            self._call.cancel()
            leave()


def _described(method: str) -> Headers:
    return ("content-type", MEDIA_TYPE), (METHOD_HEADER, method)


def _metadata(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Headers as metadata, whose names are in lower case."""
    return tuple((name.lower(), value) for name, value in headers)


def _headers(metadata: Any) -> Headers:
    """Metadata as headers; binary ones are left out."""
    return tuple((name, value) for name, value in metadata or () if isinstance(value, str))


def _late() -> BackendTimeout:
    return BackendTimeout("The backend did not answer in time.", fault=Fault.TIMEOUT)


def _too_large() -> GatewayError:
    return BackendFailed("The backend's answer is too large.", fault=Fault.TOO_BIG)


def _credentials(tls: ssl.SSLContext | None, certificate: tuple[str, str] | None) -> grpc.ChannelCredentials:
    """TLS as the context of the other clients has it: gRPC has its own library, and takes certificates as text."""
    trusted = (tls or ssl.create_default_context()).get_ca_certs(binary_form=True)
    chain, key = (Path(file).read_bytes() for file in certificate) if certificate is not None else (None, None)
    # Without any, gRPC takes those that it brings: a system may have its own in a folder, which is read when needed.
    roots = "".join(ssl.DER_cert_to_PEM_cert(each) for each in trusted).encode() or None
    return grpc.ssl_channel_credentials(roots, key, chain)
