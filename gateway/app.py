"""The composition root: makes a Litestar application, with backends and codecs, from a configuration."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, route
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from adapters.base import Adapter
from backends.base import Backend, NotPrepared
from gateway.access.keys import Keys, keys_from
from gateway.config import Config, ConfigError, ServerSection, nearest
from gateway.errors import to_client_error
from gateway.http import ui
from gateway.http.answering import status_headers
from gateway.http.api import engines, feedback, health
from gateway.http.api import keys as keys_api
from gateway.http.api.openapi import document
from gateway.http.api.usage import organization
from gateway.http.api.usage import routes as usage
from gateway.http.entrance import BrowserGuard, Entrance, cors
from gateway.http.routes import Mounts, not_allowed, not_found
from gateway.observability.telemetry import start_traces
from gateway.service import Service
from schemas.errors import GatewayError, InvalidRequest


@functools.cache  # a scan reads the metadata of every installed package
def _registered(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group (pyproject.toml): a package installed beside this one can add to it."""
    return {point.name: point for point in entry_points(group=group)}


def adapters() -> dict[str, Adapter]:
    """Every registered protocol."""
    return {name: point.load() for name, point in _registered("gateway.adapters").items()}


def backend_class(name: str, kind: str) -> Callable[[str, Mapping[str, Any]], Backend]:
    """The backend class registered for a kind.

    Args:
        name: the backend's name, for the error.
        kind: what the configuration asks for.

    Raises:
        ConfigError: no backend of this kind is registered.
    """
    found = _registered("gateway.backends")
    if kind not in found:
        from backends.remote.kinds import SPOKEN_BY

        hint = f"; for {kind} say '{SPOKEN_BY[kind]}'" if kind in SPOKEN_BY else nearest(kind, found)
        raise ConfigError(
            f"backends.{name}: there is no backend of kind '{kind}'; there are {', '.join(sorted(found))}{hint}"
        )
    try:
        made: Callable[[str, Mapping[str, Any]], Backend] = found[kind].load()
    except ModuleNotFoundError as error:
        what = f"kind '{kind}' needs the package '{error.name}', which a gateway alone does not bring"
        raise ConfigError(f"backends.{name}: {what}: pip install 'interlingua[engine]'") from None
    return made


def make_backends(config: Config) -> dict[str, Backend]:
    """The configured backends, not started.

    Raises:
        ConfigError: a kind or one of its options is wrong.
    """
    made: dict[str, Backend] = {}
    for name, section in config.backends.items():
        options = {key: value for key, value in section.items() if key != "kind"}
        try:
            made[name] = backend_class(name, section["kind"])(name, options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"backends.{name}: {error}") from None
    return made


def prepare(config: Config, report: Callable[[str], None], *, fetch: bool) -> Config:
    """The configuration with the options that backends have made of theirs: models fetched, formats converted.

    Args:
        config: as it was read.
        report: called with a sentence before each step that takes time.
        fetch: whether anything may be fetched.

    Raises:
        ConfigError: what a backend's options name cannot be had or read.
    """
    made = {}
    for name, section in config.backends.items():
        prepare_options = getattr(backend_class(name, section["kind"]), "prepare", None)
        try:
            made[name] = section if prepare_options is None else prepare_options(section, report, fetch=fetch)
        except NotPrepared as error:
            raise ConfigError(f"backends.{name}: {error}") from None
    return msgspec.structs.replace(config, backends=made)


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
    service = Service(config, make_backends(config) if backends is None else backends, keys, folder, slot)
    protocols = adapters()
    mounts = Mounts(protocols, config)
    own = [*health.handlers(service), *engines.handlers(service), feedback.handler(service), keys_api.handler(service)]
    own += [*usage.handlers(service), *organization.handlers(service), *ui.handlers()]
    describe, openapi = _description(protocols, own)
    app = Litestar(
        [mounts.handler(service), *own, describe],
        # Errors of paths that Litestar serves itself; those of protocols are handled in `RequestHandler`.
        exception_handlers={HTTPException: _in_protocol(mounts), Exception: _in_protocol(mounts)},
        lifespan=[_lifespan(service)],
        openapi_config=None,  # Litestar sees none of the protocols' routes: `_description` serves our own document
        logging_config=None,  # structlog is configured by the worker
        cors_config=cors(config.server),
        after_request=_with_request_id(service),
    )
    app.state.service, app.state.openapi = service, openapi
    app.asgi_handler = Entrance(
        app.asgi_handler,
        None if keys.required else BrowserGuard(config.server),
        app.route_handler_method_map,
        mounts.refuser(service),
        answers_preflights=app.cors_config is not None,
        needs_certificate=config.server.ssl_ca_certs is not None,
    )
    return app


def make_keys(server: ServerSection) -> Keys:
    """The keys that a configuration names.

    Raises:
        ConfigError: a variable is not set, or the file cannot be read.
    """
    file = Path(server.keys_file) if server.keys_file is not None else None
    return Keys(keys_from(server.keys_env), keys_from(server.admin_keys_env), file)


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


def _lifespan(service: Service) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """Start and stop the service with the application."""

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        service.traces = start_traces(service.config.telemetry)
        await service.start()  # returns while models load: the server answers health checks from the beginning
        try:
            yield
        finally:
            await service.aclose()
            if service.traces is not None:
                await asyncio.to_thread(service.traces.close)  # the last: requests have ended

    return lifespan


def _in_protocol(mounts: Mounts) -> Callable[[Request[Any, Any, Any], Exception], Response[bytes]]:
    """A handler for errors raised outside of `RequestHandler`, mostly Litestar's: answers in the nearest protocol."""

    def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        path, method = request.scope["path"], request.scope["method"]
        server = request.scope.get("server")
        operation = mounts.nearest(path, server[1] if server else None)
        failure = _failure(error, request.app, path, method)
        reply = operation.codec.error(failure)
        service: Service = request.app.state.service
        return Response(
            b"" if method == "HEAD" else reply.body,
            status_code=reply.status,
            media_type=reply.media_type,
            headers=dict((*reply.headers, *status_headers(reply.status), ("x-request-id", service.new_id()))),
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
