"""Requests that are answered without a task: as those that have one, and with it where anything is unusual."""

from __future__ import annotations

import asyncio
import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.access import keys as keys_module
from gateway.config import EndpointLimit
from gateway.http.direct import lane
from gateway.http.direct.request import DirectRequest
from gateway.http.entrance import Entrance
from gateway.server import client_connection
from schemas.errors import BackendUnavailable, Fault
from tests.faults.upstream import Close, Hang, Reset, Step, Wait, response
from tests.gateway.http.direct.clients import CHAT, CHATS, COMPLETIONS, COUNTS, REQUESTS, Form, Request, streamed
from tests.gateway.http.direct.gateways import WHOLE, Gateway, fill_disk, gateway, warm
from tests.gateway.serving import override

pytestmark = pytest.mark.usefixtures("both_ways")

CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\n"
HEAD_OF_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n"
"""But for the body's length."""
ERROR = b'{"error":{"message":"no","type":"t","code":"c"}}'
HEADERS: dict[str, dict[str, str]] = {
    "none": {},
    "a timeout": {"x-request-timeout": "60"},
    "no key": {"authorization": ""},
    "another key": {"authorization": "Bearer other"},
    "a trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    "another host": {"host": "example.com"},
    "a unit": {"x-ab-unit": "a"},
    "another unit": {"x-ab-unit": "c"},
}


def plays(form: Form) -> dict[str, tuple[Step, ...]]:
    """What a server does that answers in a form."""
    whole = form.answer()
    length = HEAD + b"content-length: %d\r\n\r\n" % len(whole)

    def altered(**fields: Any) -> tuple[Step, ...]:
        return (response(json.dumps(form.fields(**fields)).encode()),)

    def answered(**choice: Any) -> tuple[Step, ...]:
        return (response(form.answer(**choice)),)

    def saying(**message: Any) -> tuple[Step, ...]:
        return answered(message={"role": "assistant", "content": "Yes."} | message)

    return {
        "whole": (response(whole),),
        "pieces": (length[:9], length[9:], whole[:50], whole[50:]),
        "chunked": (HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(whole), whole), b"0\r\n\r\n"),
        "compressed": (response(gzip.compress(whole), more="content-encoding: gzip\r\n"),),
        "until the end": (HEAD + b"\r\n" + whole, Close()),
        "closing": (response(whole, more="connection: close\r\n"), Close()),
        "interim": (b"HTTP/1.1 102 Processing\r\n\r\n" + response(whole),),
        "more than asked for": (response(whole) + b"HTTP/1.1 200 OK\r\n",),
        "marked": (response(whole, more="x-interlingua-token-ids: retokenised\r\n"),),
        "length": answered(finish_reason="length"),
        "stop string": answered(stop_reason="x"),
        "stop token": answered(stop_reason=7),
        "filtered": answered(finish_reason="content_filter"),
        "not ASCII": answered(**form.whole('a\u2028\u00e9\u6f22\U0001f600\x00"\\')),
        "nothing": answered(**form.whole("")),
        "calls": (*answered(finish_reason="tool_calls", message={"role": "assistant", "tool_calls": [CALL]}),),
        "parts": saying(content=[{"type": "text", "text": "a"}]),
        "reasoning": saying(reasoning_content="hm"),
        "refusal": saying(refusal="no"),
        "thoughts": saying(extra_content={"google": {"thought": True}}),
        "no content": saying(content=None),
        "both": answered(text="No.", message={"role": "assistant", "content": "Yes."}),
        "scores": answered(logprobs={"content": [{"token": "Yes.", "logprob": -1.0}]}),
        "not finished": answered(finish_reason=None),
        "unknown end": answered(finish_reason="tired"),
        "another choice": answered(index=1),
        "no choice": altered(choices=[]),
        "no usage": altered(usage=None),
        "no count": altered(usage={"prompt_tokens": 9}),
        "cached": altered(usage=COUNTS | {"prompt_tokens_details": {"cached_tokens": 4}}),
        "no model": altered(model=None),
        "error": (response(ERROR),),
        "no JSON": (response(b"{"),),
        "web page": (response(b"<p>", type="text/html"),),
        "400": (response(ERROR, "400 Bad Request"),),
        "401": (response(ERROR, "401 Unauthorized"),),
        "429": (response(ERROR, "429 Too Many Requests", more="retry-after: 7\r\n"),),
        "500": (response(ERROR, "500 Internal Server Error"),),
        "redirect": (response(b"", "302 Found", more="location: http://elsewhere.example/\r\n"),),
        "no HTTP": (b"what?\r\n\r\n",),
        "cut head": (length[:20], Close()),
        "cut body": (length + whole[:20], Close()),
        "reset body": (length + whole[:20], Reset()),
        "closed": (Close(),),
        "reset": (Reset(),),
    }


