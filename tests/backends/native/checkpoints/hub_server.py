"""A small hub: the paths of the Hugging Face hub that fetching a model asks for, over files in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMITS = {"main": "a" * 40, "older": "b" * 40}
GATED, PRIVATE = "owner/gated", "owner/private"
_API = re.compile(r"^/api/models/(?P<model>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/?]+))?")
_FILE = re.compile(r"^/(?P<model>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)$")


class Hub(ThreadingHTTPServer):
    """The server.

    Attributes:
        models: the files of each model, by name.
        sent: the files that were sent, and from which byte.
        cut: a file of which only this many bytes are sent, once.
    """

    daemon_threads = True

    def __init__(self, models: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.sent: list[tuple[str, int]] = []
        self.cut: dict[str, int] = {}

    @property
    def url(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def hub(models: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """A running hub of these models."""
    server = Hub(models)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := _API.match(path):
            self._describe(found["model"], found["what"], found["revision"] or "main")
        elif found := _FILE.match(path):
            self._file(found["model"], found["revision"], found["name"])
        else:
            self._refuse(404, "EntryNotFound")

    def _commit(self, model: str, revision: str) -> str | None:
        """The commit of a revision; None if the request was refused."""
        if model not in self.server.models:
            self._refuse(404, "RepoNotFound")
        elif revision not in COMMITS and revision not in COMMITS.values():
            self._refuse(404, "RevisionNotFound")
        else:
            return COMMITS.get(revision, revision)
        return None

    def _describe(self, model: str, what: str | None, revision: str) -> None:
        if (commit := self._commit(model, revision)) is None:
            return
        files = self.server.models[model]
        if what == "tree":
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": sha256(content).hexdigest()[:40]}
                for name, content in files.items()
            ]
            self._send(200, json.dumps(rows).encode())
            return
        siblings = [{"rfilename": name} for name in files]
        self._send(200, json.dumps({"id": model, "sha": commit, "siblings": siblings}).encode())

    def _file(self, model: str, revision: str, name: str) -> None:
        if model == GATED:
            self._refuse(403, "GatedRepo")
            return
        if (commit := self._commit(model, revision)) is None:
            return
        if (content := self.server.models[model].get(name)) is None:
            self._refuse(404, "EntryNotFound")
            return
        asked = re.match(r"bytes=(\d+)-", self.headers.get("range") or "")
        start = int(asked[1]) if asked else 0
        headers = {"etag": f'"{sha256(content).hexdigest()}"', "x-repo-commit": commit, "accept-ranges": "bytes"}
        if asked:
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = None
        if self.command == "GET":
            self.server.sent.append((name, start))
            cut = self.server.cut.pop(name, None)
        self._send(206 if asked else 200, content[start:], headers, cut)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"x-error-code": code, "x-error-message": code})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
            self.close_connection = cut is not None
