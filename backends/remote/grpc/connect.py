"""The client of a server that speaks gRPC, as a backend's options describe it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit

from backends.remote.connect import MISSING, Connected, make_context, problems_of, read_proxy, read_settings
from backends.remote.options import RemoteOptions


def connect_rpc(name: str, options: RemoteOptions) -> Connected:
    """The client of the server, for requests and health checks. Nothing is sent yet.

    Args:
        name: the backend's name, for the log.
        options: of the backend.

    Raises:
        ValueError: a secret, a header, the URL or the proxy cannot be used, or a package is missing.
        OSError: a certificate cannot be read.
    """
    if not is_installed():
        raise ValueError(MISSING.format("grpc"))
    # Imported here: gRPC's library costs a process that does not use it 20 MB.
    from backends.transport.rpc import RpcTransport

    settings, certificate = read_settings(options), None
    if options.client_cert is not None:
        certificate = (options.client_cert, options.client_key or options.client_cert)
    client = RpcTransport(
        options.url,
        headers=settings.headers,
        limits=options.limits,
        connect_timeout=options.timeouts.connect,
        tls=make_context(options),
        certificate=certificate,
        proxy=settings.proxy,
        unix_socket=options.unix_socket,
    )
    return settings.connected(name, client, client)


def rpc_problems_of(options: RemoteOptions) -> Iterator[tuple[tuple[str, ...], str]]:
    """What `connect_rpc` would refuse: the path of each option, and why. Secrets are read, and nothing is sent."""
    yield from problems_of(options)
    if urlsplit(options.url).path.strip("/"):
        yield ("url",), "the URL of a server that speaks gRPC has no path"
    try:
        proxy = read_proxy(options)
    except ValueError:  # one of the problems above
        return
    if proxy and not proxy.startswith("http:"):
        yield ("proxy",), "gRPC goes through HTTP proxies only"


def is_installed() -> bool:
    """Whether gRPC's packages are there."""
    return (
        find_spec("grpc") is not None and find_spec("google") is not None and find_spec("google.protobuf") is not None
    )
