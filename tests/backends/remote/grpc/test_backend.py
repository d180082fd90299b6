"""Servers over gRPC as remotes: a real server and a real connection."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from backends.remote import kinds
from backends.remote.backend import RemoteBackend
from backends.remote.options import RemoteOptions
from backends.remote.probe import Found, list_models, probe
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    Fault,
    GatewayError,
    Incomplete,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)
from schemas.ir import Event, Finished, FinishReason, Generate, Sampling, Stopping, TextPrompt, Usage
from tests.backends.remote.grpc.triton import STATUS, Turn, remote, triton
from tests.backends.transport.servers import make_certificate
from tests.ports import free_port

ASK = Generate(id="r", model="m", prompts=(TextPrompt("Say it."),), stopping=Stopping(max_new_tokens=9), stream=True)
WHOLE = Generate(id="r", model="m", prompts=(TextPrompt("Say it."),), sampling=Sampling(seed=1 << 63))
REFUSED_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


async def ask(backend: RemoteBackend, request: Generate = ASK) -> tuple[tuple[Event, ...], GatewayError | None]:
    """All events, and the error if there was one; an answer has either its `Usage` or an error."""
    events: list[Event] = []
    error = None
    async with aclosing(backend.generate(request)) as stream:
        try:
            async for batch in stream:
                events += batch
        except GatewayError as raised:
            error = raised
    assert (bool(events) and isinstance(events[-1], Usage)) == (error is None)
    return tuple(events), error


def text_of(events: tuple[Event, ...]) -> str:
    return "".join(getattr(event, "text", "") for event in events)


async def tell(request: Any, turn: Turn) -> None:
    """The whole of an answer in three parts, or in one."""
    if turn.method == "ModelInfer":
        await turn.say("one two", "stop", num_input_tokens=3, num_output_tokens=2)
        return
    await turn.say("one", num_input_tokens=3, num_output_tokens=1)
    await turn.say(" tw", num_input_tokens=3, num_output_tokens=1)
    await turn.say("o", "stop", num_input_tokens=3, num_output_tokens=0)


async def test_an_answer_is_the_same_whole_and_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret")
    async with triton(tell) as there, remote(there.url, api_key_env="KEY", headers={"X-Team": "a"}) as backend:
        for request in (ASK, WHOLE):
            events, error = await ask(backend, request)
            assert (text_of(events), error) == ("one two", None)
            assert events[-1] == Usage(3, 2)
            assert [event.reason for event in events if isinstance(event, Finished)] == [FinishReason.EOS]
    assert there.calls == ["ModelStreamInfer", "ModelInfer"]
    assert [found["authorization"] for found in there.metadata] == ["Bearer secret"] * 2
    assert [found["x-team"] for found in there.metadata] == ["a"] * 2
    stream, whole = there.requests
    assert [tensor.name for tensor in whole.inputs] == [tensor.name for tensor in stream.inputs]
    assert stream.parameters["max_tokens"].int64_param == 9
    assert whole.parameters["seed"].uint64_param == 1 << 63
    # A whole answer has a deadline, a stream none as a whole.
    in_stream, in_whole = there.remaining
    assert in_stream is None
    assert in_whole is not None
    assert 590 < in_whole < 602  # gRPC rounds it


async def test_a_decoupled_model_answers_whole_requests_by_a_stream() -> None:
    async def play(request: Any, turn: Turn) -> None:
        if turn.method == "ModelInfer":
            await turn.context.abort(STATUS.UNIMPLEMENTED, REFUSED_DECOUPLED)
        await tell(request, turn)

    async with triton(play) as there, remote(there.url) as backend:
        for _ in range(2):
            events, error = await ask(backend, WHOLE)
            assert (text_of(events), error) == ("one two", None)
    assert there.calls == ["ModelInfer", "ModelStreamInfer", "ModelStreamInfer"]


ENDS: dict[str, tuple[Any, type[GatewayError]]] = {
    "a status": (lambda turn: turn.context.abort(STATUS.INTERNAL, "CUDA is gone"), Incomplete),
    "the server's end": (lambda turn: turn.context.abort(STATUS.UNAVAILABLE, "Cancelling all calls"), Incomplete),
    "a clean end": (lambda turn: asyncio.sleep(0), Incomplete),
    "an error": (lambda turn: turn.fail("CUDA is gone"), BackendFailed),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_is_cut_is_never_complete(end: str) -> None:
    how, kind = ENDS[end]

    async def play(request: Any, turn: Turn) -> None:
        await turn.say("one")
        await how(turn)

    async with triton(play) as there, remote(there.url) as backend:
        events, error = await ask(backend)
    assert text_of(events) == "one"
    assert type(error) is kind
    assert "CUDA" not in str(error)
    assert there.calls == ["ModelStreamInfer"]


STATUSES = {
    STATUS.INVALID_ARGUMENT: InvalidRequest,
    STATUS.NOT_FOUND: ModelNotFound,
    STATUS.RESOURCE_EXHAUSTED: Overloaded,
    STATUS.UNAVAILABLE: BackendUnavailable,
    STATUS.DEADLINE_EXCEEDED: BackendTimeout,
    STATUS.UNAUTHENTICATED: BackendFailed,
    STATUS.INTERNAL: BackendFailed,
    STATUS.UNIMPLEMENTED: BackendFailed,
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_statuses_are_typed_errors(stream: bool) -> None:
    codes = iter(STATUSES)

    async def play(request: Any, turn: Turn) -> None:
        await turn.context.abort(next(codes), "said by the server", trailing_metadata=(("retry-after", "7"),))

    async with triton(play) as there, remote(there.url, retries={"attempts": 1}, failures=1) as backend:
        for code, kind in STATUSES.items():
            events, error = await ask(backend, ASK if stream else WHOLE)
            assert (events, type(error)) == ((), kind), code
            assert isinstance(error, GatewayError)
            assert not isinstance(error, BackendError) or error.fault is None
            assert (error.retry_after == 7) == (code in (STATUS.RESOURCE_EXHAUSTED, STATUS.UNAVAILABLE))
            assert ("said by" in error.message) == (code in (STATUS.INVALID_ARGUMENT, STATUS.NOT_FOUND))
            # Only a failure of the server's own counts, as over HTTP.
            assert backend._breaker.open == (code in (STATUS.DEADLINE_EXCEEDED, STATUS.INTERNAL, STATUS.UNIMPLEMENTED))
    assert len(there.calls) == len(STATUSES)


async def test_a_busy_server_is_asked_again() -> None:
    async def play(request: Any, turn: Turn) -> None:
        if len(there.calls) < 3:
            await turn.context.abort(STATUS.UNAVAILABLE, "busy")
        await tell(request, turn)

    async with triton(play) as there, remote(there.url, retries={"base": 0.001}) as backend:
        assert text_of((await ask(backend))[0]) == "one two"
    assert len(there.calls) == 3


async def test_another_server_is_asked_if_one_is_busy_or_breaks_off_before_its_first_event() -> None:
    async def refuse(request: Any, turn: Turn) -> None:
        code = STATUS.UNAVAILABLE if there.calls[1:] else STATUS.INTERNAL
        await turn.context.abort(code, "not now")

    options = {"retries": {"attempts": 1}, "health_interval": 3600.0, "routing": "least", "timeouts": {"connect": 60.0}}
    async with triton(refuse) as there, triton(tell) as other:
        both = kinds.triton_grpc("far", {"urls": [there.url, other.url]} | options)
        await both.start()
        for request in (ASK, WHOLE, ASK, WHOLE):
            events = [event async for batch in both.generate(request) for event in batch]
            assert text_of(tuple(events)) == "one two"
        await both.aclose()
    assert there.calls
    assert len(other.calls) == 4


async def test_a_server_that_is_not_there_is_never_asked_and_is_found_when_it_comes() -> None:
    port = free_port()
    async with remote(f"http://127.0.0.1:{port}", retries={"attempts": 1}) as backend:
        assert (await backend.healthy()).status == "loading"
        _, error = await ask(backend)
        assert isinstance(error, BackendUnavailable)
        assert error.fault is Fault.CONNECT
        assert "127.0.0.1" not in error.message
        async with triton(tell, port=port):
            while (await ask(backend))[1] is not None:  # noqa: ASYNC110 - gRPC has no event for it
                await asyncio.sleep(0.05)


async def test_a_client_that_leaves_cancels_the_call() -> None:
    async def play(request: Any, turn: Turn) -> None:
        await turn.say("one")
        await asyncio.sleep(600)

    async with triton(play) as there, remote(there.url) as backend:
        async with aclosing(backend.generate(ASK)) as stream:
            await anext(stream)
        await asyncio.wait_for(there.cancelled.wait(), 60)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_silent_server_is_given_up_at_the_deadline(stream: bool) -> None:
    async def play(request: Any, turn: Turn) -> None:
        await asyncio.sleep(600)

    timeouts = {"first_token": 1.0, "whole": 1.0}
    async with triton(play) as there, remote(there.url, timeouts=timeouts) as backend:
        _, error = await ask(backend, ASK if stream else WHOLE)
        assert isinstance(error, BackendTimeout)
        assert error.fault is Fault.TIMEOUT
        await asyncio.wait_for(there.cancelled.wait(), 60)
    assert len(there.calls) == 1


async def test_a_stream_that_stalls_is_incomplete() -> None:
    async def play(request: Any, turn: Turn) -> None:
        await turn.say("one")
        await asyncio.sleep(600)

    async with triton(play) as there, remote(there.url, timeouts={"idle": 0.2}) as backend:
        events, error = await ask(backend)
    assert (text_of(events), type(error)) == ("one", Incomplete)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_messages_are_bounded_both_ways(stream: bool) -> None:
    async def play(request: Any, turn: Turn) -> None:
        await turn.say("x" * 5000, "stop")

    options = [("grpc.max_receive_message_length", 2000)]
    async with triton(play, options=options) as there, remote(there.url, limits={"body": 1000}) as backend:
        request = ASK if stream else WHOLE
        _, error = await ask(backend, request)
        assert isinstance(error, BackendFailed)
        assert error.fault is Fault.TOO_BIG
        long = Generate(id="r", model="m", prompts=(TextPrompt("x" * 3000),), stream=stream)
        _, error = await ask(backend, long)
        assert error is not None
        assert error.kind == "body_too_large"


async def test_calls_wait_for_their_turn_and_leave_it() -> None:
    running, most = 0, 0

    async def play(request: Any, turn: Turn) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        await tell(request, turn)

    async with triton(play) as there, remote(there.url, limits={"connections": 2}) as backend:
        answers = await asyncio.gather(*(ask(backend, request) for request in (ASK, WHOLE) * 4))
        assert all(error is None for _, error in answers)
        assert most == 2
        async with aclosing(backend.generate(ASK)) as stream:
            await anext(stream)
        assert backend._connected is not None
        assert backend._connected.requests._turns._running == 0  # type: ignore[attr-defined]


async def test_keys_take_turns_and_a_refused_one_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "first")
    monkeypatch.setenv("B", "second")

    async def play(request: Any, turn: Turn) -> None:
        if dict(turn.context.invocation_metadata() or ())["api-key"] == "first":
            await turn.context.abort(STATUS.UNAUTHENTICATED, "no")
        await tell(request, turn)

    async with triton(play) as there, remote(there.url, api_key_env=["A", "B"], key_header="Api-Key") as backend:
        for _ in range(3):
            assert (await ask(backend))[1] is None
    assert [found["api-key"] for found in there.metadata].count("first") <= 1


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "localhost")
    key = certificate.with_suffix(".key")
    pem = certificate.read_bytes()
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), pem)], pem, require_client_auth=True)
    async with triton(tell, credentials=credentials) as there:
        url = f"https://localhost:{there.port}"
        shown = {"client_cert": str(certificate), "client_key": str(key)}
        async with remote(url, ca_file=str(certificate), **shown) as backend:
            assert (await ask(backend))[1] is None
        for options in ({"ca_file": str(certificate)}, shown):
            async with remote(url, retries={"attempts": 1}, **options) as backend:
                _, error = await ask(backend)
                assert isinstance(error, BackendUnavailable)
    assert len(there.calls) == 1


async def test_a_server_says_whether_it_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    async with triton(tell) as there:
        there.ready = False
        async with remote(there.url) as backend:
            # As over HTTP: it answers, and may have other models that are ready.
            assert (await backend.healthy()).status == "ready"
            assert "it is not ready" in capsys.readouterr().out
            there.ready = True
            assert backend._health_check is not None
            await backend._health_check.check()
            assert "backend.reached" in capsys.readouterr().out


async def test_a_server_is_detected_and_lists_its_models() -> None:
    async with triton(tell) as there:
        assert await probe(RemoteOptions(url=there.url)) == Found("triton-grpc", there.url, ("a", "b"))
        assert await list_models("triton-grpc", RemoteOptions(url=there.url)) == ("a", "b")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"url": "http://host:8001/v2", "proxy": "socks5://proxy:1080"}
    found = dict(kinds.triton_grpc.problems(options))
    assert found[("url",)] == "the URL of a server that speaks gRPC has no path"
    assert found[("proxy",)] == "gRPC goes through HTTP proxies only"
    monkeypatch.setattr(kinds, "is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'interlingua\[grpc\]'"):
        kinds.triton_grpc("far", {"url": "http://host:8001"})
