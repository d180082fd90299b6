"""Keys of a file and limits, as clients meet them: statuses, headers, listings, revocation, and the admin API."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from litestar import Litestar

from backends.scripted import ScriptedBackend
from gateway.access import keys as keys_module
from gateway.access.keys_file import keys_file, new_key, revoke_key
from gateway.app import create_app
from gateway.config import (
    Config,
    ConfigError,
    Endpoint,
    EndpointLimit,
    Price,
    ServedEntity,
    ServerSection,
)
from tests.gateway.serving import MESSAGES, running

CHAT = {"model": "chat", "messages": MESSAGES, "max_tokens": 16}


def application(path: Path | None = None, *limits: EndpointLimit, price: Price | None = None) -> Litestar:
    entity = ServedEntity(name="one", backend="s", model="scripted", price=price)
    endpoints = {
        "chat": Endpoint(served_entities=(entity,), limits=limits),
        "other": Endpoint(served_entities=(ServedEntity(name="two", backend="s", model="echo"),)),
    }
    server = ServerSection(keys_file=str(path) if path is not None else None)
    config = Config(server=server, backends={"s": {"kind": "scripted"}}, endpoints=endpoints)
    return create_app(config, {"s": ScriptedBackend("s")})


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keys_module, "_BETWEEN_LOOKS", 0.0)
    return tmp_path / "keys.json"


LIMITED: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "openai": (
        "/v1/chat/completions",
        CHAT,
        {"x-ratelimit-limit-requests": "1", "x-ratelimit-remaining-requests": "0"},
    ),
    "anthropic": (
        "/v1/messages",
        CHAT,
        {"anthropic-ratelimit-requests-limit": "1", "anthropic-ratelimit-requests-remaining": "0"},
    ),
    "databricks": ("/serving-endpoints/chat/invocations", {"messages": MESSAGES}, {"x-ratelimit-limit-requests": "1"}),
    "gemini": (
        "/v1beta/models/chat:generateContent",
        {"contents": [{"parts": [{"text": "Hi"}]}]},
        {"x-ratelimit-limit-requests": "1"},
    ),
    "ollama": ("/api/chat", {"model": "chat", "messages": MESSAGES}, {"x-ratelimit-limit-requests": "1"}),
    "tgi": ("/generate", {"inputs": "Hi"}, {"x-ratelimit-limit-requests": "1"}),
    "triton": ("/v2/models/chat/generate", {"text_input": "Hi"}, {"x-ratelimit-limit-requests": "1"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", LIMITED)
async def test_a_limit_is_a_refusal_in_the_protocols_words(protocol: str) -> None:
    path, body, headers = LIMITED[protocol]
    async with running(application(None, EndpointLimit(requests=1))) as client:
        first, second = [await client.post(path, json=body) for _ in range(2)]
    # Triton has no 429.
    assert (first.status_code, second.status_code) == (200, 503 if protocol == "triton" else 429)
    for answer in (first, second):
        assert headers.items() <= dict(answer.headers).items()
    assert "1 requests a minute" in second.text
    assert 0 < int(second.headers["retry-after"]) <= 60


@pytest.mark.slow
async def test_openais_client_reads_the_error_and_the_headers() -> None:
    async with running(application(None, EndpointLimit(requests=1, tokens=1000))) as client:
        sdk = openai.AsyncOpenAI(api_key="x", base_url="http://localhost/v1", http_client=client, max_retries=0)
        answer = await sdk.chat.completions.with_raw_response.create(
            model="chat", messages=[{"role": "user", "content": "Hi"}]
        )
        assert answer.headers["x-ratelimit-remaining-tokens"] == "999"
        assert answer.headers["x-ratelimit-reset-requests"] in ("1m0s", "59s", "60s") or answer.headers[
            "x-ratelimit-reset-requests"
        ].startswith("59.")
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hi"}])
    assert refused.value.code == "rate_limit_exceeded"


async def test_openais_client_waits_as_long_as_the_refusal_says_and_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waited = [1_000_000.0], []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("gateway.access.local_limiter.time.time", lambda: now[0])
    async with running(application(None, EndpointLimit(requests=1))) as client:
        sdk = openai.AsyncOpenAI(api_key="x", base_url="http://localhost/v1", http_client=client)
        monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
        for _ in range(2):
            answer = await sdk.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hi"}])
            assert answer.choices[0].message.content
    assert waited == [60.0]


async def test_tokens_count_as_the_answer_says() -> None:
    async with running(application(None, EndpointLimit(tokens=100))) as client:
        used = [(await client.post("/v1/chat/completions", json=CHAT)) for _ in range(2)]
    total = used[0].json()["usage"]["total_tokens"]
    # The second answer's header counts its own estimate and what the first one really took.
    assert int(used[0].headers["x-ratelimit-remaining-tokens"]) == 100 - 17
    assert int(used[1].headers["x-ratelimit-remaining-tokens"]) == 100 - 17 - total


async def test_a_budget_ends_with_what_answers_cost() -> None:
    price = Price(prompt=1e6, completion=1e6)
    async with running(application(None, EndpointLimit(cost=1.0, window="month"), price=price)) as client:
        statuses = [(await client.post("/v1/chat/completions", json=CHAT)) for _ in range(2)]
    assert [answer.status_code for answer in statuses] == [200, 429]
    assert statuses[1].json()["error"]["code"] == "insufficient_quota"


async def test_a_key_reaches_its_endpoints_and_sees_no_others(file: Path) -> None:
    key = new_key(keys_file(file), "team", endpoints=("ch*",))
    async with running(application(file)) as client:
        client.headers = httpx.Headers(bearer(key))
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await client.post("/v1/chat/completions", json=CHAT | {"model": "other"})).status_code == 403
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["chat"]
        assert (await client.get("/v1/models/other")).status_code == 404
        assert (await client.get("/metrics")).status_code == 403


async def test_a_revoked_and_an_expired_key_are_refused(file: Path) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    good, expired = (
        new_key(keys_file(file), "good", expires=soon),
        new_key(keys_file(file), "old", expires=soon - timedelta(hours=2)),
    )
    async with running(application(file)) as client:

        async def status(key: str) -> int:
            return (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(key))).status_code

        assert [await status(key) for key in (good, expired, "il-none")] == [200, 401, 401]
        revoke_key(keys_file(file), "good")
        assert await status(good) == 401


@pytest.mark.slow
async def test_a_broken_file_stops_a_start_and_changes_nothing_while_serving(file: Path) -> None:
    with pytest.raises(ConfigError, match="gateway keys new"):
        application(file)
    key = new_key(keys_file(file), "team")
    async with running(application(file)) as client:
        file.write_text('{"keys": [')  # noqa: ASYNC240 - one line
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=bearer(key))).status_code == 200
    with pytest.raises(ConfigError, match="cannot be read"):
        application(file)


def test_the_file_holds_no_key_and_only_its_owner_reads_it(file: Path) -> None:
    key = new_key(keys_file(file), "team")
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_the_admin_api_makes_lists_and_revokes(file: Path) -> None:
    admin = bearer(new_key(keys_file(file), "root", roles=("admin",)))
    async with running(application(file)) as client:
        body = {"name": "team", "limits": [{"requests": 1}], "endpoints": ["chat"]}
        made = await client.post("/v1/keys", json=body, headers=admin)
        assert made.status_code == 201
        team = bearer(made.json()["key"])
        answers = [await client.post("/v1/chat/completions", json=CHAT, headers=team) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert "The key 'team'" in answers[1].text
        assert (await client.get("/v1/keys", headers=team)).status_code == 403
        listed = (await client.get("/v1/keys", headers=admin)).json()["keys"]
        assert [(each["name"], each["endpoints"]) for each in listed] == [("root", ["*"]), ("team", ["chat"])]
        assert "digest" not in json.dumps(listed)
        assert (await client.post("/v1/keys", json=body, headers=admin)).status_code == 409
        wrong = await client.post("/v1/keys", json={"name": "a b"}, headers=admin)
        assert (wrong.status_code, "name" in wrong.text) == (400, True)
        wrong = await client.post("/v1/keys", json={"name": "x", "limits": [{"window": "day"}]}, headers=admin)
        assert (wrong.status_code, "a limit needs one of" in wrong.text) == (400, True)
        wrong = await client.post("/v1/keys", json={"name": "x", "expires": "2030-01-01T00:00:00"}, headers=admin)
        assert (wrong.status_code, "timezone" in wrong.text) == (400, True)
        assert (await client.delete("/v1/keys/team", headers=admin)).status_code == 204
        assert (await client.delete("/v1/keys/team", headers=admin)).status_code == 404
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=team)).status_code == 401


async def test_a_key_that_is_made_while_the_file_is_missing_locks_nobody_out(file: Path) -> None:
    admin = bearer(new_key(keys_file(file), "root", roles=("admin",)))
    async with running(application(file)) as client:
        file.unlink()  # noqa: ASYNC240 - one line
        answers = [
            await client.post("/v1/keys", json={"name": "team"}, headers=admin),
            await client.get("/v1/keys", headers=admin),
            await client.delete("/v1/keys/root", headers=admin),
        ]
        assert [(each.status_code, "there is no file" in each.text) for each in answers] == [(503, True)] * 3
        assert not file.exists()  # noqa: ASYNC240 - one look
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=admin)).status_code == 200
