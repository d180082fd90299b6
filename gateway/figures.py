"""`GET /serving-endpoints/{name}/experiment`: what is known of an endpoint's arms. A route of ours, no protocol's."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.service import Service

_PATH = "/serving-endpoints/{}/experiment"


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """One route with a plain path for each endpoint: those with parameters lose against the protocols' mount."""
    paths = {_PATH.format(name): name for name in service.experiments if not set(name) & set("{}")}

    @get(list(paths), include_in_schema=False)
    async def figures(request: Request[Any, Any, Any]) -> Response[bytes]:
        service.keys.check({name.lower(): value for name, value in request.headers.items()})
        report = service.experiments[paths[request.scope["path"]]].report()
        return Response(msgspec.json.encode(report), media_type="application/json")

    return [figures] if paths else []
