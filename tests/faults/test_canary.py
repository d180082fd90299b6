"""The keys of upstreams are in no answer, log line, error or traceback, although the upstream repeats them."""

from __future__ import annotations

import json
import traceback

import pytest
import structlog
from structlog.testing import capture_logs

from backends.remote import kinds
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from schemas.errors import GatewayError
from tests.faults.recorded import ask, playing, request
from tests.faults.upstream import END, STREAM, Asked, Close, Reset, Step, chunk, response, upstream
from tests.gateway.serving import running

KEY = "sk-canary-5f3a9c"


def echoing(asked: Asked, status: str) -> tuple[Step, ...]:
    """An upstream that repeats the key it received wherever it can."""
    key = asked.headers.get("authorization", asked.headers.get("api-key", ""))
    words = {"message": f"Wrong: {key}", "error": {"message": f"Wrong: {key}", "type": key, "param": key}}
    return (response(json.dumps(words | {"code": key}).encode(), status, more=f"x-echo: {key}\r\n"),)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CANARY", KEY)
    return KEY


@pytest.mark.slow
@pytest.mark.parametrize("status", ["400 Bad Request", "401 No", "403 No", "404 No", "422 No", "429 No", "500 No"])
@pytest.mark.parametrize("kind", ["openai", "tgi", "triton", "databricks"])
async def test_no_error_holds_the_key(kind: str, status: str, key: str) -> None:
    async with playing(kind, lambda asked: echoing(asked, status), api_key_env="CANARY") as (backend, there):
        _, error = await ask(backend, request(kind, stream=True))
        assert there.asked[-1].headers["authorization"] == f"Bearer {key}"
        assert isinstance(error, GatewayError)
        assert key not in repr(vars(error))
        assert key not in "".join(traceback.format_exception(error))
        if status[:3] in ("401", "403"):
            assert error.kind == "backend_failed"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/serving-endpoints/m/invocations", "/generate"])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_answer_and_no_log_line_holds_the_key(path: str, stream: bool, key: str) -> None:
    plays = [
        lambda asked: echoing(asked, "400 Bad Request"),
        lambda asked: echoing(asked, "401 Unauthorized"),
        lambda asked: echoing(asked, "200 OK"),
        lambda _: (Reset(),),
        lambda asked: (STREAM, chunk(b"data: " + echoing(asked, "400 No")[0].split(b"\r\n\r\n")[1] + b"\n\n"), END),  # type: ignore[union-attr]
        lambda _: (b"\x00", Close()),
    ]
    now = list(plays)

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET") else now[0](asked)

    structlog.reset_defaults()
    async with upstream(play) as there:
        far = {"kind": "openai", "url": there.url, "api_key_env": "CANARY", "key_header": "api-key"}
        entity = ServedEntity(name="m", backend="far")
        config = Config(backends={"far": far}, endpoints={"m": Endpoint(served_entities=(entity,))})
        with capture_logs() as logs:
            async with running(create_app(config)) as client:
                while now:
                    body = {
                        "model": "m",
                        "messages": [{"role": "user", "content": "x"}],
                        "stream": stream,
                        "inputs": "x",
                    }
                    reply = await client.post(path, json=body)
                    assert reply.status_code != 401 or path == ""
                    assert key not in reply.text
                    assert key not in repr(reply.headers)
                    now.pop(0)
        assert there.asked[-1].headers["api-key"] == key
    assert logs
    assert key not in repr(logs)


async def test_a_missing_key_is_reported_by_its_variable() -> None:
    backend = kinds.openai("far", {"url": "http://127.0.0.1:1", "api_key_env": "NO_SUCH_VARIABLE"})
    with pytest.raises(GatewayError, match="NO_SUCH_VARIABLE"):
        await backend.start()
    assert (await backend.healthy()).status == "failed"


async def test_a_key_that_is_no_valid_header_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", f"{KEY}\r\nx: y")
    backend = kinds.openai("far", {"url": "http://127.0.0.1:1", "api_key_env": "CANARY"})
    with pytest.raises(GatewayError) as caught:
        await backend.start()
    assert KEY not in "".join(traceback.format_exception(caught.value))
