"""Who changed an endpoint, when, and to what: one line of JSON for each change, in a file that workers share.

The file stands beside the state file. It is a record for people: nothing that is served depends on it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

import msgspec
import structlog

from gateway.deployment.deployments import Deployment

log = structlog.get_logger()

_SHOWN = 200
"""Changes of an endpoint that are shown."""


class ChangeEntry(msgspec.Struct, frozen=True):
    """A change.

    Attributes:
        time: Unix time in seconds.
        endpoint: what was changed.
        action: "create", "update", "delete", "configure", "reset" (of figures) or "restart_ramp".
        by: the name of the key; "" if it is not known.
        before: percentages of the traffic by served entity.
        after: likewise; empty for a deleted endpoint.
        version: of the configuration after it; 0: it waits for its backends.
    """

    time: float
    endpoint: str
    action: str
    by: str
    before: dict[str, int]
    after: dict[str, int]
    version: int = 0


class ChangeLog:
    """The changes of all endpoints.

    Args:
        state_file: the log's path is this one with `.changes`; None: nothing can be changed.
    """

    def __init__(self, state_file: str | None) -> None:
        self._path = Path(f"{state_file}.changes") if state_file is not None else None

    def note(self, endpoint: str, action: str, by: str, before: Deployment | None, after: Deployment | None) -> None:
        """Write a change that has been made. If that fails, it is logged: the change is in force."""
        if self._path is None:
            return
        version = after.version if after is not None else 0
        entry = ChangeEntry(time.time(), endpoint, action, by, _split(before), _split(after), version)
        try:
            # One write at the end of the file (O_APPEND), so that lines of several workers do not mix.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, msgspec.json.encode(entry) + b"\n")
            finally:
                os.close(file)
        except OSError as error:
            log.error("change.not_noted", model=endpoint, error=str(error))

    def of(self, endpoint: str) -> list[ChangeEntry]:
        """The last changes of an endpoint, the newest first."""
        found: deque[ChangeEntry] = deque(maxlen=_SHOWN)
        if self._path is not None and self._path.exists():
            for line in self._path.read_bytes().splitlines():
                entry = _read(line)
                if entry is not None and entry.endpoint == endpoint:
                    found.appendleft(entry)
        return list(found)


def _split(deployment: Deployment | None) -> dict[str, int]:
    if deployment is None:
        return {}
    endpoint = deployment.pending or deployment.serving
    return {entity.name: entity.traffic_percentage for entity in endpoint.served_entities}


def _read(line: bytes) -> ChangeEntry | None:
    try:
        return msgspec.json.decode(line, type=ChangeEntry)
    except msgspec.DecodeError:
        return None  # the disk was full while it was written
