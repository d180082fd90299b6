"""OpenAI's own client reads usage and costs."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import openai
import pytest

from gateway.access.keys_file import keys_file, new_key
from tests.gateway.http.api.usage.test_routes import PRICE, application, ask, usage
from tests.gateway.serving import listening


@pytest.mark.slow
async def test_the_client_of_openai_reads_usage_and_costs(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    team, root = new_key(file, "team"), new_key(file, "root", roles=("admin",))
    async with listening(application(tmp_path, keys=tmp_path / "keys.json")) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url) as http:
            answers = [await ask(http, team, user="alice"), await ask(http, root)]
            await http.post("/v1/embeddings", json={"model": "echo", "input": "x"}, headers={"x-api-key": team})
            ids = {each["key"]: each["key_id"] for each in (await usage(http, root, group_by="key,key_id"))["data"]}
        tokens = [answer.json()["usage"] for answer in answers]
        start = int(time.time()) - 2 * 86400
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=team, admin_api_key=root) as client:
            organization = client.admin.organization
            days = await organization.usage.completions(start_time=start, group_by=["api_key_id", "model"])
            hours = await organization.usage.completions(
                start_time=start, bucket_width="1h", limit=40, api_key_ids=[ids["team"]], user_ids=["alice"]
            )
            rest = await organization.usage.completions(
                start_time=start, bucket_width="1h", limit=40, page=hours.next_page or "", api_key_ids=[ids["team"]]
            )
            costs = await organization.usage.costs(start_time=start, group_by=["line_item"])
            embeddings = await organization.usage.embeddings(start_time=start)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=team, admin_api_key=team) as client:
            own = await client.admin.organization.usage.completions(start_time=start, group_by=["api_key_id"])
    assert [len(bucket.results) for bucket in days.data] == [0, 0, 2]
    results = {each.api_key_id: each for each in days.data[-1].results}
    for name, said in zip(("team", "root"), tokens, strict=True):
        found = results[ids[name]]
        assert (found.input_tokens, found.output_tokens) == (said["prompt_tokens"], said["completion_tokens"])
        assert (found.num_model_requests, found.model) == (1, "echo")
    assert (len(hours.data), hours.has_more, rest.has_more) == (40, True, False)
    buckets = hours.data + rest.data
    assert [each.start_time for each in buckets] == list(range(buckets[0].start_time, buckets[-1].end_time, 3600))
    assert sum(each.num_model_requests for bucket in buckets for each in bucket.results) == 1
    (cost,) = costs.data[-1].results
    priced = sum(PRICE.of(each["prompt_tokens"], each["completion_tokens"]) for each in tokens)
    embedded = embeddings.data[-1].results[0]
    assert round(cost.amount.value * 1e9) == priced + PRICE.of(embedded.input_tokens, 0)
    assert cost.line_item == "echo"
    assert embedded.num_model_requests == 1
    assert [each.api_key_id for bucket in own.data for each in bucket.results] == [ids["team"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({}, "start_time"),
        ({"start_time": "1", "group_by": "line_item"}, "group_by"),
        ({"start_time": "1", "bucket_width": "2d"}, "bucket_width"),
        ({"start_time": "1", "limit": "99"}, "limit"),
        ({"start_time": "1", "limit": "9" * 5000}, "limit"),
        ({"start_time": "1", "page": "x"}, "page"),
        ({"start_time": "1", "page": "page_999999999999"}, "page"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(tmp_path: Path, query: dict[str, str], name: str) -> None:
    async with listening(application(tmp_path)) as port:
        url = f"http://127.0.0.1:{port}/v1/organization/usage/completions"
        async with httpx.AsyncClient() as client:
            answer = await client.get(url, params=query)
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]
