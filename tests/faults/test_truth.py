"""An answer ends normally only if the upstream finished it; in all other cases it ends with an error.

Every fault, at every point of an answer, for every kind of upstream, streamed and whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from backends.remote.backend import RemoteBackend
from schemas.errors import BackendError, BackendTimeout, BackendUnavailable, GatewayError
from schemas.ir import Event, Usage
from tests.faults.recorded import KINDS, TEXT, ask, frames, is_end, playing, record, request, text_of
from tests.faults.upstream import END, STREAM, Asked, Close, Hang, Pause, Reset, Step, chunk, response

pytestmark = pytest.mark.slow

FAULTS: dict[str, Callable[[], tuple[Step, ...]]] = {
    "cut": lambda: (Close(),),
    "reset": lambda: (Reset(),),
    "stall": lambda: (Hang(),),
    "a clean early end": lambda: (END,),
    "no JSON": lambda: (chunk(b"data: {no json}\n\n"), END),
    "half a line": lambda: (chunk(b'data: {"choices":[{"del'), END),
    "an HTML page": lambda: (chunk(b"<html><body>502 Bad Gateway</body></html>\n\n"), END),
    "an error event": lambda: (chunk(b'data: {"error":{"message":"boom","code":500}}\n\n'), END),
    "an error sentence": lambda: (chunk(b'data: {"error":"boom","error_type":"generation"}\n\n'), END),
    "a huge choice": lambda: (
        chunk(b'data: {"choices":[{"index":99999999,"delta":{"content":"x"}}],"text_output":7,"token":7}\n\n'),
        END,
    ),
    "deep JSON": lambda: (chunk(b"data: " + b'{"choices":' * 5000 + b"\n\n"), END),
    "an event without end": lambda: (chunk(b"data: " + b"x" * 1_500_000), END),
    "no chunk": lambda: (b"zzz\r\n", Close()),
    "a [DONE] before the end": lambda: (chunk(b"data: [DONE]\n\n"), END),
}
IDLE = {"idle": 0.1}
"""Short, for streams that stall. All others keep the default, because the machine may be busy."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_breaks_at_any_point_raises(kind: str, fault: str) -> None:
    """Complete if and only if the end was sent; all text sent before the fault is received; no connection is kept."""
    sent = frames(await record(kind, stream=True))
    steps: list[tuple[Step, ...]] = []
    stalls = fault == "stall"
    limits = IDLE if stalls else {}
    async with playing(kind, lambda _: steps[0], timeouts=limits, retries={"attempts": 1}) as (backend, there):
        for k in range(5, len(sent) + 1, 5) if stalls else range(len(sent) + 1):
            steps[:] = [(STREAM, b"".join(map(chunk, sent[:k])), *FAULTS[fault]())]
            events, error = await ask(backend, request(kind, stream=True))
            ended = any(map(is_end, sent[:k]))
            where = f"{kind}, {fault} after {k} of {len(sent)}: {error!r}"
            if not ended:
                assert isinstance(error, BackendError), where
            elif fault in ("cut", "reset", "stall", "a clean early end"):
                assert error is None, where
            assert TEXT.startswith(text_of(events)), where
            if fault != "reset":  # a reset discards bytes in flight
                assert text_of(events) == text_of(decoded(backend, kind, sent[:k])), where
            assert error is not None or text_of(events) == TEXT, where
        await _free(backend)
    assert there.open == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_never_begins_times_out(kind: str, stream: bool) -> None:
    limits = {"first_token": 0.1, "whole": 0.1}
    async with playing(kind, lambda _: (STREAM, Hang()), timeouts=limits, retries={"attempts": 1}) as (backend, there):
        events, error = await ask(backend, request(kind, stream=stream))
        assert events == ()
        assert isinstance(error, BackendTimeout)
        await _free(backend)
    assert there.open == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_resets_its_connection_is_sent_twice(kind: str) -> None:
    """On a reused connection, too, which the upstream may have closed before the request came."""
    body = await record(kind, stream=False)
    steps: list[tuple[Step, ...]] = [(response(body),)]
    async with playing(kind, lambda _: steps[0]) as (backend, there):
        assert (await ask(backend, request(kind, stream=False)))[1] is None
        before, steps[0] = len(there.asked), (Reset(),)
        _, error = await ask(backend, request(kind, stream=False))
        assert isinstance(error, BackendUnavailable)
        assert len(there.asked) - before == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_whole_answer_that_breaks_at_any_point_raises(kind: str) -> None:
    body = await record(kind, stream=False)
    whole = response(body)
    steps: list[tuple[Step, ...]] = []
    async with playing(kind, lambda _: steps[0], retries={"attempts": 1}) as (backend, _):
        for k in range(0, len(whole), 7):
            for end in (Close(), Reset()):
                steps[:] = [(whole[:k], end)]
                events, error = await ask(backend, request(kind, stream=False))
                assert events == (), k
                assert isinstance(error, BackendError), k
        for end in (Close(), Reset()):
            steps[:] = [(whole, end)]
            events, error = await ask(backend, request(kind, stream=False))
            assert error is None
            assert text_of(events) == TEXT
        await _free(backend)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_in_chunks_of_any_size_is_complete(kind: str) -> None:
    body = await record(kind, stream=True)
    sizes = [1, 2, 3, 7, 64, 1000, len(body)]

    def play(_: Asked) -> tuple[Step, ...]:
        size = sizes.pop()
        return (STREAM, *(chunk(body[at : at + size]) for at in range(0, len(body), size)), END)

    async with playing(kind, play) as (backend, there):
        while sizes:
            events, error = await ask(backend, request(kind, stream=True))
            assert error is None
            assert text_of(events) == TEXT
            assert isinstance(events[-1], Usage)
            await _free(backend)
        assert there.connections == 2  # the health check has its own


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (response(b"<html>", "200 OK", "text/html"), 502),
        (response(b"", "200 OK", "text/plain"), 502),
        (response(b"{}", "200 OK"), 502),
        (response(b"[" * 100_000, "200 OK"), 502),
        (response(b'{"error":{"message":"no","code":400},"error_type":"validation"}', "400 Bad Request"), 400),
        (response(b"nothing to see", "401 Unauthorized", "text/plain"), 502),
        (response(b"{}", "403 Forbidden"), 502),
        (response(b"{}", "404 Not Found"), 404),
        (response(b"{}", "429 Too Many Requests", more="retry-after: 7\r\n"), 429),
        (response(b"<html>", "500 Internal Server Error", "text/html"), 502),
        (response(b"<html>", "502 Bad Gateway", "text/html"), 502),
        (response(b"<html>", "503 Service Unavailable", "text/html", "retry-after: 7\r\n"), 503),
        (response(b"", "504 Gateway Timeout"), 504),
        (response(b"", "302 Found", more="location: http://169.254.169.254/\r\n"), 502),
        (response(b"", "204 No Content"), 502),
    ],
)
@pytest.mark.parametrize("kind", ["openai", "tgi", "triton", "databricks"])
async def test_a_reply_without_an_answer_raises(kind: str, reply: bytes, status: int, stream: bool) -> None:
    """`status` stands for the kinds of errors that a client would see with that status."""
    kinds = {
        400: ("invalid_request", "malformed_body"),
        404: ("model_not_found",),
        429: ("overloaded",),
        503: ("backend_unavailable",),
        504: ("timeout",),
        502: ("backend_failed", "incomplete", "backend_unavailable"),
    }
    async with playing(kind, lambda _: (reply,), retries={"attempts": 1}) as (backend, there):
        events, error = await ask(backend, request(kind, stream=stream))
        assert events == ()
        assert isinstance(error, GatewayError)
        assert error.kind in kinds[status]
        if b"retry-after" in reply:
            assert error.retry_after == 7.0
        assert len([asked for asked in there.asked if asked.line.startswith("POST")]) == 1


async def test_bytes_without_events_do_not_renew_the_idle_timeout() -> None:
    """A comment every 20 ms does not keep a stream without events alive."""
    sent = frames(await record("openai", stream=True))
    drip: tuple[Step, ...] = tuple(chunk(b": still here\n\n") for _ in range(3))
    steps = (STREAM, chunk(sent[0]), *(step for piece in drip * 50 for step in (Pause(0.02), piece)), Close())
    async with playing("openai", lambda _: steps, timeouts=IDLE) as (backend, _):
        _, error = await ask(backend, request("openai", stream=True))
        assert error is not None
        assert error.code == "stream_idle", "before the connection closes"


def decoded(backend: RemoteBackend, kind: str, sent: list[bytes]) -> tuple[Event, ...]:
    """The events that the upstream's bytes decode to."""
    asked = request(kind, stream=True)
    codec, _ = backend._encode(asked)
    return codec.decoder(asked).feed(b"".join(sent))


async def _free(backend: object) -> None:
    pool = backend._connected.requests.pool  # type: ignore[attr-defined]
    async with asyncio.timeout(60):
        while pool.busy:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