PLAYS = plays(CHATS)
BY_FORM = {CHATS.object: PLAYS, COMPLETIONS.object: plays(COMPLETIONS)}


@st.composite
def turns(draw: Any) -> tuple[Request, dict[str, str], tuple[Step, ...]]:
    """A client's request, its headers, and what the server does."""
    requests = REQUESTS[draw(st.sampled_from([*REQUESTS]))]
    request = requests[draw(st.sampled_from([*requests, *[""] * 2 * len(requests)]))]
    if not draw(st.integers(0, 5)):
        request = streamed(request)
    headers = HEADERS[draw(st.sampled_from([*HEADERS, *["none"] * 3 * len(HEADERS)]))]
    return request, headers, BY_FORM[request.form.object][draw(st.sampled_from([*PLAYS, *["whole"] * 8]))]


@settings(max_examples=60, deadline=None)
@given(st.lists(turns(), min_size=1, max_size=12))
def test_requests_without_a_task_are_as_those_with_one(
    both: Any, turns: list[tuple[Request, dict[str, str], tuple[Step, ...]]]
) -> None:
    runner, gateways = both

    async def compare() -> None:
        for turn in turns:
            direct, usual = [await each.turn(*turn) for each in gateways]
            assert direct == usual

    runner.run(compare())


@pytest.mark.parametrize("client", REQUESTS)
async def test_plain_requests_of_all_protocols_have_no_task(client: str, tasks: list[str]) -> None:
    plain = REQUESTS[client][""]
    steps = BY_FORM[plain.form.object]["whole"]
    async with gateway(EndpointLimit(per="endpoint", requests=9, window="day")) as there:
        answers = [await there.turn(plain, {}, steps) for _ in range(2)]
    assert tasks == ["direct", "direct"]
    assert answers[0]["body"] == answers[1]["body"]
    left = [{k: v for k, v in each["headers"].items() if "remaining" in k} for each in answers]
    assert [[*each.values()] for each in left] == [["8"], ["7"]]


async def test_a_plain_chat_has_no_task(tasks: list[str]) -> None:
    async with gateway() as there:
        for body in (CHAT, CHAT, CHAT | {"stream": True}, CHAT | {"n": 2}, CHAT | {"seed": 1}):
            await there.client.post("/v1/chat/completions", json=body)
    # The server answers the stream with a whole answer, which is for a task.
    assert tasks == ["direct", "direct", "direct", "handed over", "task", "task", "direct"]


@pytest.mark.parametrize("play", ["closed", "500", "no usage", "cut body"])
async def test_what_is_unusual_goes_on_in_a_task(play: str, tasks: list[str]) -> None:
    async with gateway() as there:
        await warm(there)
        before = len(there.there.asked)
        tasks.clear()
        there.steps.append(PLAYS[play])
        status = (await there.client.post("/v1/chat/completions", json=CHAT)).status_code
        asked = len(there.there.asked) - before
        await there.settled()
    assert tasks == ["direct", "handed over", "task"]
    # A connection that was closed before the answer's first byte: the keep-alive race.
    assert (status, asked) == {"closed": (200, 2), "500": (502, 1), "no usage": (200, 1), "cut body": (502, 1)}[play]


