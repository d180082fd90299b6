"""Plain requests for servers of every kind: without a task, as those with one."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.faults.recorded import KINDS, frames, record
from tests.faults.upstream import END, STREAM, Close, Step, chunk, response
from tests.gateway.http.direct.clients import REQUESTS, Request, streamed
from tests.gateway.http.direct.gateways import gateway

LINES = "application/x-ndjson"
"""The media type of Ollama's streams, which need a task."""
ASKED = [requests[name] for requests in REQUESTS.values() for name in ("", "parameters")]
ANSWERED = {kind: kind for kind in KINDS if kind not in ("tgi-0.9", "triton")} | {
    "tgi": "openai",
    "mindie-triton": "mindie-openai",
}
"""The kinds of servers that take chats, and those in whose form they answer them."""


def plays(answer: bytes, stream: bytes) -> dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]]:
    """What a server does that is asked for a whole answer, and for a stream."""
    head = STREAM.replace(b"text/event-stream", LINES.encode()) if stream.startswith(b"{") else STREAM
    parts = frames(stream)
    half = len(parts) // 2
    refusal = response(b'{"error":{"message":"no"}}', "429 Too Many Requests", more="retry-after: 7\r\n")
    return {
        "as recorded": ((response(answer),), (head + b"".join(map(chunk, parts)) + END,)),
        "in two reads": (
            (response(answer)[:-9], response(answer)[-9:]),
            (head + b"".join(map(chunk, parts[:half])), b"".join(map(chunk, parts[half:])) + END),
        ),
        "cut": ((response(answer)[:-9], Close()), (head + b"".join(map(chunk, parts[:half])), Close())),
        "without an end": ((response(answer[:-9]),), (head + b"".join(map(chunk, parts[:half])) + END,)),
        "closed": ((Close(),), (Close(),)),
        "refused": ((refusal,), (refusal,)),
        "no JSON": ((response(b"{"),), (head + chunk(b"data: {\n\n") + END,)),
        "marked": (
            (response(answer, more="x-interlingua-token-ids: retokenised\r\n"),),
            (head.replace(b"\r\n\r\n", b"\r\nx-interlingua-token-ids: retokenised\r\n\r\n") + chunk(stream) + END,),
        ),
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_for_servers_of_every_kind_are_as_those_with_a_task(kind: str) -> None:
    played = plays(await record(kind, stream=False), await record(kind, stream=True))
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(gateway(kind=kind)) for _ in range(2)]
        gateways[1].app.asgi_handler.lane = lambda _: None  # type: ignore[union-attr]
        for asked in ASKED:
            for whole, parts in played.values():
                for request, steps in ((asked, whole), (streamed(asked), parts)):
                    direct, usual = [await each.turn(request, {}, steps) for each in gateways]
                    assert direct == usual


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ANSWERED)
async def test_plain_chats_for_servers_of_every_kind_have_no_task(kind: str, streams: bool, tasks: list[str]) -> None:
    form = ANSWERED[kind]
    steps = plays(await record(form, stream=False), await record(form, stream=True))["as recorded"][streams]
    tasks.clear()  # those of the recording
    asked: Request = REQUESTS["anthropic"][""]
    async with gateway(kind=kind) as there:
        for _ in range(2):
            assert (await there.turn(streamed(asked) if streams else asked, {}, steps))["status"] == 200
    expected = ["task"] if streams and kind == "ollama" else ["direct"]
    assert tasks == expected * 2
