"""Logging: readable lines on a terminal, JSON lines otherwise. Never a prompt, an answer or a key."""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from select import PIPE_BUF
from typing import Any, BinaryIO

import msgspec
import structlog

from backends.terminal import escaping, renderer

# A safety net by key: no log call passes such a value on purpose. Values under other keys are not searched.
_SECRETS = frozenset(
    ("authorization", "api_key", "key", "keys", "token", "password", "prompt", "messages", "text", "body")
)

_MOST_OF_A_FILE = 1 << 16
"""Bytes that are written to a regular file at once."""

RECEIVERS: list[Callable[[Mapping[str, Any]], None]] = []
"""Who gets each event beside standard error, without secrets and from any thread. They must not wait."""


class _Clock:
    """Adds the time in UTC, as structlog's `TimeStamper` does, which formats the date for each event."""

    def __init__(self) -> None:
        self._last = (-1, "")

    def __call__(self, _: Any, __: str, event: Any) -> Any:
        event["timestamp"] = self.now()
        return event

    def now(self) -> str:
        """The present time."""
        now = time.time()
        second, date = self._last
        if second != int(now):
            second = int(now)
            date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._last = (second, date)  # at once: other threads log, too
        return f"{date}.{int((now - second) * 1_000_000):06d}Z"


class EventLog:
    """Logs events that are dictionaries already, at the level "info": as structlog's loggers do, in half of the time.

    They copy an event's fields four times, and look their configuration up for each event. Between `begin_batch` and
    `end_batch` lines are collected, to be written together.
    """

    def __init__(self) -> None:
        self._processors: list[Any] | None = None
        self._stream: BinaryIO | None = None
        self._most_at_once = PIPE_BUF
        self._clock = _Clock()
        self._batch: list[bytes] | None = None
        self._batch_time = ""

    def configure(self, processors: list[Any], stream: BinaryIO | None) -> None:
        """Write lines of these processors to a stream; None: leave events to structlog."""
        self._processors, self._stream = processors, stream
        self._most_at_once = _most_at_once(stream)

    def info(self, event: dict[str, Any]) -> None:
        """Log an event, whose name is its "event". It has no exception."""
        if self._batch is None and not self._is_as_configured():
            with suppress(BrokenPipeError):  # the reader of standard error may be gone: no request must fail for that
                structlog.get_logger().info(**event)
            return
        # What the processors for JSON do.
        event["level"] = "info"
        event["timestamp"] = self._clock.now() if self._batch is None else self._batch_time
        if not event.keys().isdisjoint(_SECRETS):
            _hide_secrets(None, "info", event)
        for receive in RECEIVERS:
            receive(event)
        line = _encode(event) + b"\n"
        if self._batch is None:
            self._write(line)
        else:
            self._batch.append(line)

    def begin_batch(self) -> None:
        """Collect lines from now on, which get the present time."""
        self._batch, self._batch_time = [] if self._is_as_configured() else None, self._clock.now()

    def end_batch(self) -> None:
        """Write what was collected, with no more bytes at once than the stream takes between other writers' bytes."""
        lines, self._batch = self._batch or (), None
        piece = b""
        for line in lines:
            if len(piece) + len(line) > self._most_at_once:
                self._write(piece)
                piece = b""
            piece += line
        self._write(piece)

    def _is_as_configured(self) -> bool:
        # Tests configure structlog anew, or replace the processors in the list.
        return self._stream is not None and structlog.get_config()["processors"] == self._processors

    def _write(self, data: bytes) -> None:
        if data and self._stream is not None:
            with suppress(BrokenPipeError):  # as above
                self._stream.write(data)
                self._stream.flush()


def _most_at_once(stream: BinaryIO | None) -> int:
    """Bytes that are written at once: a write to a regular file is never split, one to a pipe above `PIPE_BUF` is."""
    try:
        is_file = stream is not None and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # no file descriptor
        is_file = False
    return _MOST_OF_A_FILE if is_file else PIPE_BUF


EVENTS = EventLog()
"""This process's."""


def configure(level: str = "info") -> None:
    """Set up structlog, and the standard library's logging for uvicorn and other libraries, both to standard error.

    Args:
        level: a level of the standard library, in any case; the libraries log warnings only.

    Raises:
        KeyError: there is no such level.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Any] = [
        structlog.stdlib.add_log_level,
        _Clock(),
        _hide_secrets,
        _pass_on,
    ]
    terminal = sys.stderr.isatty()
    if terminal:
        processors += [*escaping(), _shorten, renderer()]
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]
    structlog.configure(
        processors=processors,  # `_hide_secrets` comes before every renderer
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr)
        # JSON is encoded to bytes by msgspec and written as such: no decoding to text and back.
        if terminal
        else structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    EVENTS.configure([*processors], None if terminal or number > logging.INFO else sys.stderr.buffer)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")


def _shorten(_: Any, __: str, event: Any) -> Any:
    """Make one short line of a request: what was asked, who answered, how it ended, how long it took, its tokens."""
    if event.get("event") != "request.finished" or "outcome" not in event:
        return event
    words = [f"{event['protocol']} {event['route']}"]
    if event.get("model"):
        words.append(f"{event['model']}->{event['served']}")
    words += [str(event["status"]), f"{event['duration_s'] * 1000:.0f} ms"]
    if event.get("prompt_tokens") is not None:
        words.append(f"{event['prompt_tokens']}+{event['completion_tokens']} tok")
    if event["outcome"] != "ok":
        words.append(f"{event['outcome']} at {event['stage']} ({event['request_id']})")
    kept = {name: event[name] for name in ("level", "timestamp", "exception") if name in event}
    return kept | {"event": " ".join(words)}


_encode = msgspec.json.Encoder(enc_hook=str).encode  # a value that msgspec cannot encode is logged as its text


def _dumps(event: Any, **_: Any) -> bytes:
    return _encode(event)


def _pass_on(_: Any, __: str, event: Any) -> Any:
    for receive in RECEIVERS:
        receive(event)
    return event


def _hide_secrets(_: Any, __: str, event: Any) -> Any:
    for name in _SECRETS.intersection(event):
        event[name] = "***"
    return event
