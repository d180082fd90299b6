"""Objects: what clients store by one request and ask for by another, and the steps in which a codec uses them.

An object has a kind, an id, data, and a list of entries (the items of a conversation, the messages of a chat). It
belongs to the API key that made it. Codecs do no I/O: a codec function that needs objects is a generator of steps
(`Steps`), which the gateway carries out one by one, as httpx does for the requests of an authentication flow.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

RESPONSE = "response"
"""The kind of the stored responses, which have no entries."""


RUN = "run"
"""The kind of the objects that stand for answers in the background; their entries are events."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of an object's list, by its id."""

    id: str
    data: bytes


class Page(msgspec.Struct, frozen=True):
    """Consecutive entries of a list, or objects of a kind; `more`: others follow."""

    entries: tuple[Entry, ...] = ()
    more: bool = False


class Span(msgspec.Struct, frozen=True):
    """Which part of a list a page is: at most `limit` entries behind the entry `after`, "" from the beginning.

    A list whose entry `after` is not there is read from its beginning.
    """

    limit: int
    after: str = ""
    newest_first: bool = False


class Get(msgspec.Struct, frozen=True):
    """The data of an object; gives None if there is none."""

    kind: str
    id: str


class Put(msgspec.Struct, frozen=True):
    """Make an object, or replace the one that there is with all of its entries; gives whether it was small enough."""

    kind: str
    id: str
    data: bytes
    entries: tuple[Entry, ...] = ()


class Append(msgspec.Struct, frozen=True):
    """Append entries to an object, and replace its data unless `data` is None; gives whether the object was there."""

    kind: str
    id: str
    entries: tuple[Entry, ...] = ()
    data: bytes | None = None


class Delete(msgspec.Struct, frozen=True):
    """Delete an object with its entries; gives whether there was one."""

    kind: str
    id: str


class ListObjects(msgspec.Struct, frozen=True):
    """A page of the objects of a kind, in the order in which they were made."""

    kind: str
    span: Span


class ListEntries(msgspec.Struct, frozen=True):
    """A page of an object's entries; gives None if there is no such object."""

    kind: str
    id: str
    span: Span


class GetEntry(msgspec.Struct, frozen=True):
    """The data of one entry; gives None if there is none."""

    kind: str
    id: str
    entry: str


class DeleteEntry(msgspec.Struct, frozen=True):
    """Delete one entry; gives whether there was one."""

    kind: str
    id: str
    entry: str


class FindRun(msgspec.Struct, frozen=True):
    """What became of an answer in the background, as a `RunState`; None: another gateway may be making it."""

    id: str


class EndRun(msgspec.Struct, frozen=True):
    """Take an answer in the background away from its worker; gives how many events it has, None if it was over.

    Whoever took it is to end it with `CloseRun`.
    """

    id: str


class CloseRun(msgspec.Struct, frozen=True):
    """Store what became of an answer that `EndRun` took, and write its last event, the `number`-th."""

    id: str
    data: bytes
    number: int
    event: bytes


class RunState(msgspec.Struct, frozen=True):
    """An answer in the background: "queued" or "running" in a worker, "lost" with its worker, "ended", or "cut".

    A "cut" one has ended, but not all of its events are kept.
    `streams`: whether its events are kept, for clients to read.
    """

    state: Literal["queued", "running", "lost", "ended", "cut"]
    streams: bool = False


Step = Get | Put | Append | Delete | ListObjects | ListEntries | GetEntry | DeleteEntry | FindRun | EndRun | CloseRun
Steps = Generator[Step, object, T]
"""A generator of steps that gets the result of each, and returns its own."""


class Follow(msgspec.Struct, frozen=True):
    """A reply that is the event stream of an answer in the background, from the event number `begin` to its end."""

    id: str
    begin: int
    media_type: str
    headers: tuple[tuple[str, str], ...]
