"""The listening sockets: opened here, or taken over from systemd or from a supervisor before this one.

Sockets are handed over as systemd does (sd_listen_fds(3)): they are the descriptors from 3 on, LISTEN_FDS says how
many, and LISTEN_PID for which process.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import MutableMapping

from gateway.config import Config, ConfigError

FIRST_DESCRIPTOR = 3
"""Of those that are handed over."""
_MOST_UNSENT = 128 * 1024  # bytes of a connection that the kernel takes before they can be sent
_BACKLOG = 2048  # uvicorn's default


def addresses(config: Config) -> list[tuple[str, int]]:
    """The host and port of each socket that a configuration asks for; that for gRPC is the last."""
    server = config.server
    found = [(server.host, server.port), *((each.host or server.host, each.port) for each in server.listeners)]
    if server.grpc is not None:
        found.append((server.grpc.host or server.host, server.grpc.port))
    return found


def listen(config: Config) -> list[socket.socket]:
    """The sockets of a configuration: those that this process was started with, else new ones.

    The one for gRPC only keeps the port: workers listen on it by themselves (`gateway.grpc.server`), which is why
    systemd has none to hand over.

    Raises:
        ConfigError: an address cannot be listened on, or the process was started with sockets for other addresses.
    """
    all_wanted = addresses(config)
    wanted = all_wanted if config.server.grpc is None else all_wanted[:-1]
    found = handed_over(os.environ)
    if found:
        listening, reserved = found[: len(wanted)], found[len(wanted) :]
        fits = len(listening) == len(wanted) and all(map(_is_for, listening, wanted))
        if not fits or (reserved and not (len(found) == len(all_wanted) and _has(reserved[0], all_wanted[-1]))):
            bound = ", ".join(":".join(map(str, each.getsockname()[:2])) for each in found)
            raise ConfigError(f"the process was started with sockets for {bound}: the configuration names other ones")
    else:
        found = _open(wanted)
    if len(found) < len(all_wanted):
        found.append(_reserved(*all_wanted[-1]))
    for listener in found:
        # Accepted connections inherit it. Without it the kernel keeps up to 4 MB (tcp(7), tcp_wmem) of an answer that
        # its reader does not take; what is on its way to a reader that does is not bounded by it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT)
    return found


def handed_over(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """The sockets that this process was started with. What tells of them is taken out of the environment."""
    count, pid = (environment.pop(name, "") for name in ("LISTEN_FDS", "LISTEN_PID"))
    environment.pop("LISTEN_FDNAMES", None)
    # Meant for a parent of this process, whose environment it has inherited, but not its descriptors.
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    sockets = [socket.socket(fileno=number) for number in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))]
    for each in sockets:
        each.set_inheritable(False)
    return sockets


def _is_for(listener: socket.socket, address: tuple[str, int]) -> bool:
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and _has(listener, address)


def _has(listener: socket.socket, address: tuple[str, int]) -> bool:
    host, port = address
    bound = listener.getsockname()
    # Port 0: whatever port was found free. The host must be the same: whether a key is needed depends on it.
    try:
        hosts = {found[4][0] for found in socket.getaddrinfo(host, port, listener.family)}
    except OSError:
        return False
    return bound[0] in hosts and port in (0, bound[1])


def _open(wanted: list[tuple[str, int]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    for host, port in wanted:
        try:
            sockets.append(_bound(host, port, shared=False))
        except ConfigError:
            for opened in sockets:
                opened.close()
            raise
        sockets[-1].listen(_BACKLOG)
    return sockets


def _reserved(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for those of workers, which share it.

    Raises:
        ConfigError: somebody else has it.
    """
    # First as others would: sockets that share a port, as another server's may, would divide its connections.
    with _bound(host, port, shared=False) as probe:
        port = int(probe.getsockname()[1])
    return _bound(host, port, shared=True)


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket with this address; a shared one lets others have it, too.

    Raises:
        ConfigError: somebody else has it.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    # A restarted server can bind while connections of its predecessor are in TIME_WAIT.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        hint = "; --port 0 takes a free port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from None
    return found
