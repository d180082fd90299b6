"""``python -m backends.native.cluster``: keeps a gateway's list of a model's engines in a file, for its workers, and
tells the placer how much waits for an engine there.

A process of its own, which the gateway's supervisor starts again when it ends: Ray's client ends its process when it
has lost its cluster for long, and workers must not end with it. While this process or Ray is away, the file stays as it
is.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from backends.native.client.engines_file import count_waiting, waiting_folder
from backends.native.cluster.placement import ModelSpec
from backends.terminal import escaping, renderer

log = structlog.get_logger()

_ATTEMPT = 5.0
"""Seconds for a connection to the head, and between two attempts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Follow the placer's listing until it cannot be had, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backends.native.cluster", description=__doc__)
    parser.add_argument("--ray", required=True, help="HOST:PORT of the cluster's head, or auto")
    parser.add_argument("--file", type=Path, required=True, help="the list of engines")
    parser.add_argument("--spec", required=True, help="the model, as JSON")
    given = parser.parse_args(argv)
    _configure_log()
    spec = msgspec.json.decode(given.spec, type=ModelSpec)
    # The supervisor's: its next process for this model has the same name.
    gateway = f"{socket.gethostname()}-{os.getppid()}"
    waiting_folder(given.file).mkdir(mode=0o700, exist_ok=True)
    _wait_for_head(given.ray)
    # Not before: the import takes a second of CPU time, and the head may be away for hours.
    from backends.native.cluster.ray_cluster import Cluster

    try:
        cluster = Cluster(given.ray)
        follow(lambda seen: cluster.engines(gateway, spec, seen, lambda: count_waiting(given.file)), given.file)
    # A ConnectionError: there is no cluster; a RuntimeError, among others: this machine is none of its nodes.
    except (ConnectionError, LookupError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        log.error("cluster.lost", ray=given.ray, model=spec.name, error=lines[0] if lines else type(error).__name__)
        if isinstance(error, ConnectionError):
            time.sleep(_ATTEMPT)
    return 1


def _wait_for_head(address: str) -> None:
    """Return once something listens at an address of a head; for `auto`, Ray knows where it is."""
    host, _, port = address.rpartition(":")
    while host:
        try:
            socket.create_connection((host, int(port)), _ATTEMPT).close()
        except OSError as error:
            log.warning("cluster.away", ray=address, error=str(error))
            time.sleep(_ATTEMPT)
        else:
            return


def follow(ask: Callable[[bytes], bytes], file: Path) -> None:
    """Keep the file as the placer's listing is, until `ask` raises.

    Args:
        ask: returns the listing once it is another one than its argument, or after a while.
        file: replaced as a whole.
    """
    seen = file.read_bytes() if file.exists() else b""
    while True:
        if (listing := ask(seen)) != seen:
            new = file.with_name(f"{file.name}.new")
            new.write_bytes(listing)
            new.replace(file)
            log.info("engines.listed", file=file.name, engines=listing.count(b"\n"))
            seen = listing


def _configure_log() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *((*escaping(), renderer()) if sys.stderr.isatty() else (structlog.processors.JSONRenderer(),)),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main())
