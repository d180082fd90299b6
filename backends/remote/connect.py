"""The client of a remote server, as a backend's options describe it: its secrets, certificates and connection settings.

The direct client is chosen unless the options, or the environment's proxy, need the general one.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adapters.base import Headers
from backends.remote.options import FromEnvironment, RemoteOptions, Value
from backends.remote.resilience.key_ring import Key, KeyRing
from backends.transport import Exchanger, Transport, check_headers, check_proxy, environment_proxy, split_url
from schemas.errors import GatewayError

MISSING = "a package is missing: pip install 'interlingua[{}]'"


@dataclass(frozen=True, slots=True)
class Connected:
    """The clients of one server.

    Attributes:
        requests: for requests.
        checks: for health checks; may be the same.
        secrets: what no error may repeat.
        proxy: the URL of the proxy, without user and password; "" if there is none.
    """

    requests: Exchanger
    checks: Exchanger
    secrets: tuple[str, ...] = ()
    proxy: str = ""

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self.requests.aclose()
        await self.checks.aclose()

    def redact(self, error: GatewayError) -> GatewayError:
        """Remove the secrets from an error: a server may repeat the headers it was sent."""
        for secret in self.secrets:
            error.message = error.message.replace(secret, "***")
            error.args = (error.message,)  # `str(error)`, and so a traceback, reads `args`
            error.param = error.param and error.param.replace(secret, "***")
            error.code = error.code and error.code.replace(secret, "***")
        return error


Connecting = Callable[[str, RemoteOptions], Connected]
"""Makes the clients of a server, from the backend's name, for the log, and its options."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What all clients of a server have in common, read from its backend's options.

    Attributes:
        keys: the server's keys.
        headers: those of every request; of a server with one key, that, too.
        proxy: the proxy's URL; "" if there is none.
        secrets: what no error may repeat.
    """

    keys: tuple[Key, ...]
    headers: Headers
    proxy: str
    secrets: tuple[str, ...]

    def connected(self, name: str, requests: Exchanger, checks: Exchanger) -> Connected:
        """The clients, with the server's keys in turn if it has several."""
        if len(self.keys) > 1:
            requests, checks = KeyRing(name, requests, self.keys), KeyRing(name, checks, self.keys)
        return Connected(requests, checks, self.secrets, _without_user(self.proxy))


def read_settings(options: RemoteOptions) -> ConnectionSettings:
    """What the options say of connections to the server.

    Raises:
        ValueError: a secret, a header or the proxy cannot be used.
    """
    keys = read_keys(options)
    headers, proxy = read_headers(options), read_proxy(options)
    if len(keys) == 1:
        headers = (*headers, keys[0].header)
    return ConnectionSettings(keys, headers, proxy, (*(key.value for key in keys), *_secret_values(options)))


def connect(name: str, options: RemoteOptions) -> Connected:
    """The clients of the server. Nothing is sent yet.

    Args:
        name: the backend's name, for the log.
        options: of the backend.

    Raises:
        ValueError: a secret, a header or the proxy cannot be used, or a package is missing.
        OSError: a certificate cannot be read.
    """
    settings = read_settings(options)
    context = make_context(options)
    if context is None and split_url(options.url).scheme == "https":
        context = ssl.create_default_context()  # once for both clients: it reads the system's certificates
    common: dict[str, Any] = {
        "headers": settings.headers,
        "limits": options.limits,
        "connect_timeout": options.timeouts.connect,
        "tls": context,
    }
    # Imported here: httpx costs a process that only checks options a third of its start.
    from backends.transport.general import GeneralTransport

    try:
        general = GeneralTransport(
            options.url, **common, proxy=settings.proxy, http2=options.http2, unix_socket=options.unix_socket
        )
    except ImportError as error:  # httpx names it
        raise ValueError(MISSING.format("http2" if "h2" in str(error) else "socks")) from None
    needs_general = settings.proxy or options.http2 or options.unix_socket is not None
    requests: Exchanger = general if needs_general else Transport(options.url, **common, general=general)
    return settings.connected(name, requests, general)


