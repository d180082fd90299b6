"""The section `server`: how the server listens, authenticates and ends."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

import msgspec

from gateway.config.base import Count, Delay, Port, Seconds, Section

Role = Literal["ask", "metrics", "admin"]
"""What a key may do, and which routes a port has. `ask`: requests to models. `metrics`: `/metrics` and reports.
`admin`: changes of endpoints, models and keys; such a key may do the others, too.
"""
Roles = Annotated[tuple[Role, ...], msgspec.Meta(min_length=1)]


class Mount(Section, frozen=True):
    """A path prefix below which every route exists again, in other dialects (protocol -> dialect).

    `endpoint` answers the requests below it that name no model; None: the server's default.
    """

    prefix: Annotated[str, msgspec.Meta(pattern=r"^(/[^/?#{}\s]+)+/?$")]
    dialects: dict[str, str] = msgspec.field(default_factory=dict)
    endpoint: str | None = None


class Listener(Section, frozen=True):
    """Another port, with other dialects, another `endpoint` for requests that name no model, or only some routes.

    `roles` name the routes that it has, beside health checks and the page. `host`: None: the server's.
    `tls` matters where the server has a certificate: false listens without it, for a scraper on the same machine.
    """

    port: Port
    dialects: dict[str, str] = msgspec.field(default_factory=dict)
    endpoint: str | None = None
    tls: bool = True
    roles: Roles = ("ask", "metrics", "admin")
    host: str | None = None


class Grpc(Section, frozen=True):
    """A port for clients that speak gRPC. `host`: None: the server's. `tls` is as of a listener."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8001
    host: str | None = None
    tls: bool = True


class Limits(Section, frozen=True):
    """Limits of requests and connections. Sizes in bytes, times in seconds.

    Attributes:
        max_request_line: of method, target and version; more is refused with 414.
        max_header_bytes: of all headers together; more is refused with 431.
        max_headers: how many; more are refused with 431.
        header_timeout: from the connection's first byte, or from its beginning, to the end of the headers.
        write_stall: for which a client may take nothing of its answer; then its connection and its work are ended.
        max_connections: of one worker; at most half of the files that the process may open.
        max_requests_per_connection: the last one's answer ends the connection.
        max_body: of a request's body.
        max_image_body: of a body with images as base64.
        body_idle: between two pieces of a body.
        body_rate: bytes a second of a body on average, once it takes longer than `body_idle`.
        body_total: for the whole body.
        max_concurrent_requests: of one worker; more are refused.
        stored_responses: of everything kept for `/v1/responses/{id}`; 0 keeps nothing.
        stored_objects: of conversations, stored chat completions and the events of answers in the background; 0 keeps
            nothing.
        object_age: after its last change an object of these is deleted.
    """

    max_request_line: Count = 16 * 1024
    max_header_bytes: Count = 64 * 1024
    max_headers: Count = 100
    header_timeout: Seconds = 10.0
    write_stall: Seconds = 30.0
    max_connections: Count = 8192
    max_requests_per_connection: Count = 1000
    max_body: Count = 16 * 1024 * 1024
    max_image_body: Count = 32 * 1024 * 1024
    body_idle: Seconds = 10.0
    body_rate: Count = 4096
    body_total: Seconds = 60.0
    max_concurrent_requests: Count = 1024
    stored_responses: Annotated[int, msgspec.Meta(ge=0)] = 64 * 1024 * 1024
    stored_objects: Annotated[int, msgspec.Meta(ge=0)] = 256 * 1024 * 1024
    object_age: Seconds = 30 * 86400.0


class Export(Section, frozen=True):
    """One row per request, in files of JSON lines.

    Attributes:
        folder: for the files of all workers.
        text: whether rows have the client's body and the answer's text.
        max_bytes: of a file; then a worker begins a new one.
        files: kept in the folder, those of all workers together; older ones are removed.
    """

    folder: str
    text: bool = False
    max_bytes: Count = 64 * 1024 * 1024
    files: Count = 64


class ServerSection(Section, frozen=True):
    """How the server listens, authenticates and ends. Times in seconds.

    Attributes:
        host, port: to listen on; port 0 picks a free one.
        workers: number of HTTP processes.
        default: the endpoint that answers requests which name no model; None: the first.
        roles: which routes the port has: those for asking models, for reading metrics and experiments, for admins.
            Health checks and the page are on every port.
        dialects: protocol -> dialect, where it is not the protocol's first.
        strict: refuses unknown fields in all dialects, which otherwise a header names.
        dialect_options: dialect -> fields of its table to override.
        mounts: path prefixes with other dialects, or another default endpoint.
        listeners: more ports, likewise.
        grpc: a port for clients that speak gRPC.
        ssl_certfile: the certificate, with those of its chain (PEM); the server then speaks HTTPS. It and the next two
            are read again when they change.
        ssl_keyfile: its private key; None: it is in `ssl_certfile`.
        ssl_keyfile_password_env: environment variable with the password of an encrypted key.
        ssl_ca_certs: authorities (PEM): clients need a certificate of one of them, except for health checks.
        limits: of requests.
        allowed_hosts: further names of this server in `Host`, where requests need no key.
        endpoint_picker_header: header with `HOST:PORT` of the servers or engines that an endpoint picker in front has
            chosen, the best one first; None: clients have no say in it.
        cors_origins: origins whose pages may use the server from a browser; "*": all.
        keys_env: environment variable with the API keys, separated by commas.
        admin_keys_env: the same for keys that may also change endpoints and models while the server runs.
        keys_file: named keys with roles, endpoints and limits of their own; `gateway keys` makes them.
        state_file: keeps the changes of endpoints, which are refused without it.
        storage_folder: for what clients have stored (responses, conversations, chat completions), which then outlasts
            the server; None: it ends with the server.
        drain_delay: between SIGTERM and the end of accepting connections.
        drain_timeout: for running requests to finish.
        keep_alive: that an idle connection is kept.
        hung_after: of silence of a worker's event loop, after which the worker is killed and replaced.
        metrics: whether there is `/metrics`.
        export: writes a row per request.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    default: str | None = None
    roles: Roles = ("ask", "metrics", "admin")
    dialects: dict[str, str] = msgspec.field(default_factory=dict)
    strict: bool = False
    dialect_options: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    listeners: tuple[Listener, ...] = ()
    grpc: Grpc | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password_env: str | None = None
    ssl_ca_certs: str | None = None
    limits: Limits = Limits()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[Annotated[str, msgspec.Meta(pattern=r"^(\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^/*]*)$")], ...] = ()
    endpoint_picker_header: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+$")] | None = None
    keys_env: str | None = None
    admin_keys_env: str | None = None
    keys_file: str | None = None
    state_file: str | None = None
    storage_folder: str | None = None
    drain_delay: Delay = 0.0
    drain_timeout: Delay = 600.0
    keep_alive: Count = 75
    hung_after: Seconds = 15.0
    metrics: bool = True
    export: Export | None = None

    @property
    def needs_key(self) -> bool:
        """Whether requests need an API key."""
        return self.keys_env is not None or self.keys_file is not None

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach the addresses."""
        hosts: list[str | None] = [self.host, *(each.host for each in self.listeners)]
        if self.grpc is not None:
            hosts.append(self.grpc.host)
        return all(_is_loopback(host) for host in hosts if host is not None)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another host name: it may be public
        return False
