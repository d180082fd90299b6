"""Errors over HTTP: every POST route of every dialect answers bad requests with the protocol's own error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapters.base import Route
from gateway.config import Limits, ServerSection
from tests.equality import ADAPTERS
from tests.gateway.serving import running, scripted

pytestmark = pytest.mark.slow

DIALECTS = [(name, dialect) for name, adapter in ADAPTERS.items() for dialect in adapter.dialects]
DEEP = 100_000
BODIES = {
    "empty": b"",
    "not JSON": b"{not json",
    "cut short": b'{"inputs": "x", "messages": [{"role": "us',
    "a list": b"[]",
    "null": b"null",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep inside": b'{"inputs": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "invalid UTF-8": b'{"inputs": "\xff", "prompt": "\xff", "text_input": "\xff"}',
    "overlong UTF-8": b'{"inputs": "\xc0\xaf"}',
    "UTF-16": '{"inputs": "x"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"inputs": "x"}',
    "a lone surrogate": b'{"inputs": "\\ud800", "prompt": "\\ud800", "text_input": "\\ud800"}',
    "beyond a double": b'{"inputs": "x", "prompt": "x", "text_input": "x", "temperature": 1e400}',
    "beyond 64 bits": b'{"inputs": "x", "prompt": "x", "text_input": "x", "seed": 99999999999999999999999}',
    "NaN": b'{"inputs": "x", "prompt": "x", "text_input": "x", "temperature": NaN}',
    "a control character": b'{"inputs": "\x01", "prompt": "\x01", "text_input": "\x01"}',
    "wrong types": b'{"inputs": 3, "prompt": {"a": 1}, "messages": "x", "input": false, "text_input": {"a": 1}}',
    "many containers": b'{"inputs": [' + b"{}," * 200_000 + b"{}]}",
}
BROKEN_CALLS = {
    "a form": {"content-type": "multipart/form-data; boundary=x"},
    "compressed": {"content-encoding": "gzip"},
}
STATUSES = {400, 404, 413, 415, 422, 424}


def app(dialects: dict[str, str], **limits: Any) -> Any:
    server = ServerSection(dialects=dialects, limits=Limits(**limits))
    return scripted("echo", "hang", "error", "error-after-2", server=server)[0]


NO_MODEL = ("describe", "manage", "object", "store")


def posts(protocol: str, dialect: str, model: str = "echo") -> Iterator[tuple[Route, str]]:
    adapter = ADAPTERS[protocol]
    for route in adapter.server(adapter.dialects[dialect]).routes:
        # Those without a model have tests of their own. A route known by fields of bodies shares its path with another
        # protocol, which refuses bodies that cannot be read.
        if route.method == "POST" and route.kind not in NO_MODEL and not route.fields:
            yield (
                route,
                route.path.replace(":path}", "}").format(name=model, model=model, version=1, served=f"{model}-1"),
            )


KEYS = {
    "tgi": {"error", "error_type"},
    "databricks": {"error_code", "message"},
    "openai": {"error"},
    "triton": {"error"},
    "anthropic": {"type", "error", "request_id"},
    "ollama": {"error"},
    "gemini": {"error"},
}


INNER = {
    "openai": {"message", "type", "param", "code"},
    "anthropic": {"message", "type"},
    "gemini": {"code", "message", "status"},
}


def check_error_form(spoken: tuple[str, str], answer: httpx.Response) -> None:
    """Check that an answer has exactly the form of the protocol's error."""
    protocol, dialect = spoken
    body = answer.json()
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"].startswith("application/json")
    assert "Traceback" not in answer.text
    assert "litestar" not in answer.text.lower()
    # MindIE answers errors in one form, whatever the URL.
    assert set(body) == KEYS["tgi" if dialect.startswith("mindie") else protocol]
    if dialect in INNER:
        assert set(body["error"]) == INNER[dialect]
        body = body["error"]
    assert all(isinstance(value, str | None) for name, value in body.items() if (dialect, name) != ("gemini", "code"))


