"""The port for gRPC: a real server and a real client, over scripted models."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from litestar import Litestar

import schemas
from adapters.formats.protobuf import load
from adapters.triton.grpc.messages import MESSAGES
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Grpc, Limits, ServerSection
from tests.backends.transport.servers import make_certificate
from tests.gateway.grpc.calls import ask, channel, is_last, listening, method, said
from tests.gateway.serving import config, scripted
from tests.missing_tools import missing

STATUS = grpc.StatusCode


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


async def test_a_whole_answer_is_counted_and_recorded() -> None:
    app, _ = scripted("echo")
    async with listening(app) as (_, port), channel(port) as client:
        call = method(client, "ModelInfer")(ask("echo", id="42"))
        answer = await call
        metadata = dict(await call.trailing_metadata())
    assert (said(answer), answer.id) == ("one two three", "42")
    assert metadata["served-model-name"] == "echo-1"
    assert len(metadata["x-request-id"]) == 32
    service = app.state.service
    assert service.running == 0
    text = service.metrics.render().decode()
    assert 'protocol="triton-grpc"' in text
    assert service.counts.joined(service.catalog).cards["echo"].counts.succeeded == 1


@pytest.mark.slow
async def test_requests_of_a_stream_are_answered_side_by_side() -> None:
    app, _ = scripted("echo", "slow")
    async with listening(app) as (_, port), channel(port) as client:
        call = method(client, "ModelStreamInfer")(iter([ask("slow", id="a"), ask("echo", id="b"), ask("nope", id="c")]))
        texts: dict[str, str] = {"a": "", "b": ""}
        ended: list[str] = []
        async for response in call:
            answer = response.infer_response
            if response.error_message:
                assert (answer.id, response.error_message) == ("c", "Request for unknown model: 'nope' is not found")
                continue
            texts[answer.id] += said(answer)
            ended += [answer.id] if is_last(answer) else []
        assert await call.code() is STATUS.OK
    assert texts == {"a": texts["a"], "b": "one two three"}
    assert texts["a"]
    assert ended == ["b", "a"]


async def test_what_is_wrong_is_a_status() -> None:
    app, _ = scripted("echo")
    async with listening(app) as (_, port), channel(port) as client:
        infer = method(client, "ModelInfer")
        assert await failure(infer(ask("nope"))) == (
            STATUS.NOT_FOUND,
            "Request for unknown model: 'nope' is not found",
        )
        assert (await failure(infer(MESSAGES["ModelInferRequest"](model_name="echo"))))[0] is STATUS.INVALID_ARGUMENT
        assert (await failure(method(client, "RepositoryModelLoad")(MESSAGES["RepositoryModelLoadRequest"]())))[
            0
        ] is STATUS.UNAVAILABLE
        nothing = client.unary_unary("/inference.GRPCInferenceService/TraceSetting")
        assert (await failure(nothing(b"")))[0] is STATUS.UNIMPLEMENTED
        gzip = infer(ask("echo"), compression=grpc.Compression.Gzip)
        assert (await failure(gzip))[0] is STATUS.UNIMPLEMENTED


async def test_an_overloaded_server_says_when_to_come_again() -> None:
    app, _ = scripted("hang", server=ServerSection(limits=Limits(max_concurrent_requests=1)))
    async with listening(app) as (_, port), channel(port) as client:
        infer = method(client, "ModelInfer")
        first = infer(ask("hang"))
        while app.state.service.running == 0:  # noqa: ASYNC110 - its only sign
            await asyncio.sleep(0.01)
        with pytest.raises(aio.AioRpcError) as error:
            await infer(ask("hang"))
        assert error.value.code() is STATUS.UNAVAILABLE
        assert dict(error.value.trailing_metadata())["retry-after"] == "1"
        first.cancel()
        await nothing_runs(app)


async def test_a_message_has_a_largest_size() -> None:
    app, _ = scripted("echo", server=ServerSection(limits=Limits(max_body=1000, max_image_body=1000)))
    async with listening(app) as (_, port), channel(port) as client:
        assert (await failure(method(client, "ModelInfer")(ask("echo", "x" * 2000))))[0] is STATUS.RESOURCE_EXHAUSTED


@pytest.mark.slow
async def test_a_key_in_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "sesame")
    app, _ = scripted("echo", server=ServerSection(keys_env="KEYS"))
    right, wrong = (("authorization", "Bearer sesame"),), (("authorization", "Bearer x"),)
    async with listening(app) as (_, port), channel(port) as client:
        infer, stream = method(client, "ModelInfer"), method(client, "ModelStreamInfer")
        assert said(await infer(ask("echo"), metadata=right)) == "one two three"
        assert (await failure(infer(ask("echo"), metadata=wrong)))[0] is STATUS.UNAUTHENTICATED
        twice = (*right, *wrong)
        assert (await failure(infer(ask("echo"), metadata=twice)))[0] is STATUS.INVALID_ARGUMENT
        call = stream(iter([ask("echo")]))
        assert [response async for response in _until_failure(call)] == []
        assert await call.code() is STATUS.UNAUTHENTICATED
        # Health needs none.
        assert (await method(client, "ServerReady")(MESSAGES["ServerReadyRequest"]())).ready
        assert (await failure(method(client, "ModelReady")(MESSAGES["ModelReadyRequest"](name="echo"))))[
            0
        ] is STATUS.UNAUTHENTICATED


async def _until_failure(call: Any) -> Any:
    try:
        while (response := await call.read()) is not aio.EOF:
            yield response
    except (aio.AioRpcError, asyncio.CancelledError):
        return


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["deadline", "cancel"])
async def test_a_client_that_leaves_ends_its_work(leave: str) -> None:
    app, backend = scripted("hang-after-2", "hang")
    service = app.state.service
    async with listening(app) as (_, port), channel(port) as client:
        stream = method(client, "ModelStreamInfer")
        call = stream(iter([ask("hang-after-2"), ask("hang")]), timeout=2.0 if leave == "deadline" else None)
        assert (await call.read()).infer_response.model_name == "hang-after-2"
        assert service.running == 2
        if leave == "cancel":
            call.cancel()
        async for _ in _until_failure(call):
            pass
        infer = method(client, "ModelInfer")(ask("hang"), timeout=1.0 if leave == "deadline" else None)
        if leave == "cancel":
            async with asyncio.timeout(60):
                while backend.cancelled < 2 or not backend.active:  # noqa: ASYNC110 - until it has begun
                    await asyncio.sleep(0.01)
            infer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await infer
        else:
            assert (await failure(infer))[0] is STATUS.DEADLINE_EXCEEDED
        await nothing_runs(app)
    assert backend.active == 0
    assert backend.cancelled == 3


async def nothing_runs(app: Litestar) -> None:
    async with asyncio.timeout(60):
        while app.state.service.running:  # noqa: ASYNC110 - a poll is what the test is about
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_thousand_cancels_and_deadlines_leave_nothing() -> None:
    app, backend = scripted("slow", "hang", "echo")
    chance = random.Random(23)
    async with listening(app) as (_, port), channel(port) as client:
        infer, stream = method(client, "ModelInfer"), method(client, "ModelStreamInfer")

        async def leave() -> None:
            model = chance.choice(("slow", "hang", "echo"))
            after = chance.random() * 0.2
            by_deadline = chance.random() < 0.5
            timeout = after if by_deadline else None
            if chance.random() < 0.5:
                call = infer(ask(model), timeout=timeout)
                reading = asyncio.ensure_future(_finish(call))
            else:
                call = stream(iter([ask(model), ask("hang")]), timeout=timeout)
                reading = asyncio.ensure_future(_read_all(call))
            if not by_deadline:
                await asyncio.sleep(after)
                call.cancel()
            await asyncio.wait((reading,))

        for _ in range(20):
            await asyncio.gather(*(leave() for _ in range(50)))
        await nothing_runs(app)
        assert said(await infer(ask("echo"))) == "one two three"
    assert backend.active == 0
    assert b"\ngw_requests_running 0.0" in app.state.service.metrics.render()


async def _finish(call: Any) -> None:
    try:
        await call
    except (aio.AioRpcError, asyncio.CancelledError):
        return


async def _read_all(call: Any) -> None:
    try:
        async for _ in call:
            pass
    except (aio.AioRpcError, asyncio.CancelledError):
        return


@pytest.mark.slow
async def test_a_client_that_takes_nothing_is_given_up() -> None:
    backend = ScriptedBackend("s", {"context_length": 1 << 20, "scripts": {"long": {"repeat": 10_000}}})
    app = create_app(config("long", server=ServerSection(limits=Limits(write_stall=0.5))), {"s": backend})
    request = ask("long")
    request.parameters["max_tokens"].int64_param = 1 << 18
    # Otherwise the client's library takes some megabytes for itself.
    async with listening(app) as (_, port), channel(port, more=(("grpc.http2.bdp_probe", 0),)) as client:
        call = method(client, "ModelStreamInfer")(iter([request]))
        assert (await call.read()).infer_response
        await nothing_runs(app)
        call.cancel()
    assert backend.active == 0


@pytest.mark.slow
async def test_the_end_waits_for_streams_and_tells_those_that_stay() -> None:
    app, _ = scripted("slow")
    async with listening(app, end=False) as (server, port), channel(port) as client:
        call = method(client, "ModelStreamInfer")()
        await call.write(ask("slow", id="a"))
        assert (await call.read()).infer_response.id == "a"
        server.end()
        responses = [each.infer_response async for each in _until_failure(call)]
        assert is_last(responses[-1])
        assert await call.code() is STATUS.UNAVAILABLE
        assert (await failure(method(client, "ModelInfer")(ask("slow"))))[0] is STATUS.UNAVAILABLE


@pytest.mark.slow
async def test_health_checks() -> None:
    messages = load(Path(schemas.__file__).parent / "grpc_health.proto")
    answer = messages["HealthCheckResponse"]

    def check(client: aio.Channel, name: str) -> Any:
        body = messages["HealthCheckRequest"](service=name).SerializeToString()
        return client.unary_unary("/grpc.health.v1.Health/Check", response_deserializer=answer.FromString)(body)

    app, _ = scripted("echo")
    async with listening(app) as (_, port), channel(port) as client:
        assert (await check(client, "")).status == 1
        assert (await check(client, "inference.GRPCInferenceService")).status == 1
        assert (await failure(check(client, "other")))[0] is STATUS.NOT_FOUND
        watch = client.unary_stream("/grpc.health.v1.Health/Watch", response_deserializer=answer.FromString)
        unknown = watch(messages["HealthCheckRequest"](service="other").SerializeToString())
        assert (await unknown.read()).status == 3
        call = watch(b"")
        assert (await call.read()).status == 1
        app.state.service.draining = True
        assert (await call.read()).status == 2
        assert await call.read() is aio.EOF
        app.state.service.draining = False


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason=missing("openssl, which makes the certificates"))
@pytest.mark.parametrize("asks_clients", [False, True])
async def test_tls(tmp_path: Path, asks_clients: bool) -> None:
    for name in ("server", "client"):
        make_certificate(tmp_path, name)
    section = ServerSection(
        ssl_certfile=str(tmp_path / "server.pem"),
        ssl_keyfile=str(tmp_path / "server.key"),
        ssl_ca_certs=str(tmp_path / "client.pem") if asks_clients else None,
        grpc=Grpc(host="127.0.0.1"),
    )
    app, _ = scripted("echo", server=section)
    trusted = (tmp_path / "server.pem").read_bytes()
    own = {"private_key": tmp_path / "client.key", "certificate_chain": tmp_path / "client.pem"}
    pair = {name: file.read_bytes() for name, file in own.items()} if asks_clients else {}
    async with listening(app) as (_, port):
        async with channel(port, grpc.ssl_channel_credentials(trusted, **pair)) as client:
            assert said(await method(client, "ModelInfer")(ask("echo"))) == "one two three"
        if asks_clients:
            async with channel(port, grpc.ssl_channel_credentials(trusted)) as client:
                assert (await failure(method(client, "ModelInfer")(ask("echo"))))[0] is STATUS.UNAVAILABLE