def problems_of(options: RemoteOptions) -> Iterator[tuple[tuple[str, ...], str]]:
    """What `connect` would refuse: the path of each option, and why. Secrets are read, and nothing is sent."""
    for variable in options.key_variables:
        yield from _tried(("api_key_env",), lambda variable=variable: read_variable(variable))  # type: ignore[misc]
    for name, value in options.headers.items():
        yield from _tried(("headers", name), lambda name=name, value=value: _header(name, value))  # type: ignore[misc]
    yield from _tried(("proxy",), lambda: read_proxy(options))
    if options.http2 and find_spec("h2") is None:
        yield ("http2",), MISSING.format("http2")
    if str(options.proxy).startswith("socks") and find_spec("socksio") is None:
        yield ("proxy",), MISSING.format("socks")
    for key in ("ca_file", "extra_ca_file", "client_cert", "client_key"):
        path = getattr(options, key)
        if path is not None and not Path(path).is_file():
            yield (key,), f"there is no file {path}"
            return
    yield from _tried(("client_cert" if options.client_cert else "ca_file",), lambda: make_context(options))
    for key in ("tokenizer", "chat_template"):
        path = getattr(options, key)
        # A template may be given itself; it has braces, which no name of a file has.
        if path is not None and "{" not in path and not Path(path).exists():
            yield (key,), f"there is no file or folder {path}"


def _tried(path: tuple[str, ...], read: Callable[[], object]) -> Iterator[tuple[tuple[str, ...], str]]:
    try:
        read()
    except (ValueError, OSError) as error:
        yield path, str(error)


def read_variable(name: str) -> str:
    """The value of an environment variable.

    Raises:
        ValueError: it is not set.
    """
    if not name.isidentifier():
        # Without repeating it: it may be a key.
        raise ValueError("the name of an environment variable is wanted, not a key; export the key under a name")
    # Stripped: a key read from a file often ends in a line feed, which no header may hold.
    value = os.environ.get(name, "").strip()
    if not value:
        raise ValueError(f"the environment variable {name} is not set")
    return value


def read_keys(options: RemoteOptions) -> tuple[Key, ...]:
    """The server's keys, each with the header that carries it.

    Raises:
        ValueError: an environment variable is not set.
    """

    def key(variable: str) -> Key:
        value = read_variable(variable)
        in_header = (options.key_header, value) if options.key_header else ("authorization", f"Bearer {value}")
        return Key(variable, value, in_header)

    return tuple(key(variable) for variable in options.key_variables)


def read_headers(options: RemoteOptions) -> Headers:
    """The headers of every request, those from the environment included.

    Raises:
        ValueError: an environment variable is not set, or a header cannot be sent.
    """
    return tuple(_header(name, value) for name, value in options.headers.items())


def read_proxy(options: RemoteOptions) -> str:
    """The URL of the proxy; "" if there is none.

    Raises:
        ValueError: it is no URL of a proxy.
    """
    if options.unix_socket is not None or options.proxy == "direct":
        return ""
    if options.proxy is None:
        found = environment_proxy(split_url(options.url), os.environ)
        return check_proxy(found) if found else ""
    return check_proxy(_read(options.proxy))


def make_context(options: RemoteOptions) -> ssl.SSLContext | None:
    """What TLS uses; None for the default.

    Raises:
        OSError: a certificate or key cannot be read.
    """
    if not (options.ca_file or options.extra_ca_file or options.client_cert):
        return None
    context = ssl.create_default_context(cafile=options.ca_file)
    if options.extra_ca_file is not None:
        context.load_verify_locations(options.extra_ca_file)
    if options.client_cert is not None:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(options.client_cert, options.client_key, password="")
    return context


def _header(name: str, value: Value) -> tuple[str, str]:
    header = (name, _read(value))
    check_headers((header,))
    return header


def _read(value: Value) -> str:
    return read_variable(value.env) if isinstance(value, FromEnvironment) else value


def _secret_values(options: RemoteOptions) -> tuple[str, ...]:
    given = (*options.headers.values(), options.proxy)
    return tuple(_read(value) for value in given if isinstance(value, FromEnvironment))


def _without_user(proxy: str) -> str:
    scheme, separator, rest = proxy.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
