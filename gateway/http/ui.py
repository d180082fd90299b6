"""`/ui` and `/docs`: static pages over the public API. Their content security policy allows this server only.

`/ui` shows requests and streams. `/docs` is Swagger UI (`docs/swagger-ui/README.md`) over `/openapi.json`.
"""

from __future__ import annotations

from pathlib import Path

from litestar import Response, route
from litestar.handlers import HTTPRouteHandler

from gateway.http.api.health import READ

_FOLDER = Path(__file__).parent
_FILES = {
    "/ui": ("ui/index.html", "text/html"),
    "/ui/style.css": ("ui/style.css", "text/css"),
    "/ui/app.js": ("ui/app.js", "text/javascript"),
    "/docs": ("docs/index.html", "text/html"),
    "/docs/docs.js": ("docs/docs.js", "text/javascript"),
    "/docs/swagger-ui.css": ("docs/swagger-ui/swagger-ui.css", "text/css"),
    "/docs/swagger-ui-bundle.js": ("docs/swagger-ui/swagger-ui-bundle.js", "text/javascript"),
}
# `data:` is for the icons in the pages and style sheets. `frame-ancestors`: no page may frame these to steal clicks.
_POLICY = "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}


def handlers() -> list[HTTPRouteHandler]:
    """One route for each file. None needs a key: the files are the same for everybody."""
    # Read once, at startup.
    return [_handler(path, (_FOLDER / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()]


def _handler(path: str, body: bytes, kind: str) -> HTTPRouteHandler:
    @route(path, http_method=READ, include_in_schema=False)
    async def file() -> Response[bytes]:
        """A file of a page in the browser."""
        return Response(body, media_type=kind, headers=_HEADERS)

    return file
