"""The routes of files and batches: one request from its headers to its last byte."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl

from litestar.types import HTTPScope

from adapters.base import Call, Reply
from adapters.batches import BatchCodec, FileCodec, HasBatches, HasFiles
from gateway.access.headers import decode_headers
from gateway.batches.database import Database
from gateway.batches.files import FileStore
from gateway.batches.store import BatchStore, new_id
from gateway.config import BatchesSection
from gateway.http.accounting import RequestAccount
from gateway.http.answer_headers import id_headers
from gateway.http.answering import Responder
from gateway.http.batches.clients import Clients
from gateway.http.batches.runner import BatchRunner
from gateway.http.batches.upload import Left, Upload
from gateway.http.client import Client
from gateway.http.reading.body import read_body
from gateway.mounts import Mounts, Operation
from gateway.service import Service
from schemas.errors import InvalidRequest, ObjectNotFound, Overloaded, RouteNotFound

T = TypeVar("T")

_CHUNK = 1 << 18


class BatchWork:
    """What a worker's batches and files are reached by.

    Args:
        settings: the section `batches`.
        batches, files: the stores.
        runner: works on batches.
    """

    def __init__(self, settings: BatchesSection, batches: BatchStore, files: FileStore, runner: BatchRunner) -> None:
        self.settings = settings
        self.batches = batches
        self.files = files
        self.runner = runner

    @classmethod
    def of(cls, service: Service, mounts: Mounts) -> BatchWork | None:
        """The batches of a worker; None if its configuration has no section `batches`."""
        if (settings := service.config.batches) is None:
            return None
        folder = Path(settings.resolved(service.config.server))
        database = Database(folder / "batches.sqlite3")
        # Of all workers: who of them has clients.
        clients = Clients(service, folder / "clients")
        files = FileStore(database, folder / "files", settings.max_bytes)
        batches = BatchStore(database, settings.max_open, settings.kept_seconds)
        return cls(settings, batches, files, BatchRunner(service, settings, mounts, clients, (batches, files)))


class StoreRequestHandler:
    """Handles one request.

    Args:
        service: the worker's.
        work: None: the server keeps no batches.
        operation: what was asked.
        parameters: those in the path.
        scope: ASGI's.
        client: has sent the request.
    """

    def __init__(
        self,
        service: Service,
        work: BatchWork | None,
        operation: Operation,
        parameters: Mapping[str, str],
        scope: HTTPScope,
        client: Client,
    ) -> None:
        self._service = service
        self._given = work
        self._operation = operation
        self._id = parameters.get("id", "")
        self._scope = scope
        self._client = client
        self._account = RequestAccount(service, operation.protocol, operation.route.name, service.new_id())
        head = scope["method"] == "HEAD"
        self._head = head
        self._responder = Responder(operation.codec, self._account, client, head=head)

    async def run(self) -> None:
        """Answer the request."""
        service = self._service
        service.metrics.running.add(1.0)  # `RequestAccount.close` takes it back
        # Bodies count as requests do; who asks how far a batch is must not slow it down.
        has_body = self._scope["method"] == "POST"
        service.running += has_body
        try:
            await self._answer()
        except Left:
            pass
        except asyncio.CancelledError:
            self._account.end("cancelled")
            raise
        except Exception as error:  # whatever it is, the client gets it in its protocol
            await self._responder.refuse(error)
        finally:
            service.running -= has_body
            self._account.close()

    async def _answer(self) -> None:
        service, route = self._service, self._operation.route
        self._headers = headers = decode_headers(self._scope["headers"])
        if service.keys.required:
            self._account.key = service.keys.check(headers)
        if self._given is None:
            raise RouteNotFound("This server keeps no files and batches: its configuration has no section [batches].")
        self._work = self._given
        if service.full:
            raise Overloaded("The server is at its limit of concurrent requests.", retry_after=1.0)
        self._owner = service.keys.owner(headers).hex()
        self._account.stage = "describe"
        if route.name == "upload_file":
            await self._responder.reply(await self._upload())
            return
        body = await read_body(self._client.receive, headers, service.limits)
        if body is None:
            return
        downloads = {"file_content": self._content, "batch_results": self._results}
        if route.name in downloads:
            await downloads[route.name]()
            return
        query = self._scope.get("query_string", b"")
        call = Call(
            self._account.request_id,
            service.catalog,
            headers=headers,
            query=dict(parse_qsl(query.decode("latin-1"))) if query else {},
        )
        answers: dict[str, Callable[[Call, bytes], Awaitable[Reply]]] = {
            "files": self._files,
            "file": self._file,
            "delete_file": self._delete_file,
            "create_batch": self._create,
            "batches": self._batches,
            "batch": self._batch,
            "cancel_batch": self._cancel,
            "delete_batch": self._delete,
        }
        await self._responder.reply(await answers[route.name](call, body))

    # --- files ----------------------------------------------------------------------------------------------------

    async def _upload(self) -> Reply:
        codec, store, settings = self._file_codec, self._work.files, self._work.settings
        path = store.new()
        try:
            upload = Upload(path, min(settings.max_file_bytes, await store.room(self._owner)))
            self._account.stage = "read"
            await upload.read(self._client.receive, self._headers, self._service.limits)
            purpose = upload.fields.get("purpose")
            if purpose is None:
                raise InvalidRequest("Missing required parameter: 'purpose'.", param="purpose")
            codec.check_purpose(purpose)
            anchor, seconds = "expires_after[anchor]", "expires_after[seconds]"
            if foreign := upload.fields.keys() - {"purpose", anchor, seconds}:
                raise InvalidRequest(f"Unknown parameter: '{min(foreign)}'.", param=min(foreign))
            expiry = codec.read_expiry(upload.fields.get(anchor), upload.fields.get(seconds))
            kept = expiry or settings.kept_seconds
            file = await store.add(self._owner, path, upload.name or "", purpose, kept)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return codec.encode_file(file)

    async def _files(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        codec = self._file_codec
        return codec.encode_files(await self._work.files.page(self._owner, codec.read_file_range(call)))

    async def _file(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        file = await self._work.files.get(self._owner, self._id)
        return self._file_codec.encode_file(self._found(file, "file"))

    async def _delete_file(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        deleted = await self._work.files.delete(self._owner, self._id)
        self._found(deleted or None, "file")
        return self._file_codec.encode_file_deletion(self._id)

    async def _content(self) -> None:
        file = self._found(await self._work.files.get(self._owner, self._id), "file")
        await self._download(self._work.files.path(file.id), "application/octet-stream")

    # --- batches --------------------------------------------------------------------------------------------------

    async def _create(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        work, protocol = self._work, self._operation.protocol
        asked = await asyncio.to_thread(self._codec.read_batch, body)
        if len(asked.lines) > work.settings.max_lines:
            raise InvalidRequest(f"A batch has at most {work.settings.max_lines} requests.", param="requests")
        if asked.input_file is not None:
            file = await work.files.get(self._owner, asked.input_file)
            if file is None:
                raise InvalidRequest(f"No such file: '{asked.input_file}'.", param="input_file_id")
            self._file_codec.check_purpose(file.purpose)
        id = new_id(self._codec.id_prefix)
        server = self._scope["server"]
        port = server[1] if server is not None else None
        batch = await work.batches.create(self._owner, protocol, id, asked, prefix=self._prefix, port=port)
        work.runner.wake()
        return self._codec.encode_batch(batch, self._address)

    async def _batches(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        range = self._codec.read_range(call)
        page = await self._work.batches.page(self._owner, self._operation.protocol, range)
        return self._codec.encode_batches(page, self._address)

    async def _batch(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        batch = await self._work.batches.get(self._owner, self._operation.protocol, self._id)
        return self._codec.encode_batch(self._found(batch, "batch"), self._address)

    async def _cancel(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        batch = await self._work.batches.cancel(self._owner, self._operation.protocol, self._id)
        return self._codec.encode_batch(self._found(batch, "batch"), self._address)

    async def _delete(self, call: Call, body: bytes) -> Reply:  # noqa: ARG002
        batch = await self._work.batches.delete(self._owner, self._operation.protocol, self._id)
        return self._codec.encode_deletion(self._found(batch, "batch"))

    async def _results(self) -> None:
        batch = self._found(await self._work.batches.get(self._owner, self._operation.protocol, self._id), "batch")
        if batch.output_file is None:
            raise InvalidRequest(f"The batch '{self._id}' has not ended: it has no results yet.")
        file = self._found(await self._work.files.get(self._owner, batch.output_file), "results of a batch")
        await self._download(self._work.files.path(file.id), "application/x-jsonl")

    # --- what they share ------------------------------------------------------------------------------------------

    @property
    def _codec(self) -> BatchCodec:
        codec = self._operation.codec
        assert isinstance(codec, HasBatches)
        return codec.batches

    @property
    def _file_codec(self) -> FileCodec:
        codec = self._operation.codec
        assert isinstance(codec, HasFiles)
        return codec.files

    @property
    def _prefix(self) -> str:
        """The prefix of the mount that a batch is made below; "" below none."""
        path = self._scope["raw_path"].decode("latin-1")  # Litestar has changed `path`
        return path.rstrip("/").removesuffix(self._operation.route.path)

    @property
    def _address(self) -> str:
        """The URL of the batches, as the client wrote it."""
        headers = self._headers
        forwarded = headers.get("x-forwarded-proto", "")
        scheme = forwarded if forwarded in ("http", "https") else self._scope["scheme"]
        path = self._scope["raw_path"].decode("latin-1")  # Litestar has changed `path`
        return f"{scheme}://{headers.get('host', '')}{path[: path.index('/batches')]}/batches"

    def _found(self, value: T | None, what: str) -> T:
        if value is None:
            raise ObjectNotFound(f"There is no such {what}: '{self._id}'.")
        return value

    async def _download(self, path: Path, media_type: str) -> None:
        """Send a file as it is read.

        Raises:
            schemas.errors.ObjectNotFound: it was removed meanwhile.
        """
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError:
            raise ObjectNotFound(f"There is no such file any more: '{self._id}'.") from None
        with file:
            size = os.fstat(file.fileno()).st_size
            headers = [
                (b"content-type", media_type.encode()),
                (b"content-length", b"%d" % size),
            ]
            ids = id_headers(self._operation.codec, self._account.request_id)
            headers += [(name.encode(), id.encode()) for name, id in ids]
            self._account.status, self._account.stage = 200, "send"
            await self._client.send({"type": "http.response.start", "status": 200, "headers": headers})
            left = 0 if self._head else size
            while left and (data := await asyncio.to_thread(file.read, min(_CHUNK, left))):
                left -= len(data)
                await self._client.send({"type": "http.response.body", "body": data, "more_body": True})
            self._account.end("ok")
            await self._client.send({"type": "http.response.body", "body": b"", "more_body": False})
