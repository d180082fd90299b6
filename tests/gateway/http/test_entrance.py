"""Web pages, foreign host names and preflights; request ids and the answers to wrong or missing keys on every route."""

from __future__ import annotations

import pytest

from gateway.config import ServerSection
from tests.gateway.serving import running, scripted

PATHS = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/generate"),
    ("POST", "/v1/feedback"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/ui"),
    ("GET", "/openapi.json"),
    ("GET", "/serving-endpoints/echo/experiment"),
    ("GET", "/"),
    ("GET", "/none"),
)
HEALTH = ("/health", "/health/ready", "/ping")
EVIL = "http://evil.example"
OURS = "https://app.example"
BODY = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000", "origin": "http://evil.example:8000"},
        {"host": "localhost.evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
async def test_a_foreign_page_is_refused_everywhere_but_for_health(headers: dict[str, str]) -> None:
    app, backend = scripted("echo")
    async with running(app) as client:
        for method, path in PATHS:
            answer = await client.request(method, path, headers=headers, json=BODY if method == "POST" else None)
            assert answer.status_code == 403, path
        for path in HEALTH:
            assert (await client.get(path, headers=headers)).status_code == 200
    assert backend.active == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:1234"},
        {"host": "127.0.0.1"},
        {"host": "[::1]:80"},
        {"host": "LOCALHOST"},
        {"host": "box.lan:8000"},
        {"host": "localhost:80", "origin": "http://localhost:80", "sec-fetch-site": "same-origin"},
        {"origin": OURS, "sec-fetch-site": "cross-site"},
    ],
)
async def test_programs_the_own_page_and_what_is_configured_may_ask(headers: dict[str, str]) -> None:
    app, _ = scripted("echo", server=ServerSection(allowed_hosts=("box.lan",), cors_origins=(OURS,)))
    async with running(app) as client:
        assert (await client.post("/v1/chat/completions", headers=headers, json=BODY)).status_code == 200


async def test_a_link_may_lead_to_the_page() -> None:
    app, _ = scripted("echo")
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with running(app) as client:
        assert (await client.get("/ui", headers=headers)).status_code == 200
        assert (await client.get("/v1/models", headers=headers)).status_code == 403


async def test_where_a_key_is_needed_pages_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "secret")
    app, _ = scripted("echo", server=ServerSection(keys_env="KEYS"))
    headers = {"host": "evil.example", "origin": EVIL}
    async with running(app) as client:
        assert (await client.post("/v1/chat/completions", headers=headers, json=BODY)).status_code == 401
        headers["authorization"] = "Bearer secret"
        answer = await client.post("/v1/chat/completions", headers=headers, json=BODY)
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


async def test_a_configured_origin_gets_its_preflight_and_its_headers() -> None:
    app, _ = scripted("echo", server=ServerSection(cors_origins=(OURS,)))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    async with running(app) as client:
        for path in ("/v1/chat/completions", "/v1/feedback"):
            preflight = await client.options(path, headers={"origin": OURS} | asks)
            assert preflight.status_code == 204
            assert preflight.headers["access-control-allow-origin"] == OURS
            assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
            assert (await client.options(path, headers={"origin": EVIL} | asks)).status_code == 403
        answer = await client.post("/v1/chat/completions", headers={"origin": OURS}, json=BODY)
        assert answer.headers["access-control-allow-origin"] == OURS
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.slow
async def test_options_tells_nothing_without_a_preflight() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        for path in ("/metrics", "/v1/feedback", "/ui", "/v1/models", "/v1/chat/completions"):
            answer = await client.options(path)
            assert answer.status_code == 405
            assert "OPTIONS" not in answer.headers["allow"]


@pytest.mark.slow
async def test_every_answer_has_a_request_id() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        ids = [(await client.request(method, path)).headers["x-request-id"] for method, path in PATHS]
        ids += [(await client.get(path)).headers["x-request-id"] for path in HEALTH]
        ids.append((await client.options("/metrics")).headers["x-request-id"])
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["//metrics", "//health", "/v1//models", "/ui//app.js", "//"])
async def test_two_slashes_are_not_one(path: str) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        assert (await client.get(f"http://localhost{path}")).status_code == 404


@pytest.mark.slow
async def test_without_a_key_the_answer_says_how_and_a_second_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "secret")
    app, _ = scripted("echo", server=ServerSection(keys_env="KEYS"))
    keyed = [(method, path) for method, path in PATHS if path not in ("/ui", "/openapi.json", "/", "/none")]
    async with running(app) as client:
        for method, path in keyed:
            answer = await client.request(method, path)
            assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer"), path
            for twice in (["wrong", "secret"], ["secret", "wrong"], ["secret", "secret"]):
                headers = [("authorization", f"Bearer {key}") for key in twice]
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code in (400, 422), path


async def test_feedback_has_a_content_type() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
            answer = await client.post("/v1/feedback", headers={"content-type": kind}, content=b"{}")
            assert answer.status_code == 415
        assert (await client.post("/v1/feedback", content=b"{}")).status_code == 415


@pytest.mark.parametrize("origins", [(), (OURS,)])
async def test_paths_of_litestar_and_of_protocols_are_distinguished(origins: tuple[str, ...]) -> None:
    app, _ = scripted("echo", server=ServerSection(cors_origins=origins))
    async with running(app) as client:
        for path in ("/health", "/health/", "/%68ealth", "/health%2F", "/metrics/"):
            assert (await client.get(path)).status_code == 200, path
        for path in ("/v1/chat/completions", "/v1/chat/completions/", "/serving-endpoints/%65cho/invocations"):
            answer = await client.post(path, json=BODY, headers={"origin": OURS} if origins else {})
            assert answer.status_code == 200, path
            assert answer.headers.get("access-control-allow-origin") == (OURS if origins else None)
        assert (await client.put("/health")).status_code == 405
        assert (await client.put("/v1/chat/completions")).status_code == 405


async def test_a_bug_before_the_answer_is_answered_in_the_protocol() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        app.state.service.metrics.running = None
        answer = await client.post("/v1/chat/completions", json=BODY)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"]
    assert app.state.service.running == 0
