"""Addresses of engines: `unix:///path/of/socket` and `tcp://host:port`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_TCP = re.compile(r"tcp://(?P<host>[^\s/:\[\]]+|\[[0-9A-Fa-f:.%a-z]+\]):(?P<port>\d{1,5})")
_UNIX = "unix://"
_MAX_PORT = 65535


class TcpAddress(msgspec.Struct, frozen=True):
    """A TCP address; `host` is a name or an IP address, an IPv6 one without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        """The address as it is written in options."""
        return f"tcp://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def read_address(text: str) -> TcpAddress | Path:
    """The address of an engine, or the path of its Unix socket.

    Raises:
        ValueError: it is neither.
    """
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return Path(text.removeprefix(_UNIX))
    if (found := _TCP.fullmatch(text)) and int(found["port"]) <= _MAX_PORT:
        return TcpAddress(found["host"].strip("[]"), int(found["port"]))
    raise ValueError(f"'{text}' is no address of an engine: write tcp://HOST:PORT or unix:///PATH")


def unix_address(path: Path) -> str:
    """The address of a Unix socket."""
    return f"{_UNIX}{path}"
