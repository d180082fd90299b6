"""Every way to an upstream, over real servers, and what the log says where one fails."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from backends.remote.backend import RemoteBackend
from backends.remote.resilience import health_check
from backends.transport import Transport
from backends.transport.general import GeneralTransport
from schemas.errors import BackendFailed, BackendUnavailable
from tests.backends.transport.servers import (
    forward_proxy,
    http2_server,
    make_certificate,
    on_socket,
    secure,
    server_context,
    socks_proxy,
)
from tests.faults.recorded import ask, record, remote, request
from tests.faults.upstream import END, STREAM, Asked, Play, Step, chunk, response, upstream
from tests.missing_tools import missing
from tests.ports import free_port

NAMES = tuple(f"{name}_PROXY" for name in ("HTTP", "HTTPS", "ALL", "NO"))
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason=missing("openssl, which makes the certificates")
)


@pytest.fixture(autouse=True)
def _no_proxy_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "CHECK_TIMEOUT", 60.0)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    for name, host in (("server", "localhost"), ("client", "client"), ("other", "elsewhere.example")):
        make_certificate(folder, name, host)
    return folder


async def whole(stream: bool = False) -> bytes:
    return await record("openai", stream=stream)


async def play() -> Play:
    """Answers a GET, a stream and a whole answer of the OpenAI protocol."""
    answer, events = await whole(), await whole(stream=True)

    def answered(asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET"):
            return (response(b"{}"),)
        if b'"stream":true' in asked.body:
            return (STREAM + chunk(events) + END,)
        return (response(answer),)

    return answered


async def answers(backend: RemoteBackend) -> None:
    """A stream and a whole answer arrive, and are the same."""
    texts = []
    for stream in (False, True):
        events, error = await ask(backend, request("openai", stream=stream))
        assert error is None
        texts.append("".join(getattr(event, "text", "") for event in events))
    assert texts[0] == texts[1] != ""


@asynccontextmanager
async def logged(url: str, **options: Any) -> AsyncIterator[tuple[RemoteBackend, list[Any]]]:
    """A started backend, and what it has logged so far."""
    with capture_logs() as logs:
        async with remote("openai", url, **options) as backend:
            yield backend, logs


async def why(url: str, **options: Any) -> str:
    """The cause that is logged for a server that is not reached, once, although it is checked twice."""
    async with logged(url, **options) as (backend, logs):
        assert backend._health_check is not None
        await backend._health_check.check()
        (entry,) = [entry for entry in logs if entry["event"] in ("backend.unreachable", "backend.refused")]
        return str(entry["why"])


async def test_nothing_special_goes_directly() -> None:
    async with upstream(await play()) as there, remote("openai", there.url) as backend:
        assert isinstance(backend._connected.requests, Transport)
        await answers(backend)
        assert there.asked[0].headers["user-agent"] == "interlingua"


@pytest.mark.parametrize("given", ["option", "secret", "environment"])
async def test_a_forward_proxy_is_used(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream(await play()) as there, forward_proxy() as proxy:  # type: ignore[attr-defined]
        address = f"http://127.0.0.1:{proxy.port}"
        monkeypatch.setenv("HTTP_PROXY" if given == "environment" else "PROXY_VALUE", address)
        option: dict[str, Any] = {"option": {"proxy": address}, "secret": {"proxy": {"env": "PROXY_VALUE"}}}.get(
            given, {}
        )
        async with logged(f"http://models.example:{there.port}", **option) as (backend, logs):
            assert isinstance(backend._connected.requests, GeneralTransport)
            await answers(backend)
    assert {line.split()[1].split("/")[2] for line in proxy.asked} == {f"models.example:{there.port}"}
    assert [entry["event"] for entry in logs] == ["backend.reached"]


@pytest.mark.parametrize(
    ("host", "no_proxy", "proxy"),
    [
        ("models.example", "", True),
        ("models.example", "models.example", False),
        ("models.example", "other.example, .example", False),
        ("models.example", "models.example:1", True),
        ("models.example", "*", False),
        ("models.example", "s.example", True),
        ("10.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "11.0.0.0/8", True),
        ("127.0.0.1", "", False),
        ("localhost", "", False),
    ],
)
async def test_no_proxy_exempts_hosts(host: str, no_proxy: str, proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from backends.remote.connect import read_proxy
    from backends.remote.options import RemoteOptions

    monkeypatch.setenv("http_proxy", "127.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    options = RemoteOptions(url=f"http://{host}:8000/v1")
    assert read_proxy(options) == ("http://127.0.0.1:3128" if proxy else "")
    assert read_proxy(RemoteOptions(url=options.url, proxy="direct")) == ""


async def test_a_proxy_that_refuses_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async with forward_proxy("secret") as proxy:  # type: ignore[attr-defined]
        monkeypatch.setenv("PROXY_VALUE", f"http://user:wrong@127.0.0.1:{proxy.port}")
        for url in ("http://models.example/v1", "https://models.example/v1"):
            text = await why(url, proxy={"env": "PROXY_VALUE"})
            assert f"the proxy http://127.0.0.1:{proxy.port}" in text
            assert "407" in text
            assert "wrong" not in text
    assert "set `proxy`" in await why("http://models.example/v1", proxy=f"http://127.0.0.1:{free_port()}")


@pytest.mark.slow
async def test_a_socks_proxy_is_used() -> None:
    async with upstream(await play()) as there, socks_proxy() as proxy:  # type: ignore[attr-defined]
        options = {"proxy": f"socks5://127.0.0.1:{proxy.port}"}
        async with remote("openai", f"http://models.example:{there.port}", **options) as backend:
            await answers(backend)
    assert set(proxy.asked) == {f"models.example:{there.port}"}


@needs_openssl
async def test_tls_through_a_proxy_ends_at_the_server(certificates: Path) -> None:
    context = server_context(certificates / "server.pem")
    async with secure(await play(), context) as there, forward_proxy() as proxy:  # type: ignore[attr-defined]
        options = {"proxy": f"http://127.0.0.1:{proxy.port}", "extra_ca_file": str(certificates / "server.pem")}
        async with remote("openai", f"https://localhost:{there.port}", **options) as backend:
            await answers(backend)
    assert set(proxy.asked) == {f"CONNECT localhost:{there.port} HTTP/1.1"}


@pytest.mark.slow
@needs_openssl
async def test_a_certificate_that_is_not_trusted_is_explained(certificates: Path) -> None:
    async with secure(await play(), server_context(certificates / "server.pem")) as there:
        url = f"https://localhost:{there.port}"
        text = await why(url)
        assert "self-signed certificate" in text.replace("self signed", "self-signed")
        assert "`extra_ca_file`" in text
        for option in ("ca_file", "extra_ca_file"):
            async with remote("openai", url, **{option: str(certificates / "server.pem")}) as backend:
                assert isinstance(backend._connected.requests, Transport)
                await answers(backend)
        text = await why(f"https://127.0.0.1:{there.port}", ca_file=str(certificates / "server.pem"))
        assert "use a name of the certificate in `url`" in text


@pytest.mark.slow
@needs_openssl
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_is_shown(certificates: Path, version: ssl.TLSVersion) -> None:
    context = server_context(certificates / "server.pem", clients=certificates / "client.pem")
    context.maximum_version = version
    async with secure(await play(), context) as there:
        url, trusted = f"https://localhost:{there.port}", {"extra_ca_file": str(certificates / "server.pem")}
        text = await why(url, **trusted)
        assert "set `client_cert`" in text
        mine = {"client_cert": str(certificates / "client.pem"), "client_key": str(certificates / "client.key")}
        async with remote("openai", url, **trusted, **mine) as backend:
            await answers(backend)
        wrong = {"client_cert": str(certificates / "other.pem"), "client_key": str(certificates / "other.key")}
        assert "`client_cert`" in await why(url, **trusted, **wrong)


@pytest.mark.slow
@needs_openssl
async def test_the_wrong_scheme_is_explained(certificates: Path) -> None:

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        assert "does not speak TLS" in await why(f"https://localhost:{port}")
    async with secure(await play(), server_context(certificates / "server.pem")) as there:
        assert "https:// in `url`" in await why(f"http://localhost:{there.port}")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("general", [False, True])
async def test_a_compressed_answer_is_decoded(encoding: str, general: bool) -> None:
    import zlib

    def encoded(asked: Asked) -> tuple[Step, ...]:
        (plain,) = plays(asked)
        head, _, body = plain.partition(b"\r\n\r\n")
        pack = gzip.compress if encoding == "gzip" else zlib.compress
        content = pack(body if b"chunked" not in head else events)
        kind = b"text/event-stream" if b"event-stream" in head else b"application/json"
        size = b"content-length: %d\r\n" % len(content)
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-encoding: %b\r\n%b\r\n" % (kind, encoding.encode(), size),
            *(content[at : at + 7] for at in range(0, len(content), 7)),
        )

    plays, events = await play(), await whole(stream=True)
    async with upstream(encoded) as there, forward_proxy() as proxy:  # type: ignore[attr-defined]
        url = f"http://models.example:{there.port}" if general else there.url
        options = {"proxy": f"http://127.0.0.1:{proxy.port}"} if general else {}
        async with remote("openai", url, **options) as backend:
            await answers(backend)


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_redirect_within_the_origin_is_followed(status: str) -> None:
    plays = await play()

    def moved(asked: Asked) -> tuple[Step, ...]:
        path = asked.line.split()[1]
        if path.startswith("/new"):
            return plays(asked)
        return (response(b"", status, more=f"location: /new{path}\r\n"),)

    async with upstream(moved) as there, remote("openai", there.url, headers={"x-key": "k"}) as backend:
        await answers(backend)
        asked = [each for each in there.asked if each.line.startswith("POST")]
    assert asked[0].body == asked[1].body
    assert {each.headers["x-key"] for each in asked} == {"k"}


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect"])
async def test_a_redirect_to_another_origin_is_not_followed_and_named(status: str) -> None:
    async with upstream(await play()) as secret:

        def moved(_: Asked) -> tuple[Step, ...]:
            return (response(b"", status, more=f"location: {secret.url}/v1/models\r\n"),)

        async with upstream(moved) as there, logged(there.url) as (backend, logs):
            _, error = await ask(backend, request("openai", stream=True))
            assert isinstance(error, BackendFailed)
            assert str(secret.port) not in error.message
        assert [(entry["event"], entry["status"]) for entry in logs] == [("backend.refused", int(status[:3]))]
        assert f"redirects to {secret.url}/v1/models" in logs[0]["why"]
        assert "set `url`" in logs[0]["why"]
        assert not secret.asked


async def test_http2_without_tls() -> None:
    async with (
        http2_server(await whole()) as there,
        remote("openai", f"http://127.0.0.1:{there.port}", http2=True) as backend,
    ):
        events, error = await ask(backend, request("openai", stream=False))
    assert error is None
    assert events
    assert there.asked == ["GET /models", "POST /chat/completions"]


@needs_openssl
async def test_http2_is_offered_over_tls(certificates: Path) -> None:
    async with http2_server(await whole(), server_context(certificates / "server.pem")) as there:
        options = {"http2": True, "extra_ca_file": str(certificates / "server.pem")}
        async with remote("openai", f"https://localhost:{there.port}", **options) as backend:
            many = [ask(backend, request("openai", stream=False, id=str(number))) for number in range(8)]
            assert [error for _, error in await asyncio.gather(*many)] == [None] * 8


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    async with on_socket(await play(), path) as there:
        async with remote("openai", "http://localhost/v1", unix_socket=str(path)) as backend:
            await answers(backend)
        assert there.asked[0].line == "GET /v1/models HTTP/1.1"
    path.unlink(missing_ok=True)
    text = await why("http://localhost/v1", unix_socket=str(path))
    assert str(path) in text


async def test_a_server_that_is_not_there_is_explained() -> None:
    port = free_port()
    assert await why(f"http://127.0.0.1:{port}") == f"127.0.0.1:{port}: nothing listens there (connection refused)"
    assert "the name is not known" in await why("http://no-such-host.invalid")


async def test_a_cause_is_logged_once_per_change() -> None:
    status = "200 OK"
    async with upstream(lambda _: (response(b"{}", status),)) as there, logged(there.url) as (backend, logs):
        assert backend._health_check is not None
        for status in ("200 OK", "404 Not Found", "404 Not Found", "500 No", "200 OK"):  # noqa: B007 - the play reads it
            await backend._health_check.check()
    assert [(entry["event"], entry["status"]) for entry in logs] == [
        ("backend.reached", 200),
        ("backend.refused", 404),
        ("backend.refused", 500),
        ("backend.reached", 200),
    ]


async def test_secrets_in_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X_KEY", "very-secret")

    def repeats(asked: Asked) -> tuple[Step, ...]:
        text = b'{"error":{"message":"no: %b"}}' % asked.headers["x-api-key"].encode()
        return (response(text, "400 Bad Request"),)

    async with upstream(repeats) as there:
        async with remote("openai", there.url, headers={"x-api-key": {"env": "X_KEY"}}) as backend:
            _, error = await ask(backend, request("openai", stream=False))
        assert there.asked[0].headers["x-api-key"] == "very-secret"
    assert error is not None
    assert "very-secret" not in error.message
    monkeypatch.delenv("X_KEY")
    with pytest.raises(BackendUnavailable, match="the environment variable X_KEY is not set"):
        async with remote("openai", there.url, headers={"x-api-key": {"env": "X_KEY"}}):
            pass


async def test_keys_take_turns_and_one_that_is_refused_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONE", "TWO", "THREE"):
        monkeypatch.setenv(name, f"key-{name.lower()}")
    plays, refused = await play(), {"key-two": "429 Too Many Requests", "key-three": "401 Unauthorized"}

    def answered(asked: Asked) -> tuple[Step, ...]:
        key = asked.headers["authorization"].removeprefix("Bearer ")
        return (response(b"{}", refused[key]),) if key in refused else plays(asked)

    async with (
        upstream(answered) as there,
        logged(there.url, api_key_env=["ONE", "TWO", "THREE"]) as (backend, logs),
    ):
        for number in range(6):
            _, error = await ask(backend, request("openai", stream=False, id=str(number)))
            assert error is None
        rested = [(entry["variable"], entry["status"]) for entry in logs if entry["event"] == "key.rested"]
        refused["key-one"] = "429 Too Many Requests"
        _, error = await ask(backend, request("openai", stream=False))
        assert error is not None
    # The health check has a ring of its own.
    assert set(rested) == {("TWO", 429), ("THREE", 401)}
    assert len(rested) <= 4
    assert not any("key-" in str(entry) for entry in logs)
    tried = [each.headers["authorization"] for each in there.asked if each.line.startswith("POST")]
    assert len(tried) == 9  # six answers, two refusals, and one when no other key was left


@pytest.mark.slow
async def test_cancelled_requests_leave_no_connection_behind() -> None:
    def begins(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET") else (STREAM,)

    async with upstream(begins) as there, forward_proxy() as proxy:  # type: ignore[attr-defined]
        options = {"proxy": f"http://127.0.0.1:{proxy.port}", "limits": {"connections": 4}}
        async with remote("openai", f"http://models.example:{there.port}", **options) as backend:
            assert isinstance(backend._connected.requests, GeneralTransport)
            for _ in range(5):
                tasks = [asyncio.ensure_future(ask(backend, request("openai", stream=True))) for _ in range(8)]
                await asyncio.sleep(0.05)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.timeout(60):
                while backend._connected.requests._turns._running:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            there.play = await play()
            await answers(backend)
