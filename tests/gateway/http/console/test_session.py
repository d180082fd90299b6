"""What the console is sent: by the rights of a key, and without being counted as a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, ServerSection
from tests.gateway.serving import PAIR, chat, endpoint, figures, running


def application(monkeypatch: pytest.MonkeyPatch, **server: Any) -> Any:
    monkeypatch.setenv("CONSOLE_KEYS", "guest")
    monkeypatch.setenv("CONSOLE_ADMIN_KEYS", "root")
    endpoints = {"chat": PAIR, "slow": endpoint(("one", "slow", 100))}
    return create_app(Config(server=ServerSection(**server), backends={"s": {"kind": "scripted"}}, endpoints=endpoints))


async def session(client: httpx.AsyncClient, key: str = "") -> httpx.Response:
    return await client.get("/v1/console/session", headers={"authorization": f"Bearer {key}"} if key else {})


async def test_without_keys_everybody_reads_and_nobody_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(application(monkeypatch)) as client:
        found = (await session(client)).json()
        assert (found["key"], found["roles"], found["can_change"]) == (None, ["ask", "metrics"], False)
        assert [each["name"] for each in found["endpoints"]] == ["chat", "slow"]
        assert [(arm["name"], arm["traffic_percentage"]) for arm in found["endpoints"][0]["arms"]] == [
            ("a", 50),
            ("b", 50),
        ]


async def test_the_key_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    app = application(monkeypatch, keys_env="CONSOLE_KEYS", admin_keys_env="CONSOLE_ADMIN_KEYS")
    async with running(app) as client:
        assert [(await session(client, key)).status_code for key in ("", "wrong")] == [401, 401]
        assert not (await session(client, "guest")).json()["can_change"]
        assert (await session(client, "root")).json()["can_change"]


async def test_a_wrong_key_is_refused_also_where_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(application(monkeypatch, admin_keys_env="CONSOLE_ADMIN_KEYS")) as client:
        assert (await session(client)).json()["can_change"] is False
        assert (await session(client, "wrong")).status_code == 401


@pytest.mark.slow
async def test_what_the_console_reads_is_no_request_and_what_it_asks_counts_in_no_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = application(monkeypatch)
    async with running(app) as client:
        await session(client)
        assert b"gw_requests_total{" not in app.state.service.metrics.render()
        asked = await client.post(
            "/v1/chat/completions",
            json={"model": "chat", "messages": [{"role": "user", "content": "Hi"}]},
            headers={"x-interlingua-console": "1"},
        )
        assert asked.status_code == 200
        assert {arm: found["exposures"] for arm, found in (await figures(client)).items()} == {"a": 0, "b": 0}
        await chat(client)
        assert sum(found["exposures"] for found in (await figures(client)).values()) == 1


@pytest.mark.slow
async def test_tabs_share_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(application(monkeypatch)) as client:

        async def exposures(**more: str) -> int:
            found = await client.get("/v1/console/experiment", params={"endpoint": "chat", **more})
            return sum(arm["exposures"] for arm in found.json()["report"]["arms"])

        assert await exposures(shared="") == 0
        await chat(client)
        assert [await exposures(shared=""), await exposures(), await exposures(shared="")] == [0, 1, 1]
        missing = await client.get("/v1/console/experiment", params={"endpoint": "absent", "shared": ""})
        assert missing.status_code == 404
