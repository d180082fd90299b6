"""`/ui`: a page over the API that everybody uses. Static files: they hold no key and ask nobody but this server."""

from __future__ import annotations

from pathlib import Path

from litestar import Response, route
from litestar.handlers import HTTPRouteHandler

from gateway.http.health import READ

_FOLDER = Path(__file__).parent / "ui"
_FILES = {
    "/ui": ("index.html", "text/html"),
    "/ui/style.css": ("style.css", "text/css"),
    "/ui/app.js": ("app.js", "text/javascript"),
}
_POLICY = "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}


def handlers() -> list[HTTPRouteHandler]:
    """One route a file; none wants a key, since the files tell nothing."""
    return [_handler(path, (_FOLDER / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()]


def _handler(path: str, body: bytes, kind: str) -> HTTPRouteHandler:
    @route(path, http_method=READ, include_in_schema=False)
    async def file() -> Response[bytes]:
        return Response(body, media_type=kind, headers=_HEADERS)

    return file
