"""Usage over HTTP: what is recorded, who sees what, and in which forms."""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from structlog.testing import capture_logs

from backends.scripted import ScriptedBackend
from gateway.access.keys_file import keys_file, new_key, revoke_key
from gateway.app import create_app
from gateway.config import Config, Endpoint, Price, ServedEntity, ServerSection, UsageSection
from gateway.usage.record import hashed
from tests.gateway.serving import MESSAGES, running
from tests.missing_tools import missing

CHAT = {"model": "echo", "messages": MESSAGES}
PRICE = Price(prompt=0.15, completion=0.6)


def application(
    folder: Path, *, keys: Path | None = None, state: Path | None = None, tracked: bool | None = None, **usage: Any
) -> Litestar:
    entity = ServedEntity(name="echo-1", backend="s", model="echo", price=PRICE)
    failing = ServedEntity(name="failing-1", backend="s", model="overloaded")
    config = Config(
        server=ServerSection(keys_file=str(keys) if keys else None, state_file=str(state) if state else None),
        backends={"s": {"kind": "scripted"}},
        endpoints={
            "echo": Endpoint(served_entities=(entity,), usage_tracking=tracked),
            "failing": Endpoint(served_entities=(failing,)),
        },
        usage=UsageSection(database=str(folder / "usage.sqlite3"), **usage),
    )
    return create_app(config, {"s": ScriptedBackend("s")})


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with running(application(folder, **options)) as client:
        yield client


async def ask(client: httpx.AsyncClient, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await client.post("/v1/chat/completions", json=CHAT | fields, headers=headers)


async def usage(client: httpx.AsyncClient, by: str | None = None, path: str = "", **query: Any) -> Any:
    """The answer for whoever has the key `by`."""
    headers = {"authorization": f"Bearer {by}"} if by else {}
    answer = await client.get(f"/v1/usage{path}", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_record_has_who_what_how_much_and_how_it_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        with capture_logs() as logged:
            answer = await ask(client, user="alice")
        counted = answer.json()["usage"]
        (record,) = (await usage(client, path="/records"))["data"]
    cost = PRICE.of(counted["prompt_tokens"], counted["completion_tokens"])
    assert record["request_id"] == answer.headers["x-request-id"]
    expected = {
        "key": None,
        "endpoint": "echo",
        "served_entity": "echo-1",
        "model": "echo",
        "user": hashed("alice"),
        "streamed": False,
        "prompt_tokens": counted["prompt_tokens"],
        "completion_tokens": counted["completion_tokens"],
        "status": 200,
        "outcome": "ok",
        "stage": None,
        "finish_reasons": "eos",
    }
    assert {name: record[name] for name in expected} == expected
    assert round(record["cost"] * 1e9) == cost > 0
    (line,) = [entry for entry in logged if entry["event"] == "request.finished"]
    assert (line["cost"], line["user"], line["prompt_tokens"]) == (
        record["cost"],
        record["user"],
        record["prompt_tokens"],
    )
    assert not {"input", "output"} & record.keys()


@pytest.mark.slow
async def test_texts_and_users_are_kept_only_where_the_operator_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, text=True, users="plain") as client:
        await ask(client, user="al\0ice")
        (record,) = (await usage(client, path="/records"))["data"]
    assert json.loads(record["input"])["messages"] == MESSAGES
    assert record["output"]
    assert record["user"] == "al\ufffdice"
    async with serving(tmp_path, users="none") as client:
        await ask(client, user="alice")
        assert {record["user"] for record in (await usage(client, path="/records"))["data"]} == {None, "al\ufffdice"}


async def test_a_request_of_this_very_millisecond_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.9999)
    async with serving(tmp_path) as client:
        await ask(client)
        assert (await usage(client))["data"][0]["requests"] == 1
        organization = await client.get("/v1/organization/usage/completions", params={"start_time": 1_800_000_000})
    (result,) = organization.json()["data"][0]["results"]
    assert result["num_model_requests"] == 1


async def test_failures_are_recorded_and_requests_for_nothing_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        failed = await ask(client, model="failing")
        await ask(client, model="nothing")
        await client.get("/v1/models")
        (record,) = (await usage(client, path="/records"))["data"]
    assert failed.status_code >= 400
    assert (record["endpoint"], record["status"], record["stage"]) == ("failing", failed.status_code, "generate")
    assert (record["prompt_tokens"], record["cost"]) == (None, 0.0)


