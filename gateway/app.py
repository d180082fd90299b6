"""The composition root: makes a Litestar application, with backends and codecs, from a configuration."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response, route
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler, asgi
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from adapters.base import Adapter
from backends.base import Backend
from gateway.access.keys import make_keys
from gateway.config import Config
from gateway.errors import to_client_error
from gateway.http import ui
from gateway.http.answer_headers import id_headers, status_headers
from gateway.http.api import engines, feedback, health
from gateway.http.api import keys as keys_api
from gateway.http.api.openapi import document
from gateway.http.api.usage import organization
from gateway.http.api.usage import routes as usage
from gateway.http.batches.handler import BatchWork
from gateway.http.console import routes as console
from gateway.http.direct.lane import Lane
from gateway.http.entrance import BrowserGuard, Entrance, cors
from gateway.http.routes import not_allowed, not_found, over_asgi, protocols, refuser, role_of
from gateway.mounts import Mounts
from gateway.observability.telemetry import start as start_telemetry
from gateway.registry import adapters, make_backends, make_filter
from gateway.service import Service
from schemas.errors import GatewayError, InvalidRequest


def create_app(
    config: Config,
    backends: Mapping[str, Backend] | None = None,
    folder: Path | None = None,
    slot: str | None = None,
) -> Litestar:
    """The application.

    Args:
        config: what to serve.
        backends: used instead of those that `config` describes, for tests.
        folder: where workers share counters, feedback and stored responses.
        slot: this worker's place in `folder`, which it takes over from one that ended.

    Raises:
        ConfigError: the configuration names something that does not exist.
    """
    keys = make_keys(config.server)
    filters = {name: make_filter(name, section) for name, section in config.filters.items()}
    service = Service(config, make_backends(config) if backends is None else backends, keys, folder, slot, filters)
    known = adapters()
    mounts = Mounts(known, config)
    work = BatchWork.of(service, mounts)
    ask = protocols(mounts, service, work)
    own = [*health.handlers(service), *engines.handlers(service), feedback.handler(service), keys_api.handler(service)]
    own += [*usage.handlers(service), *organization.handlers(service), *console.handlers(service), *ui.handlers()]
    describe, openapi = _description(known, own)
    app = _Application(
        [asgi("/", is_mount=True, copy_scope=False)(over_asgi(ask)), *own, describe],
        # Errors of paths that Litestar serves itself; those of protocols are handled in `RequestHandler`.
        exception_handlers={HTTPException: _in_protocol(mounts), Exception: _in_protocol(mounts)},
        lifespan=[_lifespan(service, work)],
        openapi_config=None,  # Litestar sees none of the protocols' routes: `_description` serves our own document
        logging_config=None,  # structlog is configured by the worker
        cors_config=cors(config.server),
        after_request=_with_request_id(service),
    )
    app.state.service, app.state.openapi = service, openapi
    app.asgi_handler = Entrance(
        app.asgi_handler,
        ask if app.cors_config is None else None,
        None if keys.required else BrowserGuard(config.server),
        app.route_handler_method_map,
        refuser(mounts, service),
        functools.partial(Lane.of, service, mounts),
        answers_preflights=app.cors_config is not None,
        server=config.server,
        role_of=functools.partial(role_of, mounts, app.route_handler_method_map),
    )
    return app


class _Application(Litestar):
    """Litestar without its plugins for pydantic and attrs.

    It adds them wherever these packages are installed, at 9 MB and 0.2 s of CPU time a worker; no handler here has
    their models.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def _with_request_id(service: Service) -> Callable[[Response[Any]], Awaitable[Response[Any]]]:
    """Give every answer of Litestar's own paths a request id; the protocols' have one."""

    # `async`, or Litestar would call it in a thread.
    async def add(response: Response[Any]) -> Response[Any]:
        response.set_header("x-request-id", service.new_id())
        return response

    return add


def _description(
    protocols: Mapping[str, Adapter], own: Sequence[HTTPRouteHandler]
) -> tuple[HTTPRouteHandler, Callable[[], bytes]]:
    """`/openapi.json`, and what builds its document, which describes the protocols' routes, those of `own`, and itself.

    The document takes 0.1 s to build, so it is built when it is first asked for and not at every start.
    """

    @route("/openapi.json", http_method=health.READ, include_in_schema=False)
    async def describe() -> Response[bytes]:
        """The OpenAPI document."""
        return Response(await asyncio.to_thread(openapi), media_type="application/json")

    @functools.cache
    def openapi() -> bytes:
        return document(protocols, [*own, describe])

    return describe, openapi


def _lifespan(service: Service, work: BatchWork | None) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """Start and stop the service with the application."""

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        telemetry = start_telemetry(service.config.telemetry, service.metrics)
        service.traces = telemetry.traces
        await service.start()  # returns while models load: the server answers health checks from the beginning
        if work is not None:
            work.runner.start()
        try:
            yield
        finally:
            if work is not None:
                await work.runner.aclose()
            await service.aclose()
            await asyncio.to_thread(telemetry.close)  # the last: requests have ended

    return lifespan


def _in_protocol(mounts: Mounts) -> Callable[[Request[Any, Any, Any], Exception], Response[bytes]]:
    """A handler for errors raised outside of `RequestHandler`, mostly Litestar's: answers in the nearest protocol."""

    def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        path, method = request.scope["path"], request.scope["method"]
        server = request.scope.get("server")
        operation = mounts.nearest(path, server[1] if server else None)
        failure = _failure(error, request.app, path, method)
        service: Service = request.app.state.service
        failure.request_id = id = service.new_id()
        reply = operation.codec.error(failure)
        return Response(
            b"" if method == "HEAD" else reply.body,
            status_code=reply.status,
            media_type=reply.media_type,
            headers=dict((*reply.headers, *status_headers(reply.status), *id_headers(operation.codec, id))),
        )

    return handle


def _failure(error: Exception, app: Litestar, path: str, method: str) -> GatewayError:
    """An error raised outside of `RequestHandler`, as a `GatewayError`."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return not_found(path)
    if status == 405:
        # Litestar answers OPTIONS for every path by itself.
        methods = app.route_handler_method_map.get(path.rstrip("/"), {})
        return not_allowed(method, [name for name in methods if name != "OPTIONS"])
    return InvalidRequest("The request cannot be read.") if status < 500 else to_client_error(error, "")