@pytest.fixture(params=DIALECTS, ids=[dialect for _, dialect in DIALECTS])
def spoken(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


async def test_bad_bodies(spoken: tuple[str, str]) -> None:
    protocol, dialect = spoken
    async with running(app({protocol: dialect})) as client:
        for route, path in posts(protocol, dialect):
            for name, body in BODIES.items():
                answer = await client.post(path, content=body, headers={"content-type": "application/json"})
                assert answer.status_code in STATUSES, (route.name, name, answer.status_code, answer.text[:200])
                # A body with vLLM's fields is vLLM's, and gets an error in OpenAI's form.
                is_vllms = protocol == "tgi" and isinstance(answer.json()["error"], dict)
                check_error_form(("openai", "openai") if is_vllms else spoken, answer)
            for headers in BROKEN_CALLS.values():
                answer = await client.post(path, content=b"x", headers=headers)
                assert answer.status_code in STATUSES, (route.name, headers, answer.text[:200])
                check_error_form(spoken, answer)


async def test_a_large_body(spoken: tuple[str, str]) -> None:
    protocol, dialect = spoken
    text = json.dumps("x" * 20_000_000)
    async with running(app({protocol: dialect})) as client:
        for route, path in posts(protocol, dialect):
            body = f'{{"inputs": {text}}}'.encode()
            answer = await client.post(path, content=body)
            assert answer.status_code == 413, (route.name, answer.text[:200])
            check_error_form(spoken, answer)


async def test_unknown_methods_paths_and_models(spoken: tuple[str, str]) -> None:
    protocol, dialect = spoken
    async with running(app({protocol: dialect})) as client:
        for route, path in posts(protocol, dialect):
            answer = await client.request("DELETE", path)
            assert answer.status_code == 405, (route.name, answer.text)
            assert "POST" in answer.headers["allow"]
            nowhere = await client.post(f"{path}/nowhere/at/all", json={})
            # Below `/v1beta/models` everything may be a model's name, which is described by GET.
            assert nowhere.status_code == (405 if protocol == "gemini" else 404), (route.name, nowhere.text)
            assert "litestar" not in nowhere.text.lower()
            json.loads(nowhere.text)
            if protocol != "tgi" and route.example is not None:  # TGI's requests name no model
                body = route.example | ({"model": "absent"} if "{" not in route.path else {})
                unknown = await client.post(path.replace("echo", "absent"), json=body)
                assert unknown.status_code in (400, 404), (route.name, unknown.text)
                assert "absent" in unknown.text
                check_error_form(spoken, unknown)


def question(protocol: str, route: Route, model: str, stream: bool) -> dict[str, Any] | None:
    """The body of a whole or streamed request; None if the route does not serve it."""
    if route.kind != "generate" or route.path.endswith("/infer"):
        return None
    if protocol == "gemini":
        return {"contents": [{"parts": [{"text": "x"}]}]} if stream == route.streams else None
    if protocol == "ollama":
        asked = {"prompt": "x"} if route.name == "generate" else {"messages": [{"role": "user", "content": "x"}]}
        return asked | {"model": model, "stream": stream}
    if "/generate" in route.path:
        body: dict[str, Any] = {"inputs": "x"} if protocol == "tgi" else {"id": "a", "text_input": "x"}
        return body if stream == route.path.endswith("_stream") else None
    if protocol == "anthropic":
        messages = [{"role": "user", "content": "x"}]
        return {"model": model, "max_tokens": 99, "messages": messages, "stream": stream}
    if protocol == "tgi" and route.name == "vertex":
        return None if stream else {"instances": [{"inputs": "x"}]}
    if protocol == "tgi":
        return {"inputs": "x", "stream": stream}
    if route.path.endswith("/responses"):
        return {"model": model, "input": "x", "stream": stream}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    if route.path.endswith("/completions") and "chat" not in route.path:
        asked = {"prompt": "x"}
    return asked | {"stream": stream} | ({} if "{" in route.path else {"model": model})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["error", "error-after-2"])
async def test_failures_before_and_after_the_first_event(spoken: tuple[str, str], model: str, stream: bool) -> None:
    """The answer has an error status, or, after the first event, the stream ends with an error frame."""
    protocol, dialect = spoken
    seen = 0
    gateway, _ = scripted(model, server=ServerSection(dialects={protocol: dialect}))
    async with running(gateway) as client:
        for route, path in posts(protocol, dialect, model):
            body = question(protocol, route, model, stream)
            if body is None:
                continue
            seen += 1
            answer = await client.post(path, json=body)
            began = stream and model == "error-after-2"
            assert answer.status_code in ({200} if began else {424, 500, 502, 503}), (route.name, answer.text)
            last = answer.text.removesuffix("data: [DONE]\n\n").rsplit("data:", 1)[-1]
            if protocol == "gemini" and stream:  # a JSON array
                last = json.dumps((json.loads(answer.text) if began else [json.loads(answer.text)])[-1])
            if protocol == "ollama":
                last = answer.text.splitlines()[-1]
            error = json.loads(last)
            assert {"error", "error_code"} & set(error.get("response", error)), answer.text
    assert seen