@pytest.mark.slow
async def test_an_endpoint_whose_usage_is_not_tracked_has_no_records(tmp_path: Path) -> None:
    async with serving(tmp_path, tracked=False) as client:
        await ask(client)
        assert (await usage(client))["data"][0]["requests"] == 0


@pytest.mark.slow
async def test_clients_of_databricks_turn_the_tracking_of_an_endpoint_off_and_on(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    root = new_key(file, "root", roles=("admin",))
    async with serving(tmp_path, keys=tmp_path / "keys.json", state=tmp_path / "state.json") as client:
        for enabled, recorded in ((True, 1), (False, 1), (True, 2)):
            settings = {"usage_tracking_config": {"enabled": enabled}}
            path = "/api/2.0/serving-endpoints/echo/ai-gateway"
            changed = await client.put(path, json=settings, headers={"authorization": f"Bearer {root}"})
            assert changed.status_code == 200, changed.text
            await ask(client, root)
            assert (await usage(client, root))["data"][0]["requests"] == recorded


async def test_settings_of_databricks_that_are_written_back_change_no_tracking(tmp_path: Path) -> None:
    root = new_key(keys_file(tmp_path / "keys.json"), "root", roles=("admin",))
    path, headers = "/api/2.0/serving-endpoints/echo", {"authorization": f"Bearer {root}"}
    async with serving(tmp_path, keys=tmp_path / "keys.json", state=tmp_path / "state.json") as client:
        limits = [{"renewal_period": "minute", "key": "endpoint", "calls": 100}]
        changed = await client.put(f"{path}/ai-gateway", json={"rate_limits": limits}, headers=headers)
        assert changed.json()["usage_tracking_config"] == {"enabled": True}
        read = (await client.get(path, headers=headers)).json()["ai_gateway"]
        assert (await client.put(f"{path}/ai-gateway", json=read, headers=headers)).status_code == 200
        await ask(client, root)
        assert (await usage(client, root))["data"][0]["requests"] == 1


@pytest.mark.slow
async def test_sums_by_group_filters_and_pages(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        for user in ("a", "b", "b", "c", "c", "c"):
            await ask(client, user=user)
        await ask(client, model="failing", user="a")
        (total,) = (await usage(client))["data"]
        assert (total["requests"], total["succeeded"]) == (7, 6)
        by_user = (await usage(client, group_by="user"))["data"]
        assert {group["user"]: group["requests"] for group in by_user} == {
            hashed("a"): 2,
            hashed("b"): 2,
            hashed("c"): 3,
        }
        assert (await usage(client, user="c"))["data"][0]["requests"] == 3
        assert (await usage(client, user="c", outcome="overloaded"))["data"][0]["requests"] == 0
        days = (await usage(client, group_by="day,endpoint"))["data"]
        assert [day["endpoint"] for day in days] == ["echo", "failing"]
        # Page by page it is the same.
        paged: list[Any] = []
        after: dict[str, Any] = {}
        while True:
            page = await usage(client, group_by="user,endpoint", limit=1, **after)
            paged += page["data"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert paged == (await usage(client, group_by="user,endpoint"))["data"]
        assert len(paged) == 4
        first = await usage(client, path="/records", limit=4)
        rest = await usage(client, path="/records", limit=4, after=first["next"])
        found = first["data"] + rest["data"]
        assert len({record["request_id"] for record in found}) == 7
        assert rest["next"] is None
        assert (await usage(client, end="2020-01-01"))["data"][0]["requests"] == 0
        # An empty filter chooses the records without a value; other empty parameters count as absent.
        assert (await usage(client, key="", limit="", after=""))["data"][0]["requests"] == 7
        assert (await usage(client, user=""))["data"][0]["requests"] == 0


@pytest.mark.slow
async def test_a_key_sees_its_own_records_and_an_admin_all(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    one, two, root = new_key(file, "one"), new_key(file, "two"), new_key(file, "root", roles=("admin",))
    async with serving(tmp_path, keys=tmp_path / "keys.json") as client:
        await ask(client, one)
        await ask(client, two)
        await ask(client, two)
        by_key = (await usage(client, root, group_by="key"))["data"]
        assert {group["key"]: group["requests"] for group in by_key} == {"one": 1, "two": 2}
        ids = {record["key"]: record["key_id"] for record in (await usage(client, root, "/records"))["data"]}
        for asked in ({}, {"key": "two"}, {"key_id": ids["two"]}, {"group_by": "key"}):
            groups = (await usage(client, one, **asked))["data"]
            assert sum(group["requests"] for group in groups) == (0 if asked == {"key": "two"} else 1)
        assert {record["key"] for record in (await usage(client, one, "/records"))["data"]} == {"one"}
        # A cursor of somebody else leads no further.
        cursor = (await usage(client, root, "/records", limit=1))["next"]
        assert {each["key"] for each in (await usage(client, one, "/records", after=cursor))["data"]} <= {"one"}
        for path in ("/v1/usage", "/v1/usage/records"):
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers={"authorization": "Bearer x"})).status_code == 401


@pytest.mark.slow
async def test_a_new_key_of_the_same_name_does_not_see_the_former_ones_records(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    old = new_key(file, "team")
    async with serving(tmp_path, keys=tmp_path / "keys.json") as client:
        await ask(client, old)
    revoke_key(file, "team")
    new = new_key(file, "team")
    async with serving(tmp_path, keys=tmp_path / "keys.json") as client:
        assert (await usage(client, new))["data"][0]["requests"] == 0


@pytest.mark.slow
async def test_csv_has_exact_costs_and_no_formulas(tmp_path: Path) -> None:
    async with serving(tmp_path, users="plain") as client:
        await ask(client, user='=HYPERLINK("http://x","y")')
        await ask(client, user="a,b\nc")
        answer = await client.get("/v1/usage/records", headers={"accept": "text/csv"})
        groups = await client.get("/v1/usage", params={"format": "csv", "group_by": "user"})
        records = (await usage(client, path="/records"))["data"]
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["user"] for row in rows] == ["a,b\nc", '\'=HYPERLINK("http://x","y")']
    assert [row["cost"] for row in rows] == [f"{record['cost']:.9f}" for record in records]
    assert [row["user"] for row in csv.DictReader(io.StringIO(groups.text))] == [
        '\'=HYPERLINK("http://x","y")',
        "a,b\nc",
    ]


@pytest.mark.slow
async def test_parquet_has_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason=missing("pyarrow"))
    async with serving(tmp_path) as client:
        await ask(client)
        answer = await client.get("/v1/usage/records", params={"format": "parquet"})
        (record,) = (await usage(client, path="/records"))["data"]
    (row,) = parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    assert float(row["cost"]) == record["cost"]
    assert row["time"].isoformat(timespec="milliseconds") == record["time"]
    assert row["key"] is None


BAD: dict[str, tuple[dict[str, str], str]] = {
    "group": ({"group_by": "key; DROP TABLE usage_record"}, "group_by"),
    "limit": ({"limit": "0"}, "limit"),
    "time": ({"start": "yesterday"}, "start"),
    "cursor": ({"after": "%%%"}, "after"),
    "cursor of others": ({"after": "W10="}, "after"),
    "cursor of large numbers": ({"after": base64.urlsafe_b64encode(b"[1000000000000000000000]").decode()}, "after"),
    "many digits": ({"limit": "1" * 5000}, "limit"),
    "unknown": ({"end_point": "echo"}, "no parameter 'end_point'; there are group_by, start"),
    "format": ({"format": "xml"}, "format"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
async def test_a_wrong_parameter_is_refused_by_name(tmp_path: Path, case: str) -> None:
    query, name = BAD[case]
    async with serving(tmp_path) as client:
        answer = await client.get("/v1/usage", params={"group_by": "user"} | query)
    assert answer.status_code == 400
    assert name in answer.text


async def test_a_server_without_usage_says_so(tmp_path: Path) -> None:
    entity = ServedEntity(name="echo-1", backend="s", model="echo")
    config = Config(backends={"s": {"kind": "scripted"}}, endpoints={"echo": Endpoint(served_entities=(entity,))})
    async with running(create_app(config, {"s": ScriptedBackend("s")})) as client:
        answer = await client.get("/v1/usage")
    assert answer.status_code == 404
    assert "[usage]" in answer.text


@pytest.mark.slow
async def test_requests_go_on_while_the_database_is_away(tmp_path: Path) -> None:
    (tmp_path / "usage.sqlite3").mkdir()
    async with serving(tmp_path) as client:
        assert (await ask(client)).status_code == 200
        assert (await client.get("/v1/usage")).status_code == 503
        (tmp_path / "usage.sqlite3").rmdir()
        assert (await usage(client))["data"][0]["requests"] == 1
