"""Streams without a task: as those that have one, whatever the server sends and wherever its bytes are split."""

from __future__ import annotations

import asyncio
import json
import socket
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from backends.transport import pool
from backends.transport.connection import Connection
from gateway.http.direct import lane
from gateway.http.direct.stream import StreamedRequest
from gateway.server import client_connection
from gateway.server.direct_way import DirectWay
from schemas import ir
from tests.faults.upstream import END, STREAM, Close, Hang, Pause, Reset, Step, Wait, chunk, response
from tests.gateway.http.direct.clients import CHAT, CHATS, COMPLETIONS, OPENAI, REQUESTS, Form, Request, streamed
from tests.gateway.http.direct.gateways import WHOLE, Gateway, fill_disk, gateway, warm
from tests.gateway.serving import override

pytestmark = pytest.mark.usefixtures("both_ways")

ASKED = CHAT | {"stream": True}
STREAMS: dict[str, dict[str, Request]] = {
    client: {name: streamed(each) for name, each in requests.items()} for client, requests in REQUESTS.items()
}
STREAMS["openai"]["usage"] = streamed(OPENAI).but(stream_options={"include_usage": True})
CALL = {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
COUNTED = {"usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}}
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no","type":"t","code":"c"}}\n\n'


def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    """A chunk of a stream."""
    fields = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices} | more
    return b"data: %b\n\n" % json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


USAGE = event([], **COUNTED)


class Events(NamedTuple):
    """The events of a server's streams in one form."""

    form: Form

    def part(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        """A chunk of the first choice."""
        return event([{"index": 0, **self.form.part(delta), "finish_reason": finish}], **more)

    def texts(self, *given: str) -> list[bytes]:
        """Chunks that add texts."""
        return [self.part({"content": each}) for each in given]

    @property
    def ending(self) -> list[bytes]:
        """The end of a stream."""
        return [self.part({}, "stop"), USAGE, DONE]

    def bodies(self) -> dict[str, list[bytes]]:
        """Streams of all kinds."""
        part, texts, ending = self.part, self.texts, self.ending
        role, last = part({"role": "assistant", "content": ""}), ending[0]
        words = texts("The ", "quick ", "brown ", "fox", ".")
        return {
            "plain": [role, *words, *ending],
            "no role": [*words, *ending],
            "long": [*words * 20, *ending],
            "one": [role, *texts("Yes"), *ending],
            "nothing": [role, *ending],
            "not ASCII": [role, *texts("a", "é", "漢字", "😀", "b"), *ending],
            "line separators": [role, *texts("a", "b\u2028c", "d"), *ending],
            "escapes": [role, *texts("a", '"', "\n", "\\", "b"), *ending],
            "empty texts": [role, *texts("a", "", "b", "", ""), *ending],
            "numbered": [role, *(part({"content": "a"}, created=number) for number in range(6)), *ending],
            "usage so far": [role, *(part({"content": "a"}, usage=None) for _ in range(5)), *ending],
            "counted from the first": [part({"content": "a"}, **COUNTED), *words, *ending],
            "usage in the last": [role, *words, part({}, "stop", **COUNTED), DONE],
            "a text in the last": [role, *words, part({"content": "!"}, "length"), USAGE, DONE],
            "a call": [role, part({"tool_calls": [CALL]}), part({}, "tool_calls"), USAGE, DONE],
            "a call behind texts": [role, *words, part({"tool_calls": [CALL]}), *words, *ending],
            "reasoning": [role, part({"reasoning_content": "hm"}), *words, *ending],
            "reasoning between": [role, *words, part({"reasoning_content": "hm"}), *words, *ending],
            "a refusal": [role, *words, part({"refusal": "no"}), *words, *ending],
            "thoughts": [role, *words, part({"content": "a", "extra_content": THOUGHT}), *words, *ending],
            "comments": [b": hello\n\n", role, *words[:3], b": still here\n\n", *words[3:], *ending],
            "other lines": [each.replace(b"\n", b"\r\n") for each in (role, *words, *ending)],
            "names": [b"event: x\nid: 7\n" + each for each in (role, *words, *ending)],
            "no usage": [role, *words, last, DONE],
            "no end": [role, *words, last],
            "not finished": [role, *words],
            "not finished but done": [role, *words, DONE],
            "unknown end": [role, *words, part({}, "tired"), USAGE, DONE],
            "behind the end": [role, *words, *ending, *words],
            "behind its end": [role, *words, last, *words, USAGE, DONE],
            "another choice": [role, *words, event([{"index": 1, "delta": {"content": "x"}}]), *ending],
            "an error": [role, *words, ERROR],
            "an error first": [ERROR],
            "an error behind the role": [role, ERROR],
            "no JSON": [role, *words, b"data: {\n\n", *ending],
            "no JSON first": [b"data: what?\n\n"],
            "not UTF-8": [role, *words, words[0].replace(b"The", b"\xff"), *ending],
            "no chunk": [role, *words, b"data: {}\n\n", *ending],
            "empty": [],
        }


THOUGHT = {"google": {"thought": True}}
BODIES = {form.object: Events(form).bodies() for form in (CHATS, COMPLETIONS)}
ROLE, *WORDS = BODIES[CHATS.object]["plain"][:6]
ENDING = LAST, _, _ = Events(CHATS).ending
texts = Events(CHATS).texts
HEADS: dict[str, bytes] = {
    "usual": STREAM,
    "more": STREAM.replace(b"event-stream", b"event-stream; charset=utf-8"),
    "closing": STREAM.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
    "interim": b"HTTP/1.1 102 Processing\r\n\r\n" + STREAM,
    "until the end": STREAM.replace(b"transfer-encoding: chunked\r\n", b""),
    "another type": STREAM.replace(b"text/event-stream", b"application/x-ndjson"),
    "marked": STREAM.replace(b"\r\n\r\n", b"\r\nx-interlingua-token-ids: retokenised\r\n\r\n"),
    "refused": STREAM.replace(b"200 OK", b"400 Bad Request"),
}
FRAMES: dict[str, Any] = {
    "chunks": lambda events: b"".join(map(chunk, events)),
    "one chunk": lambda events: chunk(b"".join(events)) if events else b"",
    "split chunks": lambda events: b"".join(chunk(each[:20]) + chunk(each[20:]) for each in events),
    "capitals": lambda events: b"".join(b"0%X\r\n%b\r\n" % (len(each), each) for each in events),
    "extensions": lambda events: b"".join(b"%x;a=b\r\n%b\r\n" % (len(each), each) for each in events),
    "no length": b"".join,
}
OTHER_ANSWERS: dict[str, tuple[Step, ...]] = {
    "whole": (response(WHOLE),),
    "500": (response(b"no", "500 Internal Server Error"),),
    "429": (response(b"no", "429 Too Many Requests", more="retry-after: 7\r\n"),),
    "closed": (Close(),),
    "reset": (Reset(),),
    "cut head": (STREAM[:20], Close()),
}


@st.composite
def turns(draw: Any) -> tuple[Request, dict[str, str], tuple[Step, ...]]:
    """A client's request for a stream, and what the server does."""
    requests = STREAMS[draw(st.sampled_from([*STREAMS]))]
    request = requests[draw(st.sampled_from([*requests, *[""] * 2 * len(requests)]))]
    return request, {}, draw(plays(BODIES[request.form.object]))


@st.composite
def plays(draw: Any, bodies: dict[str, list[bytes]]) -> tuple[Step, ...]:
    """What a server does."""
    if not draw(st.integers(0, 9)):
        return OTHER_ANSWERS[draw(st.sampled_from([*OTHER_ANSWERS]))]
    head = HEADS[draw(st.sampled_from(["usual"] * 5 + [*HEADS]))]
    frame = "no length" if b"chunked" not in head else draw(st.sampled_from(["chunks"] * 4 + [*FRAMES][:-1]))
    events = bodies[draw(st.sampled_from(["plain", "no role", "long", "no usage"] * 4 + [*bodies]))]
    data = head + FRAMES[frame](events)
    last = draw(st.sampled_from([END, END, END, Close(), Reset()])) if frame != "no length" else Close()
    if draw(st.integers(0, 4)) == 0 and not isinstance(last, bytes):
        data = data[: draw(st.integers(0, len(data)))]
    # A read of whole chunks is what most of a stream comes in.
    ends = [end for end in accumulate(map(len, map(chunk, events)), initial=len(head)) if end <= len(data)]
    place = st.sampled_from(ends or [0]) if frame == "chunks" and draw(st.booleans()) else st.integers(0, len(data))
    places = sorted(draw(st.lists(place, max_size=6)))
    pieces = [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]
    steps: list[Step] = []
    for piece in filter(None, pieces):
        steps += [piece, Pause(0)]  # so that the gateway reads it by itself
    return (*steps, last)


def without_times(seen: dict[str, Any]) -> dict[str, Any]:
    """All but how often outputs came: that depends on how the kernel joins what is sent."""
    seen["metrics"] = {key: value for key, value in seen["metrics"].items() if "inter_token" not in key[0]}
    return seen


@settings(max_examples=100, deadline=None)
@given(st.lists(turns(), min_size=1, max_size=6))
def test_streams_without_a_task_are_as_those_with_one(
    both: Any, turns: list[tuple[Request, dict[str, str], tuple[Step, ...]]]
) -> None:
    runner, gateways = both

    async def compare() -> None:
        for turn in turns:
            direct, usual = [without_times(await each.turn(*turn)) for each in gateways]
            assert direct == usual

    runner.run(compare())


@pytest.mark.parametrize("body", ["long", "no usage", "not ASCII", "empty texts"])
@pytest.mark.parametrize("client", STREAMS)
def test_runs_in_whole_chunks_are_written_as_with_a_task(client: str, body: str, both: Any) -> None:
    runner, gateways = both
    plain = STREAMS[client][""]
    events = BODIES[plain.form.object][body]
    steps: list[Step] = [STREAM, Pause(0)]
    for each in events:
        steps += [chunk(each), Pause(0)]

    async def compare() -> None:
        for _ in range(2):  # the first one may have no idle connection
            direct, usual = [without_times(await each.turn(plain, {}, (*steps, END))) for each in gateways]
            assert direct == usual

    runner.run(compare())


@pytest.mark.parametrize("client", STREAMS)
async def test_plain_streams_of_all_protocols_have_no_task(client: str, tasks: list[str]) -> None:
    plain = STREAMS[client][""]
    steps = (STREAM + b"".join(map(chunk, BODIES[plain.form.object]["no role"])) + END,)
    async with gateway() as there:
        answers = [await there.turn(plain, {}, steps) for _ in range(2)]
    assert tasks == ["direct", "direct"]
    assert answers[0]["body"] == answers[1]["body"]
    assert answers[0]["headers"] == answers[1]["headers"]


STEPS: tuple[Step, ...] = (STREAM + b"".join(map(chunk, (ROLE, *WORDS, *ENDING))) + END,)


async def test_a_plain_stream_has_no_task(tasks: list[str]) -> None:
    async with gateway() as there:
        for _ in range(3):
            there.steps[:] = [STEPS]
            answer = await there.client.post("/v1/chat/completions", json=ASKED)
            assert answer.content == b"".join([ROLE, *WORDS, LAST, DONE])
    assert tasks == ["direct", "direct", "direct"]


async def streaming(there: Gateway, *steps: Step) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has read the first events of a stream."""
    await warm(there)
    there.steps.append((STREAM + b"".join(map(chunk, (ROLE, *WORDS[:2]))), *steps))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # the kernel takes little for who reads slowly
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", there.port))
    reader, writer = await asyncio.open_connection(sock=client)
    body = json.dumps(ASKED).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(WORDS[1])
    return reader, writer


async def test_answers_beside_others_are_logged_soon_and_counted_when_asked(tasks: list[str]) -> None:
    async def counted() -> float:
        lines = (await there.client.get("/metrics")).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("gw_requests_total{"))

    async with gateway() as there:
        with capture_logs() as logs:
            _, writer = await streaming(there, Hang())
            before = await counted()
            assert (await there.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            assert await counted() == before + 1
            logs.clear()
            assert (await there.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            while not logs:  # noqa: ASYNC110 - 5 ms at most
                await asyncio.sleep(0.001)
            writer.close()
    assert logs[0]["outcome"] == "ok"
    assert set(tasks) == {"direct"}


async def test_the_first_text_does_not_wait_for_those_that_came_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, int]] = []

    def note(name: str, events: ir.Events) -> None:
        taken.append((name, len([event for event in events if isinstance(event, ir.Delta) and event.text])))

    class Noted(StreamedRequest):
        def begin(self, events: ir.Events) -> bool:
            note("begin", events)
            return super().begin(events)

        def take(self, events: ir.Events) -> None:
            note("take", events)
            super().take(events)

        def take_rest(self, events: ir.Events) -> None:
            note("take_rest", events)
            super().take_rest(events)

    monkeypatch.setattr(lane, "StreamedRequest", Noted)
    async with gateway() as there:
        _, writer = await streaming(there, Hang())
        # Before them another stream has come as a whole, to warm up.
        assert taken[-2:] == [("begin", 1), ("take_rest", 1)]
        writer.close()


async def test_runs_pass_the_parsers_by(relayed: list[bytes], tasks: list[str]) -> None:
    events = [asyncio.Event() for _ in WORDS[2:]]
    waits = [step for event, word in zip(events, WORDS[2:], strict=True) for step in (Wait(event), chunk(word))]
    async with gateway() as there:
        rest = asyncio.Event()
        reader, writer = await streaming(there, *waits, Wait(rest), b"".join(map(chunk, ENDING)) + END)
        for at, word in zip(events, WORDS[2:], strict=True):
            at.set()
            await reader.readuntil(word)
        rest.set()
        assert (await reader.readuntil(END)).endswith(LAST + DONE + b"\r\n" + END)
        writer.close()
        await there.settled()
        (counted,) = [value for (name, _), value in there.counts().items() if "inter_token" in name]
        assert counted >= len(events)
    assert relayed[: len(events)] == [chunk(word) for word in WORDS[2:]]
    assert tasks == ["direct", "direct"]


async def test_the_times_of_a_run_are_counted_together_and_the_rest_at_its_end() -> None:
    def counted(there: Gateway) -> float:
        return sum(value for (name, _), value in there.counts().items() if "inter_token" in name)

    events = [asyncio.Event() for _ in range(40)]
    waits = [step for event in events for step in (Wait(event), chunk(WORDS[2]))]
    async with gateway() as there:
        reader, writer = await streaming(there, *waits, Hang())
        for at in events:
            at.set()
            await reader.readuntil(WORDS[2])
        assert counted(there) == 32
        writer.close()
        while there.there.gone == 0:  # noqa: ASYNC110 - the upstream has no event for it
            await asyncio.sleep(0.001)
        await there.settled()
        assert counted(there) == 40


async def test_a_client_that_leaves_ends_the_stream(tasks: list[str]) -> None:
    async with gateway() as there:
        with capture_logs() as logs:
            _, writer = await streaming(there, Hang())
            writer.close()
            while there.there.gone == 0:  # noqa: ASYNC110 - the upstream has no event for it
                await asyncio.sleep(0.001)
            await there.settled()
        (entry,) = [each for each in logs if each["event"] == "request.finished"][1:]
        attempts = {k: v for k, v in there.counts().items() if k[0] == "gw_upstream_attempts"}
    assert (entry["outcome"], entry["stage"], entry["status"]) == ("client_gone", "stream", 200)
    assert {labels[1] for _, labels in attempts} == {"ok", "cancelled"}
    assert tasks == ["direct", "direct"]


async def test_a_stream_that_stalls_is_cut(tasks: list[str]) -> None:
    async with gateway(timeouts={"idle": 0.2}) as there:
        reader, writer = await streaming(there, Hang())
        assert b'"error"' in await reader.readuntil(END)
        writer.close()
        await there.settled()
        assert there.backend._breaker.failures == 1
    assert tasks == ["direct", "direct"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_server_that_stops_waits_for_a_stream_and_then_cancels_it(
    late: bool, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    ways: list[DirectWay] = []

    def opened(own: Any, way: DirectWay, *given: Any) -> Any:
        ways.append(way)
        return own(way, *given)

    override(monkeypatch, client_connection, "DirectWay", open=opened)
    async with gateway() as there:
        event = asyncio.Event()
        with capture_logs() as logs:
            reader, writer = await streaming(there, Wait(event), b"".join(map(chunk, ENDING)) + END)
            connection: Any = ways[0]._connection
            there.app.state.service.draining = True
            connection.shutdown()
            connection.shutdown()
            (guard,) = connection.server_state.tasks
            if late:
                guard.cancel(msg="too long")
            else:
                event.set()
            answer = await reader.read()
            event.set()
            writer.close()
            await there.settled()
        entry = [each for each in logs if each["event"] == "request.finished"][-1]
        assert not connection.server_state.tasks
    assert answer.endswith(END)
    assert (b"shutting down" in answer) is late
    assert entry["outcome"] == ("cancelled" if late else "ok")
    assert tasks == ["direct", "direct"]


async def test_a_slow_client_gets_all_of_a_stream(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    paused: list[str] = []
    for name in ("pause", "resume"):

        def noted(method: Any, request: StreamedRequest, name: str = name) -> None:
            paused.append(name)
            method(request)

        override(monkeypatch, lane, "StreamedRequest", **{name: noted})
    buffered: list[int] = []

    def received(heard: Any, connection: Connection, data: bytes) -> None:
        heard(connection, data)
        buffered.append(connection._buffered)

    override(monkeypatch, pool, "Connection", data_received=received)
    words = texts(*(f"{number:06d}" * 200 for number in range(20_000)))
    async with gateway(timeouts={"idle": 5}) as there:
        reader, writer = await streaming(there, *map(chunk, words), b"".join(map(chunk, ENDING)) + END)
        while "pause" not in paused:  # noqa: ASYNC110 - the connection has no event for it
            await asyncio.sleep(0.001)
        answer = await _all(reader)
        writer.close()
        await there.settled()
    assert [answer.count(word) for word in words[::1999]] == [1] * len(words[::1999])
    assert paused[:2] == ["pause", "resume"]
    assert max(buffered) < 1 << 21
    assert tasks == ["direct", "direct"]


async def _all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while not answer.endswith(END):
        answer += await reader.read(1 << 16)
    return bytes(answer)


async def test_a_stream_that_cannot_be_counted_has_no_clean_end(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    fill_disk(monkeypatch, full=(full := []))
    async with gateway() as there:
        await warm(there)
        with capture_logs() as logs:
            full.append(True)
            there.steps[:] = [STEPS]
            answer = await there.client.post("/v1/chat/completions", json=ASKED)
        assert answer.status_code == 500 or b'"error"' in answer.content
        assert b"DONE" not in answer.content
        await there.settled()
    (entry,) = [each for each in logs if each["event"] == "request.finished"]
    assert entry["outcome"] == "internal"
    assert tasks == ["direct", "direct"]
