"""What API keys have stored, in both stores: carries out the steps of codecs, and keeps what is stored of answers."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeVar

import structlog

from adapters.base import Record
from adapters.objects import (
    RESPONSE,
    Append,
    CloseRun,
    Delete,
    DeleteEntry,
    EndRun,
    FindRun,
    Get,
    GetEntry,
    ListEntries,
    ListObjects,
    Put,
    RunState,
    Span,
    Step,
    Steps,
)
from gateway.config import ServerSection
from gateway.storage.objects.runs import KeyRuns, Leases
from gateway.storage.objects.store import OF_NO_CLIENT, KeyObjects, ObjectStore, TooLarge
from gateway.storage.response_store import KeyResponses, ResponseStore
from gateway.storage.shared.responses import SharedKeyResponses, SharedResponses
from gateway.storage.shared.state_server import StateServer
from schemas.errors import BodyTooLarge, UnsupportedFeature

T = TypeVar("T")

log = structlog.get_logger()

_ENTRIES_AT_ONCE = 1000
_KEYS_KNOWN = 256


class Stores:
    """The stores of all workers.

    Args:
        server: bounds them.
        folder: shared by all workers; None: the stores are this worker's alone, and nothing is left on the disk.
        state: where responses are, for all gateways; None: in the folder.
    """

    def __init__(self, server: ServerSection, folder: Path | None, state: StateServer | None = None) -> None:
        limits = server.limits
        if server.storage_folder is not None:
            folder = Path(server.storage_folder)
        elif folder is not None:
            folder /= "responses"
        file = folder / "objects.sqlite3" if folder is not None else None
        self._responses: ResponseStore | SharedResponses | None = None
        if limits.stored_responses and state is not None:
            self._responses = SharedResponses(state, limits.stored_responses, limits.object_age)
        elif limits.stored_responses:
            self._responses = ResponseStore(limits.stored_responses, folder)
        self._objects = ObjectStore(limits.stored_objects, limits.object_age, file) if limits.stored_objects else None
        self._known: dict[str, KeyStores] = {}
        self._leases = Leases(self._objects.of(OF_NO_CLIENT)) if self._objects is not None else None

    async def renew(self) -> None:
        """Renew this worker's lease on the answers that it makes in the background."""
        if self._leases is not None:
            await self._leases.renew()

    def of(self, key: str) -> KeyStores:
        """What an API key has stored; "" stands for requests without one."""
        if (known := self._known.get(key)) is not None:
            return known
        made = KeyStores(
            self._responses.of(key) if self._responses is not None else None,
            self._objects.of(key) if self._objects is not None else None,
            self._leases,
        )
        if not isinstance(self._responses, SharedResponses):  # what one request has fetched is for it alone
            if len(self._known) >= _KEYS_KNOWN:
                self._known.clear()
            self._known[key] = made
        return made

    def close(self) -> None:
        """Close the stores."""
        if self._responses is not None:
            self._responses.close()
        if self._objects is not None:
            self._objects.close()


class KeyStores:
    """What one API key has stored.

    Attributes:
        responses: None: no responses are stored.
        keeps: whether there are objects.

    Args:
        responses: likewise.
        objects: everything else; None: nothing else is stored.
        leases: of the workers that make answers in the background.
    """

    __slots__ = ("_leases", "_objects", "keeps", "responses")

    def __init__(
        self,
        responses: KeyResponses | SharedKeyResponses | None,
        objects: KeyObjects | None,
        leases: Leases | None = None,
    ) -> None:
        self.responses = responses
        self.keeps = objects is not None
        self._objects = objects
        self._leases = leases

    async def carry_out(self, steps: Steps[T]) -> T:
        """Carry out a codec's steps, and return what they return.

        Raises:
            schemas.errors.RequestError: the codec refuses the request, or an object would be too large.
            OSError, sqlite3.Error: the store cannot be used.
        """
        result: object = None
        try:
            while True:
                result = await self._do(steps.send(result))
        except StopIteration as end:
            done: T = end.value
            return done
        except TooLarge:
            raise BodyTooLarge("This would be larger than what the server stores of one object.") from None

    async def entries(self, kind: str, id: str) -> tuple[bytes, ...] | None:
        """All entries of an object, in order; None if there is no such object."""
        found: list[bytes] = []
        span = Span(_ENTRIES_AT_ONCE)
        while True:
            page = await self.objects.entries(kind, id, span)
            if page is None:
                return None
            found += [entry.data for entry in page.entries]
            if not page.more:
                return tuple(found)
            span = Span(_ENTRIES_AT_ONCE, page.entries[-1].id)

    async def keep(self, record: Record) -> bool:
        """Store what an answer leaves; returns whether the record itself was stored, if it has data.

        What cannot be stored is logged: the answer itself is still sent.
        """
        kept = True
        if record.kind == RESPONSE:
            if record.data is not None:
                kept = self.responses is not None and await self.responses.keep(record)
        elif record.data is not None:
            kept = await self._keep(Put(record.kind, record.id, record.data, record.entries))
        if record.append is not None:
            await self._keep(record.append)
        for each in record.also:
            await self.keep(each)
        return kept

    @property
    def objects(self) -> KeyObjects:
        """The objects of the key.

        Raises:
            schemas.errors.UnsupportedFeature: none are stored.
        """
        if self._objects is None:
            message = "This server stores no conversations and no chat completions: see limits.stored_objects."
            raise UnsupportedFeature(message, feature="store")
        return self._objects

    @property
    def runs(self) -> KeyRuns:
        """The key's answers in the background.

        Raises:
            schemas.errors.UnsupportedFeature: none can be kept.
        """
        objects = self.objects
        assert self._leases is not None
        return KeyRuns(objects, self._leases)

    async def _keep(self, step: Put | Append) -> bool:
        try:
            if await self._do(step):
                return True
            log.warning("object.not_kept", kind=step.kind, id=step.id)
        except (OSError, sqlite3.Error, TooLarge, UnsupportedFeature) as error:
            log.error("object.not_stored", kind=step.kind, id=step.id, error=str(error) or type(error).__name__)
        return False

    async def _do(self, step: Step) -> object:
        match step:
            case Get("response", id):
                return await self.responses.load(id) if self.responses is not None else None
            case Put("response", id, data):
                return await self.keep(Record(id, data))
            case Delete("response", id):
                return await self.responses.drop(id) if self.responses is not None else False
            case FindRun(id):
                found = await self.runs.find(id)
                # A run is there before its response, and only another gateway's run is in another store.
                is_gone = found is None and not isinstance(self.responses, SharedKeyResponses)
                return RunState("ended") if is_gone else found
            case EndRun(id):
                return await self.runs.take(id)
            case CloseRun(id, data, number, event):
                await self.keep(Record(id, data))
                await self.runs.close(id, number, event)
                return None
        return await self._use(step, self.objects)

    async def _use(self, step: Step, objects: KeyObjects) -> object:
        match step:
            case Get(kind, id):
                return await objects.get(kind, id)
            case Put(kind, id, data, entries):
                return await objects.put(kind, id, data, entries)
            case Append(kind, id, entries, data):
                return await objects.append(kind, id, entries, data)
            case Delete(kind, id):
                return await objects.delete(kind, id)
            case ListObjects(kind, span):
                return await objects.page(kind, span)
            case ListEntries(kind, id, span):
                return await objects.entries(kind, id, span)
            case GetEntry(kind, id, entry):
                return await objects.entry(kind, id, entry)
            case DeleteEntry(kind, id, entry):
                return await objects.drop(kind, id, entry)
        raise AssertionError(step)
