"""The admin API of native models, with vLLM's paths: sleep and wake, and LoRA adapters. Routes of no protocol.

`model` names an endpoint; without it, `/sleep` and `/wake_up` are for all native models, and the others for the only
one or the default endpoint's.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.handlers import HTTPRouteHandler

from backends.controls import HasControls, ModelControls
from gateway.access.headers import decode_headers
from gateway.config import Section
from gateway.http.reading.body import read_body
from gateway.service import Service
from schemas.errors import InvalidRequest, ModelNotFound

Asked = Request[Any, Any, Any]
_ADMIN: dict[str, Any] = {"include_in_schema": False, "opt": {"role": "admin"}, "status_code": 200}


class LoadLora(Section, frozen=True):
    """The body of `/v1/load_lora_adapter`. `lora_path` is a folder in the backend's `lora_folder`.

    `load_inplace`: without it, a name that is taken is refused.
    """

    lora_name: Annotated[str, msgspec.Meta(min_length=1)]
    lora_path: Annotated[str, msgspec.Meta(min_length=1)]
    load_inplace: bool = False
    model: str | None = None


class UnloadLora(Section, frozen=True):
    """The body of `/v1/unload_lora_adapter`."""

    lora_name: str
    lora_int_id: int | None = None
    model: str | None = None


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """The routes."""
    return [*_sleep_handlers(service), *_lora_handlers(service)]


def _sleep_handlers(service: Service) -> list[HTTPRouteHandler]:
    @route("/sleep", http_method=HttpMethod.POST, **_ADMIN)
    async def sleep(request: Asked) -> Response[bytes]:
        """Let native models sleep once their requests have ended: `?level=1` frees caches, `2` the weights, too."""
        service.keys.check_admin(decode_headers(request.scope["headers"]))
        query = _query(request)
        if (level := query.get("level", "1")) not in ("1", "2"):
            raise InvalidRequest("The level of sleep must be 1 or 2.", param="level")
        await asyncio.gather(*(each.sleep(int(level)) for each in _named(service, query.get("model"))))
        return Response(b"")

    @route("/wake_up", http_method=HttpMethod.POST, **_ADMIN)
    async def wake_up(request: Asked) -> Response[bytes]:
        """Wake native models; the answer comes once they are ready."""
        service.keys.check_admin(decode_headers(request.scope["headers"]))
        await asyncio.gather(*(each.wake() for each in _named(service, _query(request).get("model"))))
        return Response(b"")

    @route("/is_sleeping", http_method=[HttpMethod.GET, HttpMethod.HEAD], **_ADMIN)
    async def is_sleeping(request: Asked) -> Response[bytes]:
        """Tell whether native models are asleep, and the level of each by its backend's name."""
        service.keys.check_admin(decode_headers(request.scope["headers"]))
        named = _named(service, _query(request).get("model"))
        levels = {name: each.asleep for name, each in _controls(service).items() if each in named}
        return _json({"is_sleeping": all(levels.values()), "levels": levels})

    return [sleep, wake_up, is_sleeping]


def _lora_handlers(service: Service) -> list[HTTPRouteHandler]:
    @route("/v1/load_lora_adapter", http_method=HttpMethod.POST, **_ADMIN)
    async def load(request: Asked) -> Response[bytes]:
        """Load a LoRA adapter from the backend's `lora_folder`; requests may name it as their model."""
        asked = await _read(service, request, LoadLora)
        if asked is None:
            return Response(b"")
        if asked.lora_name in service.catalog.cards:
            raise InvalidRequest(f"An endpoint is called '{asked.lora_name}'.", param="lora_name")
        taken = any(asked.lora_name in backend.capabilities.lora_adapters for backend in service.backends.values())
        if taken and not asked.load_inplace:
            raise InvalidRequest(f"The LoRA adapter '{asked.lora_name}' is loaded already.", param="lora_name")
        await _one(service, asked.model, asked.lora_name).load_lora(asked.lora_name, asked.lora_path)
        return _text(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    @route("/v1/unload_lora_adapter", http_method=HttpMethod.POST, **_ADMIN)
    async def unload(request: Asked) -> Response[bytes]:
        """Unload a LoRA adapter. Requests in flight end with it."""
        asked = await _read(service, request, UnloadLora)
        if asked is None:
            return Response(b"")
        await _one(service, asked.model, asked.lora_name).unload_lora(asked.lora_name)
        return _text(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")

    return [load, unload]


def _controls(service: Service) -> dict[str, ModelControls]:
    return {name: each.controls for name, each in service.backends.items() if isinstance(each, HasControls)}


def _named(service: Service, model: str | None) -> list[ModelControls]:
    """The native models of an endpoint; all without a name.

    Raises:
        schemas.errors.ModelNotFound: there is no such endpoint, or no native model.
    """
    found = _controls(service)
    if model is not None:
        service.refresh()
        card = service.catalog.find(model)
        # What listings call an entity begins with its backend's name.
        used = {each.entity_name.partition("/")[0] for each in card.served_entities} if card is not None else set()
        found = {name: each for name, each in found.items() if name in used}
    if not found:
        what = f"The endpoint '{model}' has no native model." if model is not None else "There is no native model."
        raise ModelNotFound(what, param="model")
    return list(found.values())


def _one(service: Service, model: str | None, lora: str) -> ModelControls:
    """The native model of an endpoint; without a name the one that has the LoRA adapter, or the only one."""
    named = _named(service, model)
    if model is None:
        controls = _controls(service)
        having = [each for name, each in controls.items() if lora in service.backends[name].capabilities.lora_adapters]
        named = having or named
    if len(named) > 1:
        raise InvalidRequest("There are several native models: `model` must name an endpoint of one.", param="model")
    return named[0]


async def _read(service: Service, request: Asked, type: Any) -> Any:
    """The body of an admin's request; None if the client has left."""
    headers = decode_headers(request.scope["headers"])
    service.keys.check_admin(headers)
    body = await read_body(request.receive, headers, service.limits)
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: deeply nested JSON
        raise InvalidRequest(f"The request cannot be read: {error}") from None


def _query(request: Asked) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(request.scope["query_string"].decode("latin-1")).items()}


def _json(said: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(said), media_type="application/json")


def _text(said: str) -> Response[bytes]:
    return Response(said.encode(), media_type="text/plain")
