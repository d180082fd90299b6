"""Files and batches with OpenAI's and Anthropic's SDKs."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.clients.conftest import serving

pytestmark = pytest.mark.clients
ROOT = Path(__file__).parent.parent.parent
CONFIG = """
[batches]
folder = "{folder}/batches"
[backends.s]
kind = "scripted"
[endpoints.echo]
served_entities = [{{ name = "echo-1", backend = "s", model = "echo" }}]
[endpoints.hang]
served_entities = [{{ name = "hang-1", backend = "s", model = "hang" }}]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "gateway.toml").write_text(CONFIG.format(folder=folder))
    with serving(folder / "log", "--config", str(folder / "gateway.toml")) as url:
        yield url


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True)


@pytest.fixture
def claude(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, _strict_response_validation=True)


def line(name: str, model: str = "echo") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": f"I am {name}"}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def begun(client: openai.OpenAI, *lines: str) -> openai.types.Batch:
    file = client.files.create(
        file=("requests.jsonl", io.BytesIO("".join(lines).encode())),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at == file.created_at + 3600
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"job": "nightly"},
    )


def ended(client: openai.OpenAI, batch: openai.types.Batch) -> openai.types.Batch:
    for _ in range(1200):
        if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            break
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_the_example_of_the_docs_runs(
    client: openai.OpenAI, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/batches.md").read_text(), re.DOTALL)
    (tmp_path / "requests.jsonl").write_text(line("a"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, openai.types.Batch] = {}
    exec(example.replace("http://127.0.0.1:8000", url), names)
    assert ended(client, names["batch"]).request_counts.completed == 1


def test_openai_answers_a_file(client: openai.OpenAI) -> None:
    batch = ended(client, begun(client, *(line(f"l{number}") for number in range(20)), line("x", "nobody")))
    assert batch.status == "completed"
    assert batch.metadata == {"job": "nightly"}
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
    results = [json.loads(each) for each in client.files.content(batch.output_file_id).iter_lines()]
    assert sorted(each["custom_id"] for each in results) == sorted(f"l{number}" for number in range(20))
    answer = openai.types.chat.ChatCompletion.model_validate(results[0]["response"]["body"])
    assert answer.choices[0].message.content == f"I am {results[0]['custom_id']}"
    errors = [json.loads(each) for each in client.files.content(batch.error_file_id).iter_lines()]
    assert [each["response"]["status_code"] for each in errors] == [404]
    client.files.content(batch.output_file_id).read()


def test_openai_lists_and_deletes_files(client: openai.OpenAI) -> None:
    made = [client.files.create(file=io.BytesIO(b"x"), purpose="batch").id for _ in range(3)]
    listed = [file.id for file in client.files.list(limit=2, order="asc")]  # over all pages
    assert listed[-3:] == made
    assert client.files.retrieve(made[0]).bytes == 1
    assert client.files.delete(made[0]).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made[0])
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=io.BytesIO(b"x"), purpose="fine-tune")


def test_openai_lists_and_cancels_batches(client: openai.OpenAI) -> None:
    first, second = (begun(client, line("a", "hang")) for _ in range(2))
    assert [batch.id for batch in client.batches.list(limit=1)][:2] == [second.id, first.id]
    for batch in (first, second):
        assert client.batches.cancel(batch.id).status == "cancelling"
        assert ended(client, batch).status == "cancelled"
    failed = ended(client, begun(client, "no JSON\n"))
    assert failed.status == "failed"
    assert [(error.line, error.code) for error in failed.errors.data] == [(1, "invalid_json_line")]


def test_anthropic_answers_requests(claude: anthropic.Anthropic) -> None:
    batches = claude.messages.batches

    def request(name: str, model: str = "echo") -> dict[str, object]:
        params = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": f"I am {name}"}]}
        return {"custom_id": name, "params": params}

    batch = batches.create(requests=[*(request(f"l{number}") for number in range(20)), request("x", "nobody")])
    while batches.retrieve(batch.id).processing_status != "ended":
        time.sleep(0.1)
    results = {each.custom_id: each.result for each in batches.results(batch.id)}
    assert len(results) == 21
    assert results["l7"].type == "succeeded"
    assert results["l7"].message.content[0].text == "I am l7"
    assert results["x"].type == "errored"
    assert results["x"].error.error.type == "not_found_error"
    other = batches.create(requests=[request("a", "hang")])
    assert batches.cancel(other.id).processing_status == "canceling"
    while (cancelled := batches.retrieve(other.id)).processing_status != "ended":
        time.sleep(0.1)
    assert cancelled.request_counts.canceled == 1
    assert [each.id for each in batches.list(limit=1)][:2] == [other.id, batch.id]  # over all pages
    assert batches.delete(other.id).id == other.id
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(other.id)
