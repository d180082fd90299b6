"""The last requests of all workers, for the console: all that have failed, and as many others as people can read.

Each worker writes its own file, mapped into memory, as a ring of slots of a fixed size: an entry is a store to memory.
A slot begins with the entry's number, which is 0 while the slot is written: a reader that finds another number after it
has copied the slot leaves the entry out.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from gateway.storage.mapped_file import map_file

_encode = msgspec.json.Encoder().encode
_SLOTS = 512
_SIZE = 2048
"""Bytes of a slot."""
MOST_A_SECOND = 64
"""Entries of usual requests that a worker writes in a second. Of more, those that have failed would be gone within the
second, and so would all others, before anybody has seen them."""
_HEAD = struct.Struct("<QI")
_COUNT = struct.Struct("<Q")


class LoggedRequest(msgspec.Struct, frozen=True):
    """A request that has ended. It has no text of the client or the model.

    Attributes:
        id: the answer's `x-request-id`.
        time: Unix time in seconds.
        key: the name of the key.
        key_id: of the key, as in records of usage.
        endpoint, arm, backend: who was asked last; null if nobody was.
        assigned: the arm that the request was assigned to, if another was asked last.
        protocol, route, kind, streamed: what was asked.
        status: the HTTP status sent.
        outcome: "ok", "client_gone", "cancelled", or an error's kind.
        stage: where the request was cut; null if it was not.
        message: the error's text; "" without one.
        finish: the finish reasons.
        decoded: seconds until the body was read and the targets were chosen; null if that was not reached.
        first_event, first_token, duration: seconds since the request came; null where unknown.
        prompt_tokens, cached_tokens, completion_tokens: null if the answer did not end.
        cost: null if the served entity has no price.
        cache_hit: whether the answer came out of the endpoint's cache; null: it was not looked for.
        trace_id: of its trace.
        console: whether the console asked.
        parameters: of the request that are not the protocol's defaults.
    """

    id: str
    time: float
    key: str | None
    key_id: str | None
    endpoint: str | None
    arm: str | None
    backend: str | None
    assigned: str | None
    protocol: str
    route: str
    kind: str
    streamed: bool
    status: int
    outcome: str
    stage: str | None
    message: str
    finish: str
    decoded: float | None
    first_event: float | None
    first_token: float | None
    duration: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    cache_hit: bool | None
    trace_id: str | None
    console: bool
    parameters: Mapping[str, object]


class RequestLog:
    """The entries of this worker for writing, and those of all workers for reading.

    Args:
        folder: shared by all workers; None: memory of this process alone.
        slot: the name of this worker's file there, which it continues.
    """

    def __init__(self, folder: Path | None, slot: str) -> None:
        self._folder = folder
        size = _COUNT.size + _SLOTS * _SIZE
        self._cells = map_file(folder / f"{slot}.requests" if folder is not None else None, size)
        (self._number,) = _COUNT.unpack_from(self._cells, 0)
        self._second, self._written = 0, 0

    def takes_usual(self, now: float) -> bool:
        """Count one more usual request; whether its entry is to be written.

        Args:
            now: on the monotonic clock, in seconds.
        """
        second = int(now)
        if second != self._second:
            self._second, self._written = second, 0
        self._written += 1
        return self._written <= MOST_A_SECOND

    def add(self, entry: LoggedRequest) -> None:
        """Write an entry. Of one that is too long the parameters and the rest of the message are left out."""
        data = _encode(entry)
        if len(data) > _SIZE - _HEAD.size:
            data = msgspec.json.encode(msgspec.structs.replace(entry, parameters={}, message=entry.message[:200]))
        if len(data) > _SIZE - _HEAD.size:
            return  # names of hundreds of characters
        number = self._number + 1
        at = _COUNT.size + (number % _SLOTS) * _SIZE
        _HEAD.pack_into(self._cells, at, 0, len(data))
        self._cells[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._cells, at, number, len(data))
        self._number = number
        _COUNT.pack_into(self._cells, 0, number)

    def since(self, position: Mapping[str, int], most: int = _SLOTS) -> tuple[list[bytes], dict[str, int]]:
        """The entries after a position as JSON, those of each worker in order, and the position after them.

        Args:
            position: what an earlier call has returned; {}: all entries that are kept.
            most: entries of a worker that are read: the last ones.
        """
        found: list[bytes] = []
        if self._folder is None:
            return found, {"": _read(self._cells.__getitem__, position.get("", 0), most, found)}
        reached = {}
        for path in sorted(self._folder.glob("*.requests")):
            with path.open("rb", buffering=0) as file:
                # Only the slots that are new: a look that finds nothing reads eight bytes.
                read = partial(_part, file.fileno())
                reached[path.name] = _read(read, position.get(path.name, 0), most, found)
        return found, reached


def _read(part: Callable[[slice], bytes], known: int, most: int, found: list[bytes]) -> int:
    """Append the last `most` entries after the number `known` to `found`; returns the number of the last one."""
    last: int
    (last,) = _COUNT.unpack(part(slice(0, _COUNT.size)))
    for number in range(max(known, last - min(most, _SLOTS)) + 1, last + 1):
        at = _COUNT.size + (number % _SLOTS) * _SIZE
        slot = part(slice(at, at + _SIZE))
        written, length = _HEAD.unpack_from(slot)
        # Read again: the writer may have begun to replace the slot while it was copied.
        if written == number and _COUNT.unpack(part(slice(at, at + _COUNT.size))) == (number,):
            found.append(slot[_HEAD.size : _HEAD.size + length])
    return last


def _part(file: int, of: slice) -> bytes:
    return os.pread(file, of.stop - of.start, of.start)
