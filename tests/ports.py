"""Ports for servers that must have theirs before they listen."""

from __future__ import annotations

import random
import socket

_FROM, _TO = 16_384, 32_767
"""Below those that Linux gives to outgoing connections (ip_local_port_range): none of another test takes one of these
between its choice here and its use.
"""


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().randint(_FROM, _TO)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
