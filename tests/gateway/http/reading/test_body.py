"""How large a body may be, and how long it may take."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest

from gateway.config import Limits, ServerSection
from gateway.http.reading.body import read_body
from schemas.errors import BodyTooLarge, MalformedBody, RequestTimeout, UnsupportedMediaType
from tests.gateway.serving import listening, scripted

Receive = Callable[[], Awaitable[Any]]


def arriving(*parts: bytes, pause: float = 0.0, ends: bool = True) -> Receive:
    """ASGI's `receive` for a body in parts, with a pause before each; without an end, the client leaves."""
    last = len(parts) - 1
    left = [
        {"type": "http.request", "body": part, "more_body": place < last or not ends}
        for place, part in enumerate(parts)
    ]

    async def receive() -> Any:
        if pause:
            await asyncio.sleep(pause)
        return left.pop(0) if left else {"type": "http.disconnect"}

    return receive


@pytest.mark.parametrize("pause", [0.0, 0.001], ids=["there already", "waited for"])
async def test_a_body_is_read_whole(pause: float) -> None:
    assert await read_body(arriving(b"one", b"", b"two", pause=pause), {}, Limits()) == b"onetwo"


@pytest.mark.parametrize("pause", [0.0, 0.001], ids=["there already", "waited for"])
async def test_a_client_that_leaves_has_no_body(pause: float) -> None:
    assert await read_body(arriving(b"one", pause=pause, ends=False), {}, Limits()) is None


async def test_the_total_limit_ends_a_body_whose_parts_are_never_late() -> None:
    with pytest.raises(RequestTimeout):
        await read_body(arriving(*[b"x"] * 200, pause=0.02), {}, Limits(body_idle=30.0, body_total=0.2))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "ends"), [(1, True), (10_000, False)])
async def test_a_body_that_drips_ends_and_a_large_one_on_a_slow_line_does_not(size: int, ends: bool) -> None:
    limits = Limits(body_idle=1.0, body_rate=10_000, body_total=60.0)
    body = arriving(*[b"x" * size] * 75, pause=0.02)  # longer than `body_idle` in all, each part shorter by far
    if not ends:
        assert await read_body(body, {}, limits) == b"x" * size * 75
        return
    with pytest.raises(RequestTimeout):
        await read_body(body, {}, limits)


async def test_the_idle_limit_ends_a_body_that_stops() -> None:
    began = monotonic()
    with pytest.raises(RequestTimeout):
        await read_body(arriving(b"x", b"y", pause=60.0), {}, Limits(body_idle=0.05, body_total=30.0))
    assert monotonic() - began < 20


@pytest.mark.parametrize("size", [10, 11])
async def test_only_a_body_with_images_may_have_the_larger_limit(size: int) -> None:
    limits = Limits(max_body=10, max_image_body=40)
    plain, image = b"x" * size, b'{"image_url":' + b"x" * (40 - 13)
    assert await read_body(arriving(image), {}, limits) == image
    if size <= 10:
        assert await read_body(arriving(plain), {}, limits) == plain
    else:
        with pytest.raises(BodyTooLarge):
            await read_body(arriving(plain), {}, limits)
    with pytest.raises(BodyTooLarge):
        await read_body(arriving(image, b"x"), {}, limits)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"content-length": "41"}, BodyTooLarge),
        ({"content-encoding": "br"}, UnsupportedMediaType),
        ({"content-encoding": "gzip, gzip"}, UnsupportedMediaType),
        ({"content-encoding": "gzip", "content-length": "41"}, BodyTooLarge),
        ({"content-type": "multipart/form-data; boundary=x"}, UnsupportedMediaType),
    ],
)
async def test_a_body_that_cannot_be_taken_is_refused_unread(headers: dict[str, str], error: type[Exception]) -> None:
    async def receive() -> Any:
        raise AssertionError("it was read")

    with pytest.raises(error):
        await read_body(receive, headers, Limits(max_body=10, max_image_body=40))


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("Deflate", zlib.compress)])
async def test_a_compressed_body_is_unpacked_within_the_limits(coding: str, pack: Callable[[bytes], bytes]) -> None:
    headers = {"content-encoding": coding}
    limits = Limits(max_body=2000, max_image_body=4000)
    text, image = b"x" * 2000, b'{"image_url":' + b"x" * (4000 - 13)
    assert await read_body(arriving(pack(text)), headers, limits) == text
    assert await read_body(arriving(b""), headers, limits, whole=pack(text)) == text
    assert await read_body(arriving(pack(image)), headers, limits) == image
    for more in (text + b"x", image + b"x", bytes(1 << 24)):
        with pytest.raises(BodyTooLarge):
            await read_body(arriving(pack(more)), headers, limits)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"", gzip.compress(b"{}", mtime=0)[:-1], gzip.compress(b"{}", mtime=0) + b"x"],
    ids=["plain", "empty", "cut short", "longer"],
)
async def test_a_body_that_is_not_of_its_coding_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody, match="not gzip data"):
        await read_body(arriving(body), {"content-encoding": "gzip"}, Limits())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"content-length: 10\r\n\r\n{", 408), (b"content-length: 10000000\r\n\r\n{", 413)],
    ids=["too slow", "too large"],
)
async def test_the_connection_closes_where_the_rest_of_a_body_may_come(sent: bytes, status: int) -> None:
    limits = Limits(body_idle=0.05, max_body=1000, max_image_body=1000)
    app, _ = scripted("echo", server=ServerSection(limits=limits))
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + sent)
        answer = await asyncio.wait_for(reader.read(), 60)  # until the end of the connection
        writer.close()
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert b" %d " % status in head.splitlines()[0]
    assert b"connection: close" in head.lower().splitlines()