async def test_a_server_that_is_not_reached_is_the_same_error(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    async def refuse(*_: object) -> None:
        raise BackendUnavailable("The backend could not be reached.", fault=Fault.CONNECT)

    seen = []
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(Entrance, "lane", lambda *_: None)
        async with gateway() as there:
            there.backend._connected.requests.pool._connect = refuse  # type: ignore[attr-defined]
            seen.append(await there.turn(REQUESTS["openai"][""], {}, ()))
    assert seen[0] == seen[1]
    assert seen[0]["status"] == 503
    assert tasks == ["direct", "handed over", "task", "task"]


async def hung(there: Gateway, *steps: Step) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client whose request the upstream has and does not answer; it goes on with the steps."""
    await warm(there)
    there.there.asked.clear()
    there.steps.append(steps or (Hang(),))
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    body = json.dumps(CHAT).encode()
    writer.write(HEAD_OF_CHAT + b"content-length: %d\r\n\r\n" % len(body) + body)
    while not there.there.asked:  # noqa: ASYNC110 - the upstream has no event for it
        await asyncio.sleep(0.001)
    return reader, writer


async def sent(there: Gateway, takes: list[str], *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has sent a head and, once that is held back, the parts of its body."""
    await warm(there)
    body = json.dumps(CHAT).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    writer.write(HEAD_OF_CHAT + b"content-length: %d\r\n\r\n" % len(body))
    while "held" not in takes:  # noqa: ASYNC110 - the connection has no event for it
        await asyncio.sleep(0.001)
    for part in parts:
        writer.write(part)
    return reader, writer


def noted_hold(tasks: list[str], takes: Any, *given: Any) -> Any:
    tasks.append("held")
    return takes(*given)


async def test_a_head_is_held_back_for_its_body(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    override(monkeypatch, client_connection, "DirectWay", takes=lambda *given: noted_hold(tasks, *given))
    async with gateway() as there:
        reader, writer = await sent(there, tasks, json.dumps(CHAT).encode())
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert tasks[-2:] == ["held", "direct"]


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_head_whose_body_is_late_begins_a_task(
    leaves: bool, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    override(monkeypatch, client_connection, "DirectWay", takes=lambda *given: noted_hold(tasks, *given))
    async with gateway() as there:
        with capture_logs() as logs:
            reader, writer = await sent(there, tasks)
            if leaves:
                writer.close()
            while tasks[-1] != "task":  # noqa: ASYNC110 - a task has no event for its begin
                await asyncio.sleep(0.001)
            if not leaves:
                writer.write(json.dumps(CHAT).encode())
                assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
                writer.close()
            await there.settled()
        entries = [each for each in logs if each["event"] == "request.finished"]
    assert [each["outcome"] for each in entries] == ["ok", "client_gone" if leaves else "ok"]


@pytest.mark.parametrize("direct", [True, False])
async def test_a_client_that_leaves_cancels_the_request(
    direct: bool, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    if not direct:
        monkeypatch.setattr(Entrance, "lane", lambda *_: None)
    async with gateway() as there:
        with capture_logs() as logs:
            _, writer = await hung(there)
            writer.close()
            while there.there.gone == 0:  # noqa: ASYNC110 - the upstream has no event for it
                await asyncio.sleep(0.001)
            await there.settled()
        (entry,) = [each for each in logs if each["event"] == "request.finished"][1:]
        attempts = {k: v for k, v in there.counts().items() if k[0] == "gw_upstream_attempts"}
    assert (entry["outcome"], entry["stage"], entry["status"], entry["served"]) == (
        "client_gone",
        "generate",
        499,
        "one",
    )
    assert {labels[1] for _, labels in attempts} == {"ok", "cancelled"}
    assert tasks[1:] == (["direct", "handed over", "task"] if direct else ["task"])


async def test_a_deadline_that_passes_is_a_timeout(tasks: list[str]) -> None:
    async with gateway(timeouts={"whole": 0.2}) as there:
        reader, writer = await hung(there)
        assert (await reader.readline()).startswith(b"HTTP/1.1 504 ")
        writer.close()
        assert len(there.there.asked) == 1
    assert tasks[1:] == ["direct", "handed over", "task"]


async def test_a_server_that_stops_answers_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    connections: list[Any] = []

    def hear(own: Any, request: DirectRequest, client: Any) -> None:
        connections.append(client)
        own(request, client)

    override(monkeypatch, lane, "DirectRequest", hear=hear)
    async with gateway() as there:
        event = asyncio.Event()
        reader, writer = await hung(there, Wait(event), response(WHOLE))
        connections[-1]._connection.shutdown()
        event.set()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(WHOLE)
    assert tasks[1:] == ["direct", "handed over", "task"]


def cannot(*_: Any) -> None:
    raise OSError("no space left")


async def test_an_answer_that_cannot_be_counted_is_an_error(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    fill_disk(monkeypatch, full=(full := []))
    async with gateway() as there:
        await warm(there)
        with capture_logs() as logs:
            full.append(True)
            answer = await there.client.post("/v1/chat/completions", json=CHAT)
            full.clear()
        assert answer.status_code == 500
        assert "no space" not in answer.text
        await warm(there)
    (entry,) = [each for each in logs if each["event"] == "request.finished"]
    assert (entry["outcome"], entry["status"]) == ("internal", 500)
    assert tasks == ["direct", "direct", "direct"]


async def test_what_cannot_be_logged_keeps_no_answer_back(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with gateway() as there:
        service = there.app.state.service
        add = service.requests.add
        outcomes = iter([cannot, add, add])
        monkeypatch.setattr(
            service, "requests", SimpleNamespace(add=lambda each: next(outcomes)(each), takes_usual=bool)
        )
        with capture_logs() as logs:
            answers = await asyncio.gather(
                *(there.client.post("/v1/chat/completions", json=CHAT) for _ in range(3)),
            )
            service.ended.make()
    assert [each.status_code for each in answers] == [200, 200, 200]
    assert [str(each["exception"]) for each in failures] == ["no space left"]
    assert [each["outcome"] for each in logs if each["event"] == "request.finished"] == ["ok", "ok"]
    assert tasks == ["direct", "direct", "direct"]


async def test_limits_are_counted_once(monkeypatch: pytest.MonkeyPatch, tasks: list[str]) -> None:
    monkeypatch.setattr(keys_module, "_BETWEEN_LOOKS", 0.0)
    async with gateway(EndpointLimit(per="endpoint", requests=4, window="day", concurrent=1)) as there:
        answers = []
        for play in ("whole", "whole", "500", "whole", "whole"):
            there.steps[:] = [PLAYS[play]]
            answers.append(await there.client.post("/v1/chat/completions", json=CHAT))
            await there.settled()
    assert [each.status_code for each in answers] == [200, 200, 502, 200, 429]
    assert [each.headers["x-ratelimit-remaining-requests"] for each in answers[:2]] == ["3", "2"]
    assert tasks == ["direct", "direct", "direct", "handed over", "task", "direct", "task"]


async def test_what_goes_on_in_a_task_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as there:
        service = there.app.state.service
        others = service.limits.max_concurrent_requests

        def fill_up(hand_over: Any, request: DirectRequest) -> Any:
            service.running += others  # which come before the task begins
            return hand_over(request)

        await warm(there)
        override(monkeypatch, lane, "DirectRequest", hand_over=fill_up)
        there.steps[:] = [PLAYS["500"]]
        answer = await there.client.post("/v1/chat/completions", json=CHAT)
        service.running -= others
    assert answer.status_code == 502
