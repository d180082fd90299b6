"""What ASGI and the routes know of a request."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import unquote

from gateway.http.client import FLOW_EXTENSION
from gateway.http.entrance import CERTIFICATE_EXTENSION
from gateway.server.request_head import Head, origin_form


class Connected(Protocol):
    """A client's connection: uvicorn's, with the certificate as in `CERTIFICATE_EXTENSION`; None: without TLS."""

    flow: Any
    server: Any
    client: Any
    scheme: Any
    root_path: Any
    app_state: Any
    certificate: dict[str, Any] | None


def scope_of(connection: Connected, head: Head) -> Any:
    """ASGI's scope of the request with a head."""
    target = head.target if head.target.startswith(b"/") else origin_form(head.target)
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")
    extensions: dict[str, Any] = {FLOW_EXTENSION: {"flow": connection.flow}}
    if connection.certificate is not None:
        extensions[CERTIFICATE_EXTENSION] = connection.certificate
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "server": connection.server,
        "client": connection.client,
        "scheme": connection.scheme,
        "root_path": connection.root_path,
        "method": head.method.decode("ascii"),
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": head.headers.copy(),  # others may change theirs
        "state": connection.app_state.copy(),
        "extensions": extensions,
    }
