"""Endpoints changed while the gateway serves: over HTTP, by several workers, and across a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from msgspec.structs import replace

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, ConfigError, Endpoint, Price, ServerSection
from gateway.deployment.state_file import LiveDeployments
from tests.gateway.serving import MESSAGES, chat, endpoint, running, unit_for

pytestmark = pytest.mark.slow

URL = "/api/2.0/serving-endpoints"
CHAT = endpoint(("a", "echo", 100), ("b", "scripted", 0))
ADMIN = {"authorization": "Bearer root"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEYS", "root")
    monkeypatch.setenv("CLIENT_KEYS", "guest")


def config(folder: Path, server: dict[str, Any] | None = None, **endpoints: Endpoint) -> Config:
    section = ServerSection(admin_keys_env="ADMIN_KEYS", state_file=str(folder / "state.json"), **(server or {}))
    return Config(
        server=section,
        backends={"s": {"kind": "scripted"}, "t": {"kind": "scripted"}},
        endpoints=endpoints or {"chat": CHAT},
    )


def worker(folder: Path, backends: Iterable[ScriptedBackend] = (), server: dict[str, Any] | None = None) -> Litestar:
    found = {"s": ScriptedBackend("s"), "t": ScriptedBackend("t")} | {backend.name: backend for backend in backends}
    return create_app(config(folder, server), found, folder / "shared")


def arms(*shares: tuple[str, str, int]) -> dict[str, Any]:
    """A configuration of arms as (name, entity, share)."""
    return {
        "served_entities": [{"name": name, "entity_name": entity} for name, entity, _ in shares],
        "traffic_config": {
            "routes": [{"served_entity_name": name, "traffic_percentage": share} for name, _, share in shares]
        },
    }


async def put(client: httpx.AsyncClient, body: dict[str, Any], name: str = "chat") -> httpx.Response:
    return await client.put(f"{URL}/{name}/config", json=body, headers=ADMIN)


async def create(client: httpx.AsyncClient, name: str, body: dict[str, Any]) -> httpx.Response:
    return await client.post(URL, json={"name": name, "config": body}, headers=ADMIN)


def split(received: dict[str, Any]) -> dict[str, int]:
    routes = received["config"]["traffic_config"]["routes"]
    return {route["served_entity_name"]: route["traffic_percentage"] for route in routes}


async def test_the_traffic_split_can_be_changed(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        assert (await chat(client, user=unit_for("b"))).headers["served-model-name"] == "a"
        received = (await put(client, arms(("a", "s/echo", 50), ("b", "s/scripted", 50)))).json()
        assert (split(received), received["config"]["config_version"]) == ({"a": 50, "b": 50}, 2)
        assert received["state"] == {"ready": "READY", "config_update": "NOT_UPDATING"}
        assert (await client.get(f"{URL}/chat")).json() == received
        for arm in "ab":
            assert (await chat(client, user=unit_for(arm))).headers["served-model-name"] == arm


async def test_shares_alone_can_be_changed_and_a_listed_configuration_can_be_sent_back(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        entities = (await client.get(f"{URL}/chat")).json()["config"]["served_entities"]
        shares = arms(("a", "", 10), ("b", "", 90))["traffic_config"]
        received = (await put(client, {"traffic_config": shares})).json()
        assert split(received) == {"a": 10, "b": 90}
        again = (await put(client, {"served_entities": entities, "traffic_config": shares})).json()
        assert again["config"]["served_entities"] == entities
        assert again["config"]["config_version"] == 2  # nothing was changed


async def test_served_entities_whose_shares_are_changed_keep_their_prices(tmp_path: Path) -> None:
    priced = replace(CHAT, served_entities=tuple(replace(arm, price=Price(prompt=1.0)) for arm in CHAT.served_entities))
    settings = config(tmp_path, chat=priced)
    async with running(create_app(settings, {name: ScriptedBackend(name) for name in "st"})) as client:
        shares = arms(("a", "", 10), ("b", "", 90))["traffic_config"]
        assert split((await put(client, {"traffic_config": shares})).json()) == {"a": 10, "b": 90}
    kept = LiveDeployments(settings).deployments["chat"].serving.served_entities
    assert [(arm.traffic_percentage, arm.price) for arm in kept] == [(10, Price(prompt=1.0)), (90, Price(prompt=1.0))]


async def test_an_endpoint_is_created_served_and_deleted(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        received = await create(client, "new", {"served_entities": [{"entity_name": "s/echo", "entity_version": "3"}]})
        assert (received.status_code, split(received.json())) == (200, {"s-echo-3": 100})
        assert received.json()["config"]["config_version"] == 1
        answer = await chat(client, model="new")
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "s-echo-3")
        listed = (await client.get(URL)).json()["endpoints"]
        assert [endpoint["name"] for endpoint in listed] == ["chat", "new"]
        none = await client.get("/serving-endpoints/new/experiment")
        assert (none.status_code, "has no experiment" in none.text) == (404, True)
        gone = await client.delete(f"{URL}/new", headers=ADMIN)
        assert (gone.status_code, gone.json()) == (200, {})
        assert (await chat(client, model="new")).status_code == 404
        assert (await client.get("/serving-endpoints/new/experiment")).status_code == 404
        assert (await client.get(f"{URL}/new")).status_code == 404


async def test_a_created_endpoint_of_two_arms_has_an_experiment(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        await create(client, "new", arms(("a", "s/echo", 100), ("b", "t/echo", 0)))
        await chat(client, model="new")
        found = (await client.get("/serving-endpoints/new/experiment")).json()["arms"]
        assert [arm["exposures"] for arm in found] == [1, 0]
        await client.delete(f"{URL}/new", headers=ADMIN)
        assert (await client.get("/serving-endpoints/new/experiment")).status_code == 404


WRONG: dict[str, tuple[str, str, Any, int, str]] = {
    "no endpoint": ("PUT", "/none/config", arms(("a", "s/echo", 100)), 404, "RESOURCE_DOES_NOT_EXIST"),
    "nothing to delete": ("DELETE", "/none", None, 404, "RESOURCE_DOES_NOT_EXIST"),
    "the name is taken": ("POST", "", {"name": "chat", "config": arms(("a", "s", 100))}, 409, "RESOURCE_CONFLICT"),
    "the name is none": ("POST", "", {"name": "a/b", "config": arms(("a", "s", 100))}, 400, "INVALID_PARAMETER_VALUE"),
    "no arm": ("POST", "", {"name": "new", "config": {"served_entities": []}}, 400, "INVALID_PARAMETER_VALUE"),
    "no config": ("POST", "", {"name": "new"}, 400, "INVALID_PARAMETER_VALUE"),
    "no backend": ("PUT", "/chat/config", arms(("a", "none/echo", 100)), 400, "INVALID_PARAMETER_VALUE"),
    "not 100": ("PUT", "/chat/config", arms(("a", "s/echo", 90)), 400, "INVALID_PARAMETER_VALUE"),
    "negative": ("PUT", "/chat/config", arms(("a", "s", 110), ("b", "s", -10)), 400, "INVALID_PARAMETER_VALUE"),
    "a name twice": ("PUT", "/chat/config", arms(("a", "s", 50), ("a", "s", 50)), 400, "INVALID_PARAMETER_VALUE"),
    "no arm's name": ("PUT", "/chat/config", arms(("a b", "s", 100)), 400, "INVALID_PARAMETER_VALUE"),
    "no shares": (
        "PUT",
        "/chat/config",
        {"served_entities": arms(("a", "s", 50), ("b", "s", 50))["served_entities"]},
        400,
        "INVALID_PARAMETER_VALUE",
    ),
    "a share of nobody": (
        "PUT",
        "/chat/config",
        {"traffic_config": arms(("c", "s", 100))["traffic_config"]},
        400,
        "INVALID_PARAMETER_VALUE",
    ),
    "an external model": (
        "PUT",
        "/chat/config",
        {"served_entities": [{"name": "a", "external_model": {"provider": "openai"}}]},
        400,
        "INVALID_PARAMETER_VALUE",
    ),
    "not JSON": ("PUT", "/chat/config", "{", 400, "BAD_REQUEST"),
    "not an object": ("POST", "", [], 400, "BAD_REQUEST"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_an_invalid_change_is_rejected_and_changes_nothing(case: str, tmp_path: Path) -> None:
    method, path, body, status, code = WRONG[case]
    content = body if isinstance(body, str) else json.dumps(body)
    async with running(worker(tmp_path)) as client:
        before = (await client.get(URL)).json()
        answer = await client.request(method, URL + path, content=content, headers=ADMIN)
        assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
        assert (await client.get(URL)).json() == before
        assert not (tmp_path / "state.json").exists()


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("guest", 403), ("stranger", 401), ("root", 200)])
async def test_changes_need_an_admin_key_which_is_a_client_key_too(
    key: str | None, status: int, tmp_path: Path
) -> None:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with running(worker(tmp_path, server={"keys_env": "CLIENT_KEYS"})) as client:
        body = {"traffic_config": arms(("a", "", 100))["traffic_config"]}
        assert (await client.put(f"{URL}/chat/config", json=body, headers=headers)).status_code == status
        asked = await client.post("/serving-endpoints/chat/invocations", json={"messages": MESSAGES}, headers=headers)
        assert asked.status_code == (200 if key in ("guest", "root") else 401)


async def test_changes_are_forbidden_without_admin_keys() -> None:
    app = create_app(
        Config(backends={"s": {"kind": "scripted"}}, endpoints={"chat": CHAT}), {"s": ScriptedBackend("s")}
    )
    async with running(app) as client:
        assert (await put(client, arms(("a", "s/echo", 100)))).status_code == 403
        assert (await client.delete(f"{URL}/chat", headers=ADMIN)).status_code == 403


async def test_changes_are_forbidden_without_a_state_file(tmp_path: Path) -> None:
    known = config(tmp_path)
    app = create_app(replace(known, server=replace(known.server, state_file=None)))
    async with running(app) as client:
        refused = await put(client, arms(("a", "s/echo", 100)))
        assert (refused.status_code, "the server has no state file" in refused.json()["message"]) == (403, True)


async def test_an_update_waits_for_its_backends_and_blocks_other_updates(tmp_path: Path) -> None:
    slow = ScriptedBackend("t")
    app = worker(tmp_path, [slow])
    async with running(app) as client:
        slow.health = Health("loading")
        await app.state.service._check_health()
        received = (await put(client, arms(("a", "s/echo", 0), ("c", "t/echo", 100)))).json()
        assert received["state"]["config_update"] == "IN_PROGRESS"
        assert (split(received), received["config"]["config_version"]) == ({"a": 100, "b": 0}, 1)
        assert (received["pending_config"]["config_version"], split({"config": received["pending_config"]})) == (
            2,
            {"a": 0, "c": 100},
        )
        assert (await chat(client)).headers["served-model-name"] == "a"
        barred = await put(client, arms(("a", "s/echo", 100)))
        assert (barred.status_code, barred.json()["error_code"]) == (409, "RESOURCE_CONFLICT")
        slow.health = Health("ready")
        for _ in range(2):
            await app.state.service._check_health()
        received = (await client.get(f"{URL}/chat")).json()
        assert (split(received), received["config"]["config_version"]) == ({"a": 0, "c": 100}, 2)
        assert "pending_config" not in received
        assert (await chat(client)).headers["served-model-name"] == "c"


async def test_an_update_completes_once_the_state_file_is_readable_again(tmp_path: Path) -> None:
    slow, file = ScriptedBackend("t"), tmp_path / "state.json"
    app = worker(tmp_path, [slow])
    async with running(app) as client:
        slow.health = Health("loading")
        await app.state.service._check_health()
        await put(client, arms(("c", "t/echo", 100)))
        slow.health, kept = Health("ready"), file.read_bytes()
        for state in (b"{", kept):
            file.write_bytes(state)
            for _ in range(2):
                await app.state.service._check_health()
        assert (await chat(client)).headers["served-model-name"] == "c"


async def test_an_update_fails_with_its_backend_and_the_old_arms_keep_serving(tmp_path: Path) -> None:
    dead = ScriptedBackend("t")
    app = worker(tmp_path, [dead])
    async with running(app) as client:
        dead.health = Health("failed")
        await app.state.service._check_health()
        received = (await put(client, arms(("c", "t/echo", 100)))).json()
        assert (received["state"]["config_update"], split(received)) == ("UPDATE_FAILED", {"a": 100, "b": 0})
        assert (await chat(client)).headers["served-model-name"] == "a"
        received = (await put(client, arms(("a", "s/echo", 100), ("c", "t/echo", 0)))).json()
        assert (received["state"]["config_update"], received["config"]["config_version"]) == ("NOT_UPDATING", 2)


async def test_a_new_endpoint_serves_with_its_ready_arms_and_the_server_stays_ready(tmp_path: Path) -> None:
    slow = ScriptedBackend("t")
    app = worker(tmp_path, [slow])
    async with running(app) as client:
        slow.health = Health("loading")
        await app.state.service._check_health()
        received = (await create(client, "new", arms(("c", "t/echo", 100), ("d", "s/echo", 0)))).json()
        assert (received["state"], received["config"]["config_version"]) == (
            {"ready": "NOT_READY", "config_update": "IN_PROGRESS"},
            0,
        )
        assert (await client.get("/health/ready")).status_code == 200
        assert (await chat(client, model="new")).headers["served-model-name"] == "d"
        slow.health = Health("ready")
        for _ in range(2):
            await app.state.service._check_health()
        received = (await client.get(f"{URL}/new")).json()
        assert (received["state"]["config_update"], received["config"]["config_version"]) == ("NOT_UPDATING", 1)


async def test_a_change_on_one_worker_is_known_to_the_other_at_once(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two:
        for number in range(20):
            name = f"new-{number}"
            assert (await create(one, name, arms(("a", "s/echo", 100)))).status_code == 200
            assert (await chat(two, model=name)).status_code == 200
            assert (await put(two, arms(("b", "s/scripted", 100)), name)).status_code == 200
            assert (await chat(one, model=name)).headers["served-model-name"] == "b"
            await one.delete(f"{URL}/{name}", headers=ADMIN)
            assert (await chat(two, model=name)).status_code == 404
        for client in (one, two):
            assert len((await client.get(URL)).json()["endpoints"]) == 1


async def test_changes_survive_a_restart(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        await put(client, arms(("b", "s/scripted", 100)))
        await create(client, "new", arms(("a", "s/echo", 100)))
        before = (await client.get(f"{URL}/chat")).json()["config"]
    async with running(worker(tmp_path)) as client:
        assert (await client.get(f"{URL}/chat")).json()["config"] == before
        assert (await chat(client, model="new")).headers["served-model-name"] == "a"
        for name in ("chat", "new"):
            assert (await client.delete(f"{URL}/{name}", headers=ADMIN)).status_code == 200
    async with running(worker(tmp_path)) as client:
        assert (await client.get(URL)).json() == {"endpoints": []}


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (
            '{"endpoints":{"new":{"endpoint":{"served_entities":[{"name":"a","backend":"gone"}]}}}}',
            "endpoints.new.a: no backend is called 'gone'",
        ),
        ('{"endpoints":{"new":{}}}', "endpoints.new: there is neither"),
        ('{"endpoints":{"new":{"vesrion":2}}}', "vesrion"),
        ("{", "cannot be read"),
    ],
)
def test_an_invalid_state_file_is_rejected_at_startup(state: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(ConfigError, match=word):
        worker(tmp_path)


def test_an_unwritable_state_file_is_rejected_at_startup(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written to"):
        LiveDeployments(config(tmp_path / "nowhere"))


async def test_a_corrupted_state_file_keeps_the_last_state_serving(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        await put(client, arms(("b", "s/scripted", 100)))
        (tmp_path / "state.json").write_text("{")
        assert (await chat(client)).headers["served-model-name"] == "b"


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"\xff", b'{"endpoints": 1}', b"null"])
async def test_a_change_of_a_corrupted_state_file_is_refused_with_the_reason(junk: bytes, tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        await put(client, arms(("b", "s/scripted", 100)))
        (tmp_path / "state.json").write_bytes(junk)
        answer = await put(client, arms(("c", "s/echo", 100)))
        assert (answer.status_code, answer.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
        assert "state.json: cannot be read" in answer.json()["message"]
        assert (tmp_path / "state.json").read_bytes() == junk


async def test_an_unreadable_state_file_keeps_the_last_state_serving(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client:
        state = tmp_path / "state.json"
        state.unlink(missing_ok=True)
        state.symlink_to(state)  # too many levels of links
        assert (await chat(client)).status_code == 200


async def test_changes_under_load_lose_no_request_and_cut_no_stream(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two:
        done = asyncio.Event()
        statuses: list[int] = []

        async def ask(client: httpx.AsyncClient, number: int) -> None:
            while not done.is_set():
                answer = await chat(client, user=str(len(statuses)), stream=bool(number % 2))
                assert number % 2 == 0 or answer.text.endswith("data: [DONE]\n\n")
                statuses.append(answer.status_code)

        asking = [asyncio.create_task(ask((one, two)[number // 2 % 2], number)) for number in range(8)]
        for number in range(50):
            share = number * 2
            changed = await put((one, two)[number % 2], arms(("a", "s/echo", share), ("b", "t/scripted", 100 - share)))
            assert changed.status_code == 200
        while len(statuses) <= 100:  # noqa: ASYNC110
            await asyncio.sleep(0)
        done.set()
        await asyncio.gather(*asking)
        assert set(statuses) == {200}
        for client in (one, two):
            assert (await client.get(f"{URL}/chat")).json()["config"]["config_version"] == 51
        # The arms are other ones than those of the file, and every change was one of the split.
        assert len([each for each in (tmp_path / "state.json.experiments").iterdir() if len(each.name) == 32]) == 2


async def test_a_request_in_flight_counts_where_it_was_assigned(tmp_path: Path) -> None:
    app = create_app(config(tmp_path), {name: ScriptedBackend(name) for name in "st"})  # counts alone
    async with running(app) as client:
        await put(client, arms(("a", "s/slow", 100), ("b", "t/slow", 0)))
        experiment = app.state.service.experiments.of("chat")
        asking = asyncio.create_task(chat(client, stream=True))
        while not app.state.service.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.delete(f"{URL}/chat", headers=ADMIN)
        answer = await asking
        assert answer.text.endswith("data: [DONE]\n\n")
        assert experiment.report().arms[0].means["success"] == 1.0


async def test_figures_last_and_a_reset_begins_anew_on_all_workers(tmp_path: Path) -> None:
    split = arms(("a", "s/echo", 50), ("b", "t/echo", 50))
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two:
        await put(one, split)
        for client in (one, two):
            await chat(client)
        await put(two, arms(("a", "s/echo", 20), ("b", "t/echo", 80)))
        await chat(one)
    async with running(worker(tmp_path)) as one, running(worker(tmp_path)) as two:
        report = (await two.get(REPORT)).json()
        assert sum(arm["exposures"] for arm in report["arms"]) == 3
        # Each split with its first version: those of the configuration file, and both updates.
        assert [(each["traffic_percentages"], each["config_version"]) for each in report["splits"]] == [
            ([50, 50], 2),
            ([20, 80], 3),
        ]
        assert report["since"] == report["splits"][0]["since"]
        assert (await one.post(f"{REPORT}/reset")).status_code == 401
        assert (await one.get(f"{REPORT}/reset", headers=ADMIN)).status_code == 405
        assert (await one.post("/serving-endpoints/none/experiment/reset", headers=ADMIN)).status_code == 404
        reset = await one.post(f"{REPORT}/reset", headers=ADMIN)
        assert (reset.status_code, [arm["exposures"] for arm in reset.json()["arms"]]) == (200, [0, 0])
        await chat(two)
        for client in (one, two):
            assert sum(arm["exposures"] for arm in (await client.get(REPORT)).json()["arms"]) == 1


REPORT = "/serving-endpoints/chat/experiment"


async def test_guardrails_are_filters_on_all_workers(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client, running(worker(tmp_path)) as sibling:

        async def configure(settings: dict[str, Any]) -> httpx.Response:
            return await client.put(f"{URL}/chat/ai-gateway", json=settings, headers=ADMIN)

        async def asked(text: str) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64}
            return await sibling.post("/serving-endpoints/chat/invocations", json=body, headers=ADMIN)

        wanted = {
            "input": {"pii": {"behavior": "MASK"}, "invalid_keywords": ["SuperData"]},
            "output": {"pii": {"behavior": "BLOCK"}},
        }
        kept = await configure({"guardrails": wanted})
        assert (kept.status_code, kept.json()["guardrails"]) == (200, wanted)
        assert (await sibling.get(f"{URL}/chat")).json()["ai_gateway"]["guardrails"] == wanted
        assert (await asked("Hi")).status_code == 200
        refused = await asked("Tell me of superdata.")
        assert (refused.status_code, "[SuperData]" in refused.text) == (400, True)
        # What is not named stays, and an empty object takes the guardrails away.
        assert (await configure({"rate_limits": []})).json()["guardrails"] == wanted
        assert "guardrails" not in (await configure({"guardrails": {}})).json()
        assert (await asked("Tell me of superdata.")).status_code == 200
        for side, field, value in (("input", "safety", True), ("output", "valid_topics", ["cats"])):
            wrong = await configure({"guardrails": {side: {field: value}}})
            assert (wrong.status_code, f"guardrails.{side}.{field}" in wrong.json()["message"]) == (400, True)


async def test_settings_of_the_ai_gateway_are_kept_and_what_would_not_hold_is_refused(tmp_path: Path) -> None:
    async with running(worker(tmp_path)) as client, running(worker(tmp_path)) as sibling:

        async def configure(body: dict[str, Any], path: str = "ai-gateway") -> httpx.Response:
            return await client.put(f"{URL}/chat/{path}", json=body, headers=ADMIN)

        async def asked(at: httpx.AsyncClient) -> int:
            path = "/serving-endpoints/chat/invocations"
            return (await at.post(path, json={"messages": MESSAGES}, headers=ADMIN)).status_code

        version = (await client.get(f"{URL}/chat")).json()["config"]["config_version"]
        settings = {"usage_tracking_config": {"enabled": True}, "fallback_config": {"enabled": False}}
        kept = await configure(settings | {"rate_limits": [], "inference_table_config": {"enabled": False}})
        assert (kept.status_code, kept.json()) == (200, settings | {"rate_limits": []})
        described = (await sibling.get(f"{URL}/chat")).json()
        assert described["ai_gateway"] == kept.json()
        assert described["config"]["config_version"] == version
        limits = [
            {"renewal_period": "minute", "key": "endpoint", "calls": 1},
            {"renewal_period": "minute", "key": "user", "tokens": 9},
        ]
        for path in ("ai-gateway", "rate-limits"):
            limited = await configure({"rate_limits": limits}, path)
            assert (limited.status_code, limited.json()) == (200, settings | {"rate_limits": limits})
        assert (await sibling.get(f"{URL}/chat")).json()["ai_gateway"]["rate_limits"] == limits
        answers = [await asked(each) for each in (client, sibling)]
        assert answers == [200, 429]
        assert (await configure({"rate_limits": []})).json()["rate_limits"] == []
        assert await asked(client) == 200
        group = {"calls": 1, "renewal_period": "minute", "key": "user_group", "principal": "p"}
        for field, value, path in (
            ("rate_limits", [group], "ai-gateway"),
            ("rate_limits", [{"renewal_period": "minute"}], "rate-limits"),
            ("guardrails", {"input": {"safety": True}}, "ai-gateway"),
            ("inference_table_config", {"enabled": True}, "ai-gateway"),
        ):
            refused = await configure({field: value}, path)
            assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
            assert field in refused.json()["message"]
        assert (await client.put(f"{URL}/chat/ai-gateway", json=settings)).status_code in (401, 403)
        missing = await client.put(f"{URL}/nobody/ai-gateway", json=settings, headers=ADMIN)
        assert missing.status_code == 404
