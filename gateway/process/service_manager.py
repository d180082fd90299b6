"""What systemd, or another service manager, gets (sd_notify(3)), for units with `Type=notify` or `notify-reload`."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

READY = "READY=1"
STOPPING = "STOPPING=1"
_LONGEST_WAIT = 1.0
"""Seconds that a service manager may leave its queue full: the supervisor has more to do."""


def notify(*fields: str) -> None:
    """Tell the service manager, if one started this process and listens.

    Args:
        fields: each as `NAME=value`, without a line feed.
    """
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end, suppress(OSError):
            end.settimeout(_LONGEST_WAIT)
            # A leading @ stands for the NUL of an abstract address (unix(7)).
            end.sendto("\n".join(fields).encode(), "\0" + path[1:] if path[0] == "@" else path)


def status(text: str) -> str:
    """The field with what `systemctl status` shows."""
    return "STATUS=" + " ".join(text.split())


def notify_reloading() -> None:
    """Tell that a reload has begun; it ends with `READY`."""
    # The time tells this answer from one to an earlier signal.
    notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
