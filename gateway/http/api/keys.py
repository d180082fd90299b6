"""The admin API of keys: `/v1/keys` lists and makes them, `/v1/keys/{name}` revokes one. Routes of no protocol."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.types import HTTPScope, Send

from gateway.access.headers import decode_headers
from gateway.access.keys_file import KeyList, Moment, keys_file, new_key, read_keys, revoke_key
from gateway.config import ConfigError, Limit, Role, Section
from gateway.http.api.experiment import Handler
from gateway.http.reading.body import read_body
from gateway.service import Service
from gateway.storage.json_file import JsonFile
from schemas.errors import BackendUnavailable, InvalidRequest, RouteNotFound


class NewKey(Section, frozen=True):
    """The body of a request for a key; its fields are those of `gateway.access.keys_file.Key`."""

    name: str
    roles: tuple[Role, ...] = ("ask",)
    endpoints: tuple[str, ...] = ("*",)
    limits: tuple[Limit, ...] = ()
    expires: Moment | None = None


class Made(msgspec.Struct, frozen=True):
    """The answer: the key's name, and the key, which is shown this once."""

    name: str
    key: str


class Listed(msgspec.Struct, frozen=True):
    """A key in a listing."""

    name: str
    hint: str
    roles: tuple[Role, ...]
    endpoints: tuple[str, ...]
    limits: tuple[Limit, ...]
    created: datetime | None
    expires: datetime | None


def handler(service: Service) -> HTTPRouteHandler:
    """The route `/v1/keys`."""

    @route("/v1/keys", http_method=[HttpMethod.GET, HttpMethod.POST], include_in_schema=False, opt={"role": "admin"})
    async def keys(request: Request[Any, Any, Any]) -> Response[bytes]:
        """List the keys, or make one."""
        headers = decode_headers(request.scope["headers"])
        service.keys.check_admin(headers)
        file = _file(service)
        if request.method == "GET":
            found = await _with_file(read_keys, file)
            shown = [
                Listed(key.name, key.hint, key.roles, key.endpoints, key.limits, key.created, key.expires)
                for key in found
            ]
            return Response(msgspec.json.encode({"keys": shown}), media_type="application/json")
        body = await read_body(request.receive, headers, service.limits)
        if body is None:  # the client has left
            return Response(b"")
        asked = _read(body)
        made = await _with_file(
            new_key,
            file,
            asked.name,
            roles=asked.roles,
            endpoints=asked.endpoints,
            limits=asked.limits,
            expires=asked.expires,
            makes_file=False,
        )
        return Response(msgspec.json.encode(Made(asked.name, made)), media_type="application/json", status_code=201)

    return keys


async def revoke(service: Service, name: str, scope: HTTPScope, send: Send) -> None:
    """Revoke the key `name`.

    Raises:
        schemas.errors.RequestError: a wrong key, or there is no such key.
    """
    service.keys.check_admin(decode_headers(scope["headers"]))
    await _with_file(revoke_key, _file(service), name)
    headers = [(b"x-request-id", service.new_id().encode())]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


PATHS: dict[str, tuple[str, Handler]] = {"/v1/keys/{name}": ("DELETE", revoke)}
"""Path -> method and handler."""


def _file(service: Service) -> JsonFile[KeyList]:
    if (path := service.config.server.keys_file) is None:
        raise RouteNotFound("The server has no `keys_file`, so keys cannot be changed here.")
    return keys_file(Path(path))


async def _with_file(call: Any, *given: Any, **named: Any) -> Any:
    """Read or change the file in a thread: locking and `fsync` block."""
    try:
        return await asyncio.to_thread(call, *given, **named)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The key cannot be made: {error}") from None
    except (ConfigError, OSError) as error:
        raise BackendUnavailable(f"The keys cannot be read or changed: {error}") from None


def _read(body: bytes) -> NewKey:
    try:
        return msgspec.json.decode(body, type=NewKey)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: deeply nested JSON
        raise InvalidRequest(f"The request cannot be read: {error}") from None
