"""`/ui`: a static page over the public API. Its content security policy allows requests to this server only."""

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
# `data:` is for the page's empty icon. `frame-ancestors`: no page may frame this one to steal clicks.
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
