"""Limits of a connection: slow and silent clients, stalled readers, requests in a row, too many, and a gentle end."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct

import httpx
import pytest
from litestar import Litestar

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Limits, ServerSection
from gateway.server.client_connection import _MOST_AHEAD
from tests.gateway.serving import config, listening, scripted

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHAT = "/v1/chat/completions"
BODY = b'{"model":"echo","messages":[{"role":"user","content":"Hi"}]}'


def limits(**fields: float) -> ServerSection:
    return ServerSection(limits=Limits(**fields))  # type: ignore[arg-type]


async def read(port: int, sent: bytes) -> bytes:
    """What the server answers until it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"G", b"HTTP/1.1 408 "), (GET[:-2] + b"X: ", b"HTTP/1.1 408 ")],
    ids=["silent", "in the request line", "in a header"],
)
async def test_a_head_that_does_not_come_ends_the_connection(sent: bytes, answer: bytes) -> None:
    app, _ = scripted("echo", server=limits(header_timeout=0.2))
    async with listening(app) as port:
        assert (await read(port, sent))[: len(answer) or None] == answer


@pytest.mark.slow
async def test_a_head_that_drips_ends_in_the_same_time() -> None:
    app, _ = scripted("echo", server=limits(header_timeout=0.3))
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"G" if not reading.done() else b"")
            await asyncio.sleep(0.02)
        assert reading.result().startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.slow
async def test_the_next_head_may_wait_for_longer_than_the_first() -> None:
    app, _ = scripted("echo", server=limits(header_timeout=1.0))
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(GET)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(1.5)
        writer.close()


@pytest.mark.slow
async def test_a_body_that_does_not_come_ends_the_connection() -> None:
    paths = (CHAT, "/v1/feedback", "/generate", "/v1/responses", "/api/2.0/serving-endpoints", "/health", "/none")
    app, _ = scripted("echo", server=limits(body_idle=0.1, body_total=0.3))
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
    async with listening(app) as port:
        answers = await asyncio.gather(*(read(port, head.format(path).encode()) for path in paths))
    status = {path: int(answer.split(b" ")[1]) for path, answer in zip(paths, answers, strict=True)}
    # Refused before their bodies: 403 without an admin key, 405 for a method, 404 for a path.
    assert status == dict.fromkeys(paths, 408) | {"/api/2.0/serving-endpoints": 403, "/health": 405, "/none": 404}


