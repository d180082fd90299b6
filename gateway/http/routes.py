"""The routes of all protocols, behind one raw ASGI application.

Raw, because the adapters own every byte: Litestar carries the application, but neither reads bodies nor writes answers
here. A path that no route matches is refused in the form of the protocol whose paths are nearest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from litestar.types import HTTPScope, Receive, Send

from adapters.base import Reply
from gateway.config import Role
from gateway.errors import to_client_error
from gateway.http.answer_headers import id_headers, status_headers
from gateway.http.api import experiment, keys
from gateway.http.batches.handler import BatchWork, StoreRequestHandler
from gateway.http.client import AsgiClient, Client
from gateway.http.request import RequestHandler
from gateway.mounts import Mounts, Operation, Paths
from gateway.service import Service
from schemas.errors import GatewayError, MethodNotAllowed, RouteNotFound

Answer = Callable[[HTTPScope, Client], Coroutine[Any, Any, None]]
"""Answers a request."""


def protocols(mounts: Mounts, service: Service, work: BatchWork | None = None) -> Answer:
    """What answers every path that no Litestar route has; `work` are the batches and files, if it keeps any."""

    async def handle(scope: HTTPScope, client: Client) -> None:
        # `path` is percent-decoded already (ASGI), `raw_path` is as sent.
        path, method = scope["raw_path"].decode("latin-1"), scope["method"]
        port = port_of(scope)
        found = mounts.find(path, port)
        if path == "/" and method in ("GET", "HEAD"):
            await _alive(service, scope, client.send)
            return
        if found is None:
            await _answer_or_refuse(service, mounts, path, scope, client.send)
            return
        methods, parameters = found
        # RFC 9110, section 9.3.2: HEAD is GET without content. `Responder` leaves the content out.
        operation = methods.get("GET" if method == "HEAD" else method)
        if operation is None:
            await refuse(service, next(iter(methods.values())), not_allowed(method, methods), scope, client.send)
            return
        operation = operation.for_headers(scope["headers"])
        if operation.route.kind == "store":
            await StoreRequestHandler(service, work, operation, parameters, scope, client).run()
            return
        # This request counts itself, so `Service.full` compares with `>`.
        service.running += 1
        service.begun += 1
        request = RequestHandler(service, operation, parameters, scope, client)
        try:
            await request.run()
        except asyncio.CancelledError:
            # At the end of the drain time uvicorn cancels what still runs, and would log a traceback for each. The
            # client knows why, and the log has the request's line.
            if not (service.draining and request.answer_begun):
                raise
        except Exception as error:  # a bug that its own nets have not caught: the client still gets its protocol
            if request.answer_begun:
                raise
            await refuse(service, operation, to_client_error(error, request.id), scope, client.send)
        finally:
            service.running -= 1

    return handle


def over_asgi(answer: Answer) -> Callable[[HTTPScope, Receive, Send], Coroutine[Any, Any, None]]:
    """An ASGI application for requests alone."""

    async def handle(scope: HTTPScope, receive: Receive, send: Send) -> None:
        await answer(scope, AsgiClient.of(scope, receive, send))

    return handle


def refuser(mounts: Mounts, service: Service) -> Callable[[GatewayError, HTTPScope, Send], Coroutine[Any, Any, None]]:
    """What sends an error in the form of the protocol whose paths are nearest."""

    async def send_refusal(error: GatewayError, scope: HTTPScope, send: Send) -> None:
        # The protocol of a path does not depend on slashes too many.
        path = re.sub("/{2,}", "/", scope["raw_path"].decode("latin-1"))
        await refuse(service, mounts.nearest(path, port_of(scope)), error, scope, send)

    return send_refusal


async def _alive(service: Service, scope: HTTPScope, send: Send) -> None:
    """Answer `GET /`, which is TGI's health check, whatever other routes that path has. A browser gets the page."""
    headers = [(b"content-length", b"0"), (b"x-request-id", service.new_id().encode())]
    is_browser = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    if is_browser:
        headers.append((b"location", b"/ui"))
    await send({"type": "http.response.start", "status": 307 if is_browser else 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def role_of(mounts: Mounts, own: Mapping[str, Mapping[Any, Any]], scope: HTTPScope) -> Role | None:
    """The role that a request needs; None if everybody may send it.

    Args:
        mounts: the protocols' routes.
        own: Litestar's own, by path and method.
        scope: the request's.
    """
    path, method = scope["path"].rstrip("/"), scope["method"]
    if (methods := own.get(path)) is not None:
        handler = methods.get(method) or next(iter(methods.values()))
        role: Role | None = handler.opt.get("role")
        return role
    raw = scope["raw_path"].decode("latin-1")
    if (found := mounts.find(raw, port_of(scope))) is not None:
        operation = found[0].get("GET" if method == "HEAD" else method)
        return "admin" if operation is not None and operation.route.kind == "manage" else "ask"
    if (known := _OWN.find(raw)) is not None:
        return "metrics" if known[0][0] == "GET" else "admin"
    return None  # there is nothing


def port_of(scope: HTTPScope) -> int | None:
    """The port that a request came to; None on a Unix socket."""
    return scope["server"][1] if scope["server"] is not None else None


# Paths outside of all protocols, looked up only if no protocol has the path.
_OWN: Paths[tuple[str, experiment.Handler]] = Paths()
for _path, _handler in (experiment.PATHS | keys.PATHS).items():
    _OWN.add(_path, _handler)


async def _answer_or_refuse(service: Service, mounts: Mounts, path: str, scope: HTTPScope, send: Send) -> None:
    """Answer a path of no protocol: of an experiment or a key, or with a refusal."""
    found = _OWN.find(path)
    operation = mounts.nearest(path, port_of(scope))
    try:
        if found is None:
            meant = _meant(mounts, path, scope)
            if meant is None:
                raise not_found(path)
            operation, other = meant
            raise RouteNotFound(f"There is no such path: {path}. There is {other}: change the client's base URL.")
        (allowed, handler), parameters = found
        if (method := scope["method"]) != allowed and not (method == "HEAD" and allowed == "GET"):
            raise not_allowed(method, [allowed, "HEAD"] if allowed == "GET" else [allowed])
        await handler(service, parameters["name"], scope, send)
    except Exception as error:  # a bug, or a disk that fails: nothing was sent yet
        await refuse(service, operation, error, scope, send)


def _meant(mounts: Mounts, path: str, scope: HTTPScope) -> tuple[Operation, str] | None:
    """The operation that a path is meant for, and its path; None if there is no guess.

    Clients append paths to their base URL, which may end in a route, or in `/v1` where they append that
    themselves, or lack it.
    """
    _, *parts = path.split("/")
    others = ["/".join(["", *parts[1:]]), f"/v1{path}"]
    others += ["/".join(["", *parts[:-size]]) for size in (1, 2) if parts[-size:] == parts[-2 * size : -size]]
    for other in others:
        # Without its only part, a path is that of the server: nothing that its client could have meant.
        found = mounts.find(other, port_of(scope)) if other else None
        if found is not None and (operation := found[0].get(scope["method"])) is not None:
            return operation.for_headers(scope["headers"]), other
    return None


def not_allowed(method: str, methods: Iterable[str]) -> MethodNotAllowed:
    """The error for a method that a path does not have; names those that it has."""
    return MethodNotAllowed(f"Method {method} is not allowed here.", allowed=tuple(sorted(methods)))


def not_found(path: str) -> RouteNotFound:
    """The error for a path that does not exist."""
    hint = ". It has two slashes in a row: change the client's base URL." if "//" in path else ""
    return RouteNotFound(f"There is no such path: {path}{hint}")


async def refuse(service: Service, operation: Operation, error: Exception, scope: HTTPScope, send: Send) -> None:
    """Send an error in the form of `operation`'s protocol, without a `RequestHandler`."""
    reply: Reply = operation.codec.error(to_client_error(error, id := service.new_id()))
    headers = [
        (b"content-type", reply.media_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
    ]
    more = (*id_headers(operation.codec, id), *reply.headers, *status_headers(reply.status))
    headers += [(name.encode(), value.encode()) for name, value in more]
    body = b"" if scope["method"] == "HEAD" else reply.body
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
