"""Two gateways on one real state server: what one knows, both know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from msgspec.structs import replace

from backends.scripted import ScriptedBackend
from gateway.access.keys_file import keys_file, new_key, revoke_key
from gateway.app import create_app
from gateway.config import Cache, Config, Endpoint, EndpointLimit, Experiment, ServedEntity, ServerSection, StateSection
from gateway.experiments.metrics import TIMES
from tests.gateway.serving import chat, endpoint, running
from tests.gateway.state_server import Process

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ADMIN = {"authorization": "Bearer admin"}
MANY = 32  # streams


def configured(state: StateSection, server: ServerSection | None = None, **endpoints: Endpoint) -> Config:
    server = replace(server or ServerSection(), admin_keys_env="TEST_ADMIN")
    return Config(server=server, backends={"s": {"kind": "scripted"}}, endpoints=endpoints, state=state)


@asynccontextmanager
async def gateways(
    config: Config, folder: Path, number: int = 2, keys: bool = False
) -> AsyncIterator[tuple[tuple[httpx.AsyncClient, ...], tuple[Litestar, ...]]]:
    """Clients of gateways with this configuration, and the gateways."""
    async with AsyncExitStack() as stack:
        made = []
        for place in (folder / str(each) for each in range(number)):
            place.mkdir()
            own = config
            if keys:
                new_key(keys_file(place / "keys.json"), place.name)
                own = replace(config, server=replace(config.server, keys_file=str(place / "keys.json")))
            made.append(create_app(own, {"s": ScriptedBackend("s")}, folder=place))
        apps = tuple(made)
        clients = tuple([await stack.enter_async_context(running(app)) for app in apps])
        # Until both are known to live.
        while len(await apps[0].state.service.shared._members.living()) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        yield clients, apps


@pytest.fixture(autouse=True)
def _admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN", "admin")


CHAT = Endpoint(served_entities=(ServedEntity(name="a", backend="s", model="echo"),))


async def create(client: httpx.AsyncClient, name: str) -> int:
    entity = {"name": "new", "entity_name": "s/echo", "traffic_percentage": 100}
    body = {"name": name, "config": {"served_entities": [entity]}}
    return (await client.post("/api/2.0/serving-endpoints", json=body, headers=ADMIN)).status_code


async def test_a_change_is_served_by_both_when_it_is_confirmed(state_process: Process, tmp_path: Path) -> None:
    config = configured(state_process.settings(), chat=CHAT)
    async with gateways(config, tmp_path) as ((first, second), _):
        assert await create(first, "more") == 200
        assert (await chat(second, model="more")).status_code == 200
        assert await create(second, "more") == 409
        # Both at once: one of them wins, wherever.
        assert sorted(await asyncio.gather(create(first, "race"), create(second, "race"))) == [200, 409]
        assert (await second.delete("/api/2.0/serving-endpoints/more", headers=ADMIN)).status_code == 200
        assert (await chat(first, model="more")).status_code == 404


def _counted(report: dict[str, Any]) -> Any:
    """All of a report but what depends on times."""
    compared = [each for each in report["comparisons"] if each["metric"] not in TIMES]
    return _untimed({"arms": report["arms"]}), compared


def _untimed(found: Any) -> Any:
    if isinstance(found, list):
        return [_untimed(each) for each in found]
    if isinstance(found, dict):
        return {key: _untimed(each) for key, each in found.items() if key not in TIMES}
    return found


async def _report(client: httpx.AsyncClient) -> dict[str, Any]:
    return (await client.get("/serving-endpoints/chat/experiment")).json()


async def _until(client: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> None:
    while not holds(await _report(client)):  # noqa: ASYNC110 - the figures of another process come when they come
        await asyncio.sleep(0.05)


def _exposures(report: dict[str, Any]) -> int:
    return sum(arm["exposures"] for arm in report["arms"])


async def _liked(client: httpx.AsyncClient, id: str, value: float = 1.0, metric: str = "liked") -> httpx.Response:
    return await client.post("/v1/feedback", json={"metric": metric, "value": value, "request_id": id})


async def test_figures_and_feedback_of_two_gateways_are_those_of_one(state_process: Process, tmp_path: Path) -> None:
    split = replace(endpoint(("a", "echo", 50), ("b", "echo", 50)), experiment=Experiment(feedback={"liked": "higher"}))
    config = configured(state_process.settings(), chat=split)
    alone = replace(config, state=None, server=replace(config.server, admin_keys_env=None))
    async with AsyncExitStack() as stack:
        (first, second), _ = await stack.enter_async_context(gateways(config, tmp_path))
        one = await stack.enter_async_context(running(create_app(alone, {"s": ScriptedBackend("s")})))
        for number in range(60):
            user = f"user-{number % 20}"
            answered = [await chat(client, user=user) for client in (one, (first, second)[number % 2])]
            assert [each.status_code for each in answered] == [200, 200]
            # The feedback reaches the gateway that did not answer; one of them twice, with another value.
            other = (second, first)[number % 2]
            for client, answer in zip((one, other), answered, strict=True):
                for value in (0.0, 1.0) if number == 7 else (number % 3 / 2,):
                    said = await _liked(client, answer.headers["x-request-id"], value)
                    assert said.status_code == 204, said.text
        refused = [await _liked(each, answered[-1].headers["x-request-id"], metric="no") for each in (first, second)]
        assert [(each.status_code, each.json()) for each in refused[:1]] == [
            (each.status_code, each.json()) for each in refused[1:]
        ]
        unknown = await _liked(second, "0" * 32)
        assert unknown.status_code == 400
        assert "No answer with this id" in unknown.text
        wanted = _counted(await _report(one))
        for client in (first, second):
            await _until(client, lambda report: _counted(report) == wanted)
        assert _exposures(await _report(first)) == 60
        # A reset holds on both, and what was counted before does not come back.
        assert (await first.post("/serving-endpoints/chat/experiment/reset", headers=ADMIN)).status_code == 200
        assert _exposures(await _report(second)) == 0
        await chat(second, user="x")
        await _until(first, lambda report: _exposures(report) == 1)


async def test_responses_and_cached_answers_are_found_at_both(state_process: Process, tmp_path: Path) -> None:
    cached = replace(endpoint(("a", "scripted", 100)), cache=Cache(store="state"))
    config = configured(state_process.settings(), chat=CHAT, cached=cached)
    async with gateways(config, tmp_path) as ((first, second), _):
        made = (await first.post("/v1/responses", json={"model": "chat", "input": "Hi"})).json()
        path = f"/v1/responses/{made['id']}"
        assert (await second.get(path)).json() == made
        further = {"model": "chat", "input": "More", "previous_response_id": made["id"]}
        assert (await second.post("/v1/responses", json=further)).json()["previous_response_id"] == made["id"]
        assert (await second.get(path, headers={"authorization": "Bearer another"})).status_code == 404
        assert (await second.delete(path)).status_code == 200
        for client in (first, second):
            assert (await client.get(path)).status_code == 404
            assert (await client.post("/v1/responses", json=further)).status_code == 400
        answers = [
            await chat(client, model="cached", temperature=0, messages=[{"role": "user", "content": text}])
            for text in ("Hi", "Ho")
            for client in (first, second)
        ]
        assert answers[0].content == answers[1].content
        assert answers[2].content == answers[3].content
        assert answers[0].content != answers[2].content


async def _streamed(client: httpx.AsyncClient, text: str) -> str:
    """What a stream says; it must end as streams do."""
    answer = await chat(client, stream=True, temperature=0, user=text, messages=[{"role": "user", "content": text}])
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    found = [json.loads(line) for line in lines[:-1]]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in found if each["choices"])


async def test_no_request_fails_while_the_state_server_says_nothing_or_is_gone(
    fleeting_process: Process, tmp_path: Path
) -> None:
    """Under 32 streams: they begin before the server is halted, killed and started again, and while it is so."""
    two = endpoint(("a", "slow", 50), ("b", "slow", 50))
    limited = replace(two, experiment=Experiment(feedback={"liked": "higher"}), limits=(EndpointLimit(requests=500),))
    config = configured(fleeting_process.settings(), chat=limited)
    async with gateways(config, tmp_path) as ((first, second), apps):
        servers = [app.state.service.shared.server for app in apps]

        async def streams(word: str) -> list[str]:
            texts = [f"{word} {number}" for number in range(MANY // 2)]
            return await asyncio.gather(*(_streamed(client, text) for client in (first, second) for text in texts))

        wanted = [await _streamed(first, "before")]
        with fleeting_process.halted(*servers):
            assert set(await streams("before")) == set(wanted)
            assert await create(first, "more") == 503
        running = asyncio.create_task(streams("before"))
        await asyncio.sleep(0.05)
        fleeting_process.kill()
        for found in (await running, await streams("before")):
            assert set(found) == set(wanted)
        stored = await second.post("/v1/responses", json={"model": "chat", "input": "Hi"})
        assert stored.status_code == 200
        assert (await first.get(f"/v1/responses/{stored.json()['id']}")).status_code == 503
        in_background = {"model": "chat", "input": "Hi", "background": True}
        assert (await second.post("/v1/responses", json=in_background)).status_code == 503
        answered = (await chat(first)).headers["x-request-id"]
        assert (await _liked(first, answered)).status_code == 204
        assert (await _liked(second, answered)).status_code == 503
        fleeting_process.start()
        while any(server.is_away for server in servers):  # noqa: ASYNC110 - the probes'
            await asyncio.sleep(0.05)
        # What was counted meanwhile is counted once, at both.
        expected = 1 + 3 * MANY + 1 + 1 + 1
        for client in (first, second):
            await _until(client, lambda report: _exposures(report) == expected)
        assert await create(second, "more") == 200
        assert (await chat(first, model="more")).status_code == 200


async def test_a_key_of_one_gateway_is_known_at_the_other_until_it_is_revoked(
    state_process: Process, tmp_path: Path
) -> None:
    async with gateways(configured(state_process.settings(), chat=CHAT), tmp_path, keys=True) as ((_, second), _apps):
        made = new_key(keys_file(tmp_path / "0" / "keys.json"), "team")

        async def becomes(status: int) -> None:
            headers = {"authorization": f"Bearer {made}"}
            while (await second.get("/v1/models", headers=headers)).status_code != status:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        await becomes(200)
        revoke_key(keys_file(tmp_path / "0" / "keys.json"), "team")
        await becomes(401)
