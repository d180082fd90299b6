"""What the supervisor sends a worker at its start."""

from __future__ import annotations

import msgspec

from gateway.config import Config


class Orders(msgspec.Struct, frozen=True):
    """What the supervisor sends a worker at its start.

    Attributes:
        config: what to serve.
        sockets: inherited file descriptors to listen on.
        log_level: for the log.
        folder: the folder that workers share.
        slot: the name of this worker's files there; it continues those of a worker that ended.
        serving: a file to create once the worker listens, which it then does only when every endpoint can answer.
        heartbeat: the inherited descriptor of a pipe for the heartbeat.
    """

    config: Config
    sockets: tuple[int, ...]
    log_level: str = "info"
    folder: str | None = None
    slot: str | None = None
    serving: str | None = None
    heartbeat: int | None = None
