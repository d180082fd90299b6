"""The entrance: what is checked of every request before any route, Litestar's and the protocols' alike.

Strategy: without API keys, whoever can reach the server may use it, and every web page can make the browser of somebody
on the same machine send requests to it. A page may send without asking, if it sends what a form could; with DNS
rebinding (its own host name resolves to 127.0.0.1) it can read the answers, too. Both show in headers that a page
cannot change: Host, Origin and Sec-Fetch-Site. With keys nothing of this is checked, since a page does not know one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, cast, get_args

from litestar.config.cors import CORSConfig
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from gateway.config import Role, ServerSection
from gateway.http.client import AsgiClient, Client
from gateway.http.direct.lane import Lane
from gateway.http.routes import Answer, not_allowed, not_found, port_of
from schemas.errors import Forbidden, GatewayError

CERTIFICATE_EXTENSION = "interlingua.certificate"
"""The ASGI extension with the client's certificate, as `ssl.SSLSocket.getpeercert` describes it; {}: it has none."""

_HEALTH = (b"/health", b"/health/ready", b"/ping")
"""What everybody may ask: it tells nothing."""
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_PORT = re.compile(rb":[0-9]*$")

Refuse = Callable[[GatewayError, HTTPScope, Send], Coroutine[Any, Any, None]]


class BrowserGuard:
    """Refuses requests that a foreign web page made a browser send.

    Args:
        server: names the hosts and origins that are not foreign.
    """

    def __init__(self, server: ServerSection) -> None:
        names = {server.host, *server.allowed_hosts}
        # On an address that others reach, the names that it has there are not known: they are checked if listed.
        self._hosts = frozenset(
            name.lower().encode() for name in (*_LOCAL, *names) if server.is_private or server.allowed_hosts
        )
        self._origins = frozenset(origin.lower().encode() for origin in server.cors_origins)

    def check(self, scope: HTTPScope) -> None:
        """Pass a request that no foreign page can have caused.

        Raises:
            schemas.errors.Forbidden: one can.
        """
        headers = dict(scope["headers"])
        host = headers.get(b"host")
        # Only HTTP/1.0 has no Host; no browser speaks it.
        if host is not None and self._hosts and _PORT.sub(b"", host.lower()) not in self._hosts:
            raise Forbidden(f"The host {host.decode('latin-1')!r} is not this server's: see server.allowed_hosts.")
        origin = headers.get(b"origin")
        if origin is not None:
            if origin.lower() in self._origins or b"*" in self._origins:
                return
            if origin.lower().partition(b"://")[2] != (host or b"").lower():
                raise Forbidden(f"The origin {origin.decode('latin-1')!r} may not ask: see server.cors_origins.")
        # Without an Origin: images, scripts and links of another site. A link to the page of this server does no harm.
        if headers.get(b"sec-fetch-site") == b"cross-site" and not (
            headers.get(b"sec-fetch-mode") == b"navigate" and scope["path"] == "/ui"
        ):
            raise Forbidden("Another site's page may not ask: see server.cors_origins.")


class Entrance:
    """An ASGI application in front of Litestar's.

    It hands on requests to the protocols by itself, and our own server asks it without ASGI. On their way through
    Litestar's router and exception handlers they would make 5 % more Python calls, and each chunk of a stream 8 %, for
    nothing: they have no parameters to read, no guards, and their own errors.

    Args:
        inner: Litestar's.
        protocols: what Litestar calls for every path that is not its own; None: Litestar is to call it, since its CORS
            adds headers to those answers, too.
        guard: None where requests need a key.
        methods: those of Litestar's own paths.
        server: says which routes a port has, and whether clients need a certificate on ports that speak TLS.
        role_of: the role that a request needs; None: everybody may send it.
        lane_of: the lane of a request's head; None: there are none.
        answers_preflights: whether Litestar has a CORS configuration.
        refuse: sends an error in the form of the protocol nearest to the path.
    """

    def __init__(
        self,
        inner: ASGIApp,
        protocols: Answer | None,
        guard: BrowserGuard | None,
        methods: Mapping[str, Collection[str]],
        refuse: Refuse,
        lane_of: Callable[[HTTPScope], Lane | None] | None = None,
        *,
        answers_preflights: bool,
        server: ServerSection,
        role_of: Callable[[HTTPScope], Role | None],
    ) -> None:
        self._inner = inner
        self._protocols = protocols
        self._guard = guard
        self._methods = methods
        self._refuse = refuse
        self._lane_of = lane_of
        self._answers_preflights = answers_preflights
        self._needs_certificate = server.ssl_ca_certs is not None
        self._roles = frozenset(server.roles)
        # Others than listeners' are the server's own, which may be any free port.
        self._roles_of_port = {each.port: frozenset(each.roles) for each in server.listeners}
        self._has_all = all(len(each) == len(get_args(Role)) for each in (self._roles, *self._roles_of_port.values()))
        self._role_of = role_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        answer = None
        if scope["type"] == ScopeType.HTTP:
            answer = self.ask(scope, AsgiClient.of(scope, receive, send))
        await (self._inner(scope, receive, send) if answer is None else answer)

    def ask(self, scope: HTTPScope, client: Client) -> Coroutine[Any, Any, None] | None:
        """What answers a request or refuses it; None: Litestar."""
        try:
            self._check(scope)
        except GatewayError as error:
            return self._refuse(error, scope, client.send)
        # An escape may hide one of Litestar's paths.
        if self._protocols is None or scope["path"].rstrip("/") in self._methods or b"%" in scope["raw_path"]:
            return None
        return self._protocols(scope, client)

    def lane(self, scope: HTTPScope) -> Lane | None:
        """The lane of the requests with a head; None: all of them are for `ask`."""
        if self._lane_of is None or self._protocols is None or self._needs_certificate or b"%" in scope["raw_path"]:
            return None
        try:
            self._check(scope)
            return None if scope["path"].rstrip("/") in self._methods else self._lane_of(scope)
        except GatewayError:
            return None

    def _check(self, scope: HTTPScope) -> None:
        path = scope["raw_path"]
        # Litestar would take `//metrics` for `/metrics`; what a proxy in front forbids must not have a second name.
        if b"//" in path:
            raise not_found(path.decode("latin-1"))
        if self._needs_certificate and path not in _HEALTH and _has_no_certificate(scope):
            raise Forbidden("A client certificate is needed here: see server.ssl_ca_certs.")
        if self._guard is not None and path not in _HEALTH:
            self._guard.check(scope)
        if not self._has_all:
            self._check_role(scope)
        if scope["method"] == "OPTIONS" and not self._answers_preflights:
            # Litestar answers OPTIONS by itself, and without a key.
            methods = self._methods.get(scope["path"].rstrip("/"), ())
            if methods:
                raise not_allowed("OPTIONS", [name for name in methods if name != "OPTIONS"])

    def _check_role(self, scope: HTTPScope) -> None:
        allowed = self._roles_of_port.get(port_of(scope) or 0, self._roles)
        if (role := self._role_of(scope)) is not None and role not in allowed:
            raise not_found(scope["raw_path"].decode("latin-1"))


def _has_no_certificate(scope: HTTPScope) -> bool:
    # Ports without TLS have no such extension.
    return cast(Mapping[str, object], scope.get("extensions") or {}).get(CERTIFICATE_EXTENSION) == {}


def cors(server: ServerSection) -> CORSConfig | None:
    """Litestar's CORS for the configured origins; None without them."""
    if not server.cors_origins:
        return None
    return CORSConfig(
        allow_origins=list(server.cors_origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "request-id", "retry-after", "served-model-name", "x-should-retry"],
    )