@pytest.mark.slow
async def test_a_reader_that_stalls_frees_the_backend() -> None:
    """Also one whose answer is in the kernel's buffer: the application sees no full buffer there."""
    script = {"tokens": [{"id": 1, "text": "x" * 8192}], "repeat": 3000}
    backend = ScriptedBackend("s", {"scripts": {"long": script}})
    app = create_app(config("long", server=limits(write_stall=0.4)), {"s": backend})
    body = json.dumps(
        {"model": "long", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 3000}
    ).encode()
    request = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
    async with listening(app) as port:
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(request)
            async with asyncio.timeout(60):
                while app.state.service.running != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while app.state.service.running:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert (await read(port, GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).startswith(
            b"HTTP/1.1 200"
        )


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["resets", "closes", "half closes", "closes behind more than the kernel takes"])
async def test_requests_in_a_row_wait_in_the_client_until_it_leaves(leaves: str) -> None:
    app, _ = scripted("hang")
    async with listening(app) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, chat("hang"))
            if leaves in ("closes", "half closes"):
                await loop.sock_sendall(client, GET * (_MOST_AHEAD // len(GET) + 100))
            else:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await loop.sock_sendall(client, GET * 1_000_000)
            async with asyncio.timeout(60):
                while app.state.service.running != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            if leaves == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # `close` resets
            if leaves == "half closes":
                client.shutdown(socket.SHUT_WR)
                await idle(app)
        await idle(app)


@pytest.mark.slow
async def test_too_many_requests_behind_a_slow_one_are_given_up_and_its_answer_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.server.client_connection._LONGEST_AHEAD", 0.0)
    app, _ = scripted("slow", server=limits(header_timeout=1.0))  # sweeps come four times as often
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(chat("slow", max_tokens=8) + GET * 20_000)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        metrics = await read(
            port, GET.replace(b"/health", b"/metrics").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["usage"]["completion_tokens"] == 8
    assert b'\ngw_refused_total{reason="pipelining"} 1' in metrics


@pytest.mark.slow
@pytest.mark.parametrize("behind", [b"", GET * 20_000, b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Le"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_the_last_request_of_a_connection_is_answered_whole_and_says_so(chunked: bool, behind: bytes) -> None:
    app, _ = scripted("echo", server=limits(max_requests_per_connection=3))
    size = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    if not chunked:
        size = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    last = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b" % (CHAT.encode(), size)
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET * 2 + last[:-9])
        await writer.drain()
        writer.write(last[-9:] + behind)
        answers = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 ") == 3
    assert answers.count(b"\r\nconnection: close\r\n") == 1
    head, _, body = answers[answers.rindex(b"HTTP/1.1 200 ") :].partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.slow
async def test_clients_connect_again_after_the_last_request_of_a_connection() -> None:
    app, _ = scripted("echo", server=limits(max_requests_per_connection=2))
    async with listening(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answers = [await client.post(CHAT, content=BODY) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 7
    assert [answer.headers.get("connection") for answer in answers] == [None, "close"] * 3 + [None]


def chat(model: str, **fields: int) -> bytes:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "a b c d e f g h"}]} | fields).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)


async def idle(app: Litestar) -> None:
    async with asyncio.timeout(20):
        while app.state.service.running:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_full_server_answers_health_checks_and_nothing_else() -> None:
    app, _ = scripted("echo", server=limits(max_connections=8))
    async with listening(app) as port:
        open = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        for _, writer in open:
            writer.write(GET)
        for reader, _ in open:
            await reader.readuntil(b"\r\n\r\n")
        end = b"\r\nConnection: close\r\n\r\n"
        assert (await read(port, GET.replace(b"\r\n\r\n", end))).startswith(b"HTTP/1.1 200 ")
        refused = await read(port, b"GET /v1/models HTTP/1.1\r\nHost: localhost" + end)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in refused
        for _, writer in open:
            writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 20, 40 << 20])
def test_every_client_reads_why_its_body_is_refused(size: int) -> None:
    """`http.client` sends its whole body before it reads: a reset on the way would hide the answer."""

    async def main() -> tuple[int, bytes]:
        app, _ = scripted("echo", server=limits(max_body=1000, max_image_body=1000))
        async with listening(app) as port:
            return await asyncio.to_thread(_post, port, size)

    status, body = asyncio.run(main())
    assert status == 413
    assert b"1000 bytes" in body


def _post(port: int, size: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", CHAT, b"x" * size)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.slow
async def test_a_client_reads_why_its_headers_are_refused() -> None:
    app, _ = scripted("echo")
    async with listening(app) as port:
        answer = await read(port, GET[:-2] + b"X: " + b"x" * (8 << 20) + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_body_that_nobody_asked_for_leaves_the_connection_usable() -> None:
    app, _ = scripted("echo")
    request = b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request[:-10])
        await reader.readuntil(b"}")
        writer.write(request[-10:] + GET)
        assert b"HTTP/1.1 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"])
async def test_a_stream_for_a_client_of_http_1_0_has_no_transfer_coding(connection: bytes) -> None:
    app, _ = scripted("echo")
    body = BODY[:-1] + b',"stream":true}'
    head = b"POST %b HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n" % (CHAT.encode(), connection, len(body))
    async with listening(app) as port:
        answer = await read(port, head + body)
    fields, _, stream = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in fields
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"data: [DONE]\n\n")
