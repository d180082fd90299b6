"""TLS of the server: real handshakes with a gateway as a user runs it, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.access.certificates import Certificates
from gateway.config import ConfigError, ServerSection
from tests.backends.transport.servers import make_certificate
from tests.gateway.processes import SCRIPTED, serving
from tests.missing_tools import missing
from tests.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason=missing("openssl, which makes the certificates")),
]
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
HANDSHAKE = 1.0  # seconds that it may take


class Server(NamedTuple):
    """A gateway that asks for client certificates, and its port without TLS."""

    folder: Path
    url: str
    plain: str
    port: int

    def client(self, *, certified: bool = True) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.folder / "server.pem"))
        if certified:
            context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        return httpx.Client(base_url=self.url, verify=context, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        make_certificate(folder, name)
    plain = free_port()
    settings = f"""\
[server]
workers = 1
ssl_certfile = "{folder}/server.pem"
ssl_keyfile = "{folder}/server.key"
ssl_ca_certs = "{folder}/client.pem"
limits = {{ header_timeout = {HANDSHAKE} }}
listeners = [{{ port = {plain}, tls = false }}]
"""
    config = folder / "gateway.toml"
    config.write_text(SCRIPTED.format(workers=1).replace("[server]\nworkers = 1\n", settings))
    with serving("--config", str(config), log=folder / "log") as gateway:
        port = httpx.URL(gateway.url).port
        assert port is not None
        assert gateway.url.startswith("https://")
        yield Server(folder, f"https://localhost:{port}", f"http://localhost:{plain}", port)


def test_whole_answers_and_streams_come_over_tls(server: Server) -> None:
    with server.client() as client:
        whole = client.post("/v1/chat/completions", json=CHAT)
        assert whole.status_code == 200
        with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
            events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert "".join(deltas) == whole.json()["choices"][0]["message"]["content"] != ""


def test_a_client_without_a_certificate_gets_a_403_and_may_ask_for_the_health(server: Server) -> None:
    with server.client(certified=False) as client:
        for path in ("/v1/chat/completions", "/v1/messages"):
            refused = client.post(path, json=CHAT)
            assert refused.status_code == 403
            assert "client certificate" in refused.json()["error"]["message"]
        assert client.get("/metrics").status_code == 403
        assert client.get("/health/ready").status_code == 200


def test_a_listener_may_do_without_tls(server: Server) -> None:
    assert httpx.post(f"{server.plain}/v1/chat/completions", json=CHAT, trust_env=False).status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(server.url.replace("https", "http"), trust_env=False)


def test_a_client_reads_the_refusal_of_a_body_that_is_too_large(server: Server) -> None:
    context = ssl.create_default_context(cafile=str(server.folder / "server.pem"))
    context.load_cert_chain(server.folder / "client.pem", server.folder / "client.key")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with (
        socket.create_connection(("localhost", server.port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as client,
    ):
        client.sendall(head + b"content-length: 40000000\r\n\r\n" + b" " * 4_000_000)
        assert client.recv(12) == b"HTTP/1.1 413"


def test_a_handshake_that_is_not_finished_is_ended(server: Server) -> None:
    began = time.monotonic()
    with socket.create_connection(("localhost", server.port)) as silent:
        silent.settimeout(60)
        silent.sendall(b"\x16\x03\x01")  # the beginning of a ClientHello
        assert silent.recv(1) == b""
    assert time.monotonic() - began >= HANDSHAKE / 2  # it was the limit that ended it


async def test_a_renewed_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    file = make_certificate(tmp_path, "server")
    known = Certificates(ServerSection(ssl_certfile=str(file), ssl_keyfile=str(file.with_suffix(".key"))))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    there = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=known.context)

    async def shown() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(*there.sockets[0].getsockname(), ssl=context)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    first = await shown()
    known.refresh()
    assert await shown() == first
    # The certificate arrives before its key: until that has come, the old ones are used.
    new = make_certificate(tmp_path, "new")
    new.replace(file)
    with capture_logs() as logs:
        known.refresh()
        known.refresh()
    assert [entry["event"] for entry in logs] == ["certificate.rejected"]
    assert "the key is not the certificate's" in logs[0]["error"]
    assert await shown() == first
    new.with_suffix(".key").replace(file.with_suffix(".key"))
    known.refresh()
    assert await shown() == ssl.PEM_cert_to_DER_cert(file.read_text()) != first
    there.close()


async def test_an_authority_that_is_removed_is_not_trusted_any_more(tmp_path: Path) -> None:
    file = make_certificate(tmp_path, "server")
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(first.read_text() + second.read_text())
    settings = {"ssl_certfile": file, "ssl_keyfile": file.with_suffix(".key"), "ssl_ca_certs": authorities}
    known = Certificates(ServerSection(**{name: str(path) for name, path in settings.items()}))  # type: ignore[arg-type]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(2))
        writer.close()

    there = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=known.context)

    async def is_trusted(certificate: Path, context: ssl.SSLContext) -> bool:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        try:
            reader, writer = await asyncio.open_connection(*there.sockets[0].getsockname(), ssl=context)
            writer.write(b"Hi")
            found = await reader.read()
            writer.close()
        except (ssl.SSLError, ConnectionError):
            return False
        return found == b"Hi"

    both = {each: ssl.create_default_context() for each in (first, second)}
    assert [await is_trusted(each, context) for each, context in both.items()] == [True, True]
    authorities.write_text(second.read_text())
    known.refresh()
    # With the same contexts, which would resume a session.
    assert [await is_trusted(each, context) for each, context in both.items()] == [False, True]
    there.close()


def test_what_cannot_be_used_is_refused_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_certificate(tmp_path, "server")
    other = make_certificate(tmp_path, "other").with_suffix(".key")
    text = tmp_path / "text"
    text.write_text("no certificate")
    locked = tmp_path / "locked.key"
    command = f"openssl ec -in {file.with_suffix('.key')} -aes256 -passout pass:secret -out {locked}"
    asyncio.run(_run(command))

    def refused(**files: str | None) -> str:
        with pytest.raises(ConfigError) as caught:
            Certificates(ServerSection(**({"ssl_certfile": str(file)} | files)))  # type: ignore[arg-type]
        return str(caught.value)

    assert f"there is no file {tmp_path}/none" in refused(ssl_certfile=f"{tmp_path}/none")
    assert f"there is no file {tmp_path}/none" in refused(ssl_keyfile=f"{tmp_path}/none")
    assert "the key is not the certificate's" in refused(ssl_keyfile=str(other))
    assert "server.ssl_certfile" in refused(ssl_certfile=str(text))
    assert "server.ssl_ca_certs" in refused(ssl_keyfile=str(file.with_suffix(".key")), ssl_ca_certs=str(text))
    assert "ssl_keyfile_password_env" in refused(ssl_keyfile=str(locked))
    monkeypatch.setenv("PASSWORD", "wrong")
    assert str(locked) in refused(ssl_keyfile=str(locked), ssl_keyfile_password_env="PASSWORD")
    monkeypatch.setenv("PASSWORD", "secret")
    Certificates(ServerSection(ssl_certfile=str(file), ssl_keyfile=str(locked), ssl_keyfile_password_env="PASSWORD"))


async def _run(command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command.split(), stderr=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
