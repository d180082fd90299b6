"""`/ui` and `/docs`: the files of the pages. Their content security policy allows this server only.

`/ui` is the console: ES modules that the browser loads as they are (`ui/README.md`). `/docs` is Swagger UI
(`docs/swagger-ui/README.md`) over `/openapi.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
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
    """Two routes for each page: itself, and its files. None needs a key: the files are the same for everybody."""
    console = {path: _File(file, _CONSOLE_POLICY) for path, file in console_files()}
    docs = {path: _File(_FOLDER / name, _POLICY) for path, name in _DOCS.items()}
    return [*_routes("/ui", console), *_routes("/docs", docs)]


def console_files() -> Iterator[tuple[str, Path]]:
    """The console's files by their paths at this server; the page itself is `/ui`."""
    folder = _FOLDER / "ui"
    for file in sorted(folder.rglob("*")):
        if file.suffix in _KINDS:
            name = file.relative_to(folder).as_posix()
            yield "/ui" if name == "index.html" else f"/ui/{name}", file


class _File:
    """A file as it is sent. It is read once, when it is first asked for: all of them would take 2.5 MB of a worker."""

    def __init__(self, file: Path, policy: str) -> None:
        self._file, self._policy = file, policy

    @cached_property
    def _body(self) -> bytes:
        return self._file.read_bytes()

    @cached_property
    def _headers(self) -> dict[str, str]:
        return {
            "content-security-policy": self._policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
            "etag": f'"{hashlib.sha256(self._body).hexdigest()[:16]}"',
        }

    def answer(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """The file, or that the browser has it."""
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(b"", status_code=304, headers=self._headers)
        return Response(self._body, media_type=_KINDS[self._file.suffix], headers=self._headers)


def _routes(page: str, files: Mapping[str, _File]) -> list[HTTPRouteHandler]:
    @route(page, http_method=READ, include_in_schema=False)
    async def send(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A page in the browser."""
        return files[page].answer(request)

    # One handler for all: Litestar takes 1 ms of each start for a handler. /openapi.json has what a page loads not.
    @route([*files.keys() - {page}], http_method=READ, include_in_schema=False, opt={"undescribed": True})
    async def send_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        return files[request.scope["path"].rstrip("/")].answer(request)

    return [send, send_file]
