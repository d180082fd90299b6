"""`/ui` and `/docs`: the files of the pages. Their content security policy allows this server only.

`/ui` is the console: ES modules that the browser loads as they are (`ui/README.md`). `/docs` is Swagger UI
(`docs/swagger-ui/README.md`) over `/openapi.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litestar import Request, Response, route
from litestar.handlers import HTTPRouteHandler

from gateway.http.api.health import READ

_FOLDER = Path(__file__).parent
_KINDS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}
_DOCS = {
    "/docs": "docs/index.html",
    "/docs/docs.js": "docs/docs.js",
    "/docs/swagger-ui.css": "docs/swagger-ui/swagger-ui.css",
    "/docs/swagger-ui-bundle.js": "docs/swagger-ui/swagger-ui-bundle.js",
}
# `data:` is for the icons in the pages and style sheets, and for images that somebody attaches to a question.
# `frame-ancestors`: no page may frame these to steal clicks.
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# No string becomes markup in the console, but what DOMPurify has cleaned.
_CONSOLE_POLICY = f"{_POLICY}; require-trusted-types-for 'script'; trusted-types dompurify"


def handlers() -> list[HTTPRouteHandler]:
    """One route for each file. None needs a key: the files are the same for everybody."""
    # Read once, at startup.
    console = [_handler(path, file, _CONSOLE_POLICY) for path, file in console_files()]
    return [*console, *(_handler(path, _FOLDER / name, _POLICY) for path, name in _DOCS.items())]


def console_files() -> Iterator[tuple[str, Path]]:
    """The console's files by their paths at this server; the page itself is `/ui`."""
    folder = _FOLDER / "ui"
    for file in sorted(folder.rglob("*")):
        if file.suffix in _KINDS:
            name = file.relative_to(folder).as_posix()
            yield "/ui" if name == "index.html" else f"/ui/{name}", file


def _handler(path: str, file: Path, policy: str) -> HTTPRouteHandler:
    body, kind = file.read_bytes(), _KINDS[file.suffix]
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "etag": tag,
    }

    # A page is described in /openapi.json, what it loads is not.
    @route(path, http_method=READ, include_in_schema=False, opt={"undescribed": file.suffix != ".html"})
    async def send(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A file of a page in the browser."""
        if request.headers.get("if-none-match") == tag:
            return Response(b"", status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    return send
