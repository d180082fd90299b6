"""`/v1/rerank`, `/v1/score` and `/classify` of native models through the application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from adapters.openai.vectors import decode_vector
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.application.test_embeddings import all_ready
from tests.backends.native.classifiers import build, logits
from tests.backends.native.encoders import CASES, GOLDEN_LATE, GOLDEN_SPARSE, LATE, SPARSE, TEXTS, WIDTH
from tests.backends.native.encoders import build as build_encoder
from tests.gateway.serving import listening, running

pytestmark = [pytest.mark.torch, pytest.mark.slow]

DOCUMENTS = ["x " * 20, "a star is a ball of gas", "no"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "ranks": build(root / "ranks", "bert"),
        "labels": build(root / "labels", "roberta", labels=2),
        "vectors": build_encoder(root / "vectors", CASES["mpnet, cls"]),
        "sparse": build_encoder(root / "sparse", SPARSE["bert, max"]),
        "late": build_encoder(root / "late", LATE["bert, PyLate"]),
    }


def config(folders: dict[str, Path]) -> Config:
    options = {"kind": "native", "engine": "inprocess", "dtype": "float32", "device": "cpu", "threads": 1}
    backends: dict[str, Any] = {name: options | {"model": str(folder)} for name, folder in folders.items()}
    backends["s"] = {"kind": "scripted"}
    endpoints = {
        name: Endpoint(
            served_entities=(ServedEntity(name=name, backend=name),), task="rerank" if name == "ranks" else None
        )
        for name in backends
    }
    return Config(backends=backends, endpoints=endpoints)


@asynccontextmanager
async def serving(folders: dict[str, Path]) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(config(folders))
    async with running(app) as client:
        await all_ready(app)
        yield client


async def test_answers_and_refusals(folders: dict[str, Path]) -> None:
    async with serving(folders) as client:
        await _ranks(client, folders["ranks"])
        await _scores(client, folders["ranks"])
        await _labels(client, folders["labels"])
        await _in_form_of_tei(client, folders)
        await _vectors(client)
        await _refusals(client)
        tasks = {e["name"]: e["task"] for e in (await client.get("/api/2.0/serving-endpoints")).json()["endpoints"]}
        assert tasks["ranks"] == "llm/v1/rerank"
        assert tasks["labels"] == "llm/v1/classify"
        metrics = (await client.get("/metrics")).text
        assert 'route="rerank"' in metrics


async def _ranks(client: httpx.AsyncClient, folder: Path) -> None:
    body = {"model": "ranks", "query": "what is a star?", "documents": DOCUMENTS}
    expected = logits(folder, [("what is a star?", text) for text in DOCUMENTS]).sigmoid().flatten().tolist()
    order = sorted(range(3), key=lambda index: -expected[index])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert [result["index"] for result in results] == order
        assert [result["relevance_score"] for result in results] == pytest.approx(
            [expected[i] for i in order], abs=1e-5
        )
        assert [result["document"] for result in results] == [{"text": DOCUMENTS[i]} for i in order]
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == usage["total_tokens"] > 60
    few = await client.post("/v1/rerank", json=body | {"top_n": 1, "return_documents": False, "x_new": 1})
    best = pytest.approx(expected[order[0]], abs=1e-5)
    assert few.json()["results"] == [{"index": order[0], "relevance_score": best}]
    assert few.headers["x-interlingua-ignored"] == "x_new"
    named = await client.post("/v1/rerank", json=body | {"documents": [{"text": text} for text in DOCUMENTS]})
    # The last digits of a score depend on what else is in its batch.
    assert [result["document"] for result in named.json()["results"]] == [{"text": DOCUMENTS[i]} for i in order]
    by_cosine = await client.post("/v1/rerank", json=body | {"model": "vectors", "top_n": 2})
    assert len(by_cosine.json()["results"]) == 2


async def _in_form_of_tei(client: httpx.AsyncClient, folders: dict[str, Path]) -> None:
    body = {"model": "ranks", "query": "what is a star?", "texts": DOCUMENTS, "return_text": True}
    expected = logits(folders["ranks"], [("what is a star?", text) for text in DOCUMENTS]).sigmoid().flatten().tolist()
    found = (await client.post("/rerank", json=body)).json()
    assert [each["score"] for each in found] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert [each["text"] for each in found] == [DOCUMENTS[each["index"]] for each in found]
    named = (await client.post("/predict", json={"model": "labels", "inputs": [["hi"], ["no"]]})).json()
    best = logits(folders["labels"], ["hi", "no"]).softmax(-1).amax(-1).tolist()
    assert [each[0]["score"] for each in named] == pytest.approx(best, abs=1e-5)


async def _vectors(client: httpx.AsyncClient) -> None:
    golden = json.loads(GOLDEN_SPARSE.read_text())["bert, max"]
    found = (await client.post("/embed_sparse", json={"model": "sparse", "inputs": TEXTS})).json()
    for row, expected in zip(found, golden, strict=True):
        assert [each["index"] for each in row] == [index for index, _ in expected]
        assert [each["value"] for each in row] == pytest.approx([value for _, value in expected], rel=1e-5, abs=1e-5)
    (one,) = (await client.post("/embed_sparse", json={"model": "sparse", "inputs": "hi"})).json()
    assert set(one[0]) == {"index", "value"}
    golden = json.loads(GOLDEN_LATE.read_text())["bert, PyLate"]
    asked = {"model": "late", "inputs": TEXTS[1], "prompt_name": "query"}
    torch.testing.assert_close(await _tokens(client, asked), torch.tensor(golden[1]), atol=1e-5, rtol=0)
    asked["prompt_name"] = None
    torch.testing.assert_close(await _tokens(client, asked), torch.tensor(golden[3]), atol=1e-5, rtol=0)
    ids = (await client.post("/tokenize", json={"model": "vectors", "prompt": "hi"})).json()["tokens"]
    (raw,) = (await client.post("/embed_all", json={"model": "vectors", "inputs": "hi"})).json()
    assert (len(raw), {len(row) for row in raw}) == (len(ids), {WIDTH})
    body = {"model": "vectors", "input": ["hi", "no"], "task": "token_embed"}
    pooled = (await client.post("/pooling", json=body)).json()
    assert [each["index"] for each in pooled["data"]] == [0, 1]
    lengths = [torch.tensor(row).norm() for row in raw]
    unit = [value / float(lengths[0]) for value in raw[0]]
    assert pooled["data"][0]["data"][0] == pytest.approx(unit, abs=1e-5)
    plain = (await client.post("/pooling", json=body | {"normalize": False, "encoding_format": "base64"})).json()
    numbers = decode_vector(plain["data"][0]["data"])
    assert numbers == pytest.approx([value for row in raw for value in row], abs=1e-5)


async def _tokens(client: httpx.AsyncClient, body: dict[str, Any]) -> torch.Tensor:
    (rows,) = (await client.post("/embed_all", json=body)).json()
    return torch.tensor(rows)


async def _scores(client: httpx.AsyncClient, folder: Path) -> None:
    expected = logits(folder, [("q", text) for text in DOCUMENTS]).sigmoid().flatten().tolist()
    for path in ("/v1/score", "/score"):
        for fields in (
            {"text_1": "q", "text_2": DOCUMENTS},
            {"data_1": ["q"] * 3, "data_2": DOCUMENTS},
            {"queries": "q", "documents": DOCUMENTS},
        ):
            answer = (await client.post(path, json={"model": "ranks"} | fields)).json()
            assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
            assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected, abs=1e-5)
            assert (answer["object"], answer["model"]) == ("list", "ranks")
    same = (await client.post("/score", json={"model": "vectors", "text_1": "q", "text_2": "q"})).json()
    assert same["data"][0]["score"] == pytest.approx(1)
    for_query = {"model": "late", "inputs": "q", "prompt_name": "query"}
    [query] = (await client.post("/embed_all", json=for_query)).json()
    documents = (await client.post("/embed_all", json={"model": "late", "inputs": DOCUMENTS})).json()
    found = (await client.post("/v1/rerank", json={"model": "late", "query": "q", "documents": DOCUMENTS})).json()
    for entry in found["results"]:
        products = torch.tensor(query) @ torch.tensor(documents[entry["index"]]).T
        assert entry["relevance_score"] == pytest.approx(float(products.amax(1).sum()), abs=1e-4)


async def _labels(client: httpx.AsyncClient, folder: Path) -> None:
    rows = logits(folder, DOCUMENTS).softmax(-1)
    answer = (await client.post("/classify", json={"model": "labels", "input": DOCUMENTS})).json()
    for entry, row in zip(answer["data"], rows, strict=True):
        torch.testing.assert_close(torch.tensor(entry["probs"]), row, atol=1e-5, rtol=0)
        assert (entry["label"], entry["num_classes"]) == (f"LABEL_{int(row.argmax())}", 2)
    raw = await client.post("/classify", json={"model": "labels", "input": DOCUMENTS[2], "use_activation": False})
    expected = logits(folder, DOCUMENTS[2:])[0].tolist()
    assert raw.json()["data"][0]["probs"] == pytest.approx(expected, abs=1e-5)


async def _refusals(client: httpx.AsyncClient) -> None:
    rank = {"model": "ranks", "query": "q", "documents": ["a"]}
    for path, body, status, words in (
        ("/v1/rerank", {"model": "ranks", "documents": ["a"]}, 400, "Missing required parameter: 'query'"),
        ("/v1/rerank", {"model": "ranks", "query": "q"}, 400, "Missing required parameter: 'documents'"),
        ("/v1/rerank", rank | {"query": ""}, 400, "cannot be an empty string"),
        ("/v1/rerank", rank | {"documents": []}, 400, "empty array"),
        ("/v1/rerank", rank | {"documents": [1]}, 400, "documents"),
        ("/v1/rerank", rank | {"top_n": -1}, 400, "top_n"),
        ("/v1/rerank", rank | {"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
        ("/v1/rerank", rank | {"documents": ["b" * 200]}, 400, "maximum context length is 130 tokens"),
        ("/v1/score", {"model": "ranks", "text_1": "q"}, 400, "Missing required parameter: 'text_2'"),
        ("/v1/score", {"model": "ranks", "text_1": ["a", "b"], "text_2": ["c"]}, 400, "as many texts as 'text_1'"),
        ("/v1/score", {"model": "ranks", "text_1": "", "text_2": "c"}, 400, "text_1"),
        ("/classify", {"model": "labels"}, 400, "Missing required parameter: 'input'"),
        ("/v1/rerank", rank | {"model": "labels"}, 404, "does not support rerank"),
        ("/classify", {"model": "vectors", "input": "a"}, 404, "does not support classify"),
        ("/v1/rerank", rank | {"model": "s"}, 404, "does not support rerank"),
        ("/v1/completions", {"model": "ranks", "prompt": "a"}, 400, "is for scores, not text"),
        ("/v1/completions", {"model": "labels", "prompt": "a"}, 400, "makes scores, and no text"),
        ("/v1/embeddings", {"model": "labels", "input": "a"}, 400, "has no embeddings"),
        ("/v1/embeddings", {"model": "sparse", "input": "a"}, 400, "makes sparse vectors: POST /embed_sparse"),
        ("/v1/embeddings", {"model": "late", "input": "a"}, 400, "makes a vector of each token: POST /embed_all"),
        ("/v1/completions", {"model": "sparse", "prompt": "a"}, 400, "makes embeddings, and no text"),
        ("/embed_sparse", {"model": "vectors", "inputs": "a"}, 404, "does not support embed sparse"),
        ("/embed_sparse", {"model": "sparse"}, 400, "Missing required parameter: 'inputs'"),
        ("/embed_sparse", {"model": "sparse", "inputs": "b" * 200}, 400, "maximum context length is 100 tokens"),
        ("/embed_all", {"model": "sparse", "inputs": "a"}, 404, "does not support embed all"),
        ("/pooling", {"model": "vectors", "input": "a", "task": "plugin"}, 400, "answer token_embed"),
        ("/pooling", {"model": "labels", "input": "a"}, 404, "does not support pooling"),
    ):
        answer = await client.post(path, json=body)
        assert (answer.status_code, words in answer.text) == (status, True), (path, body, answer.text)
        assert "error" in answer.json()
    cut = await client.post("/v1/rerank", json=rank | {"documents": ["b" * 200], "truncate_prompt_tokens": -1})
    assert cut.json()["usage"]["prompt_tokens"] == 130


async def test_scores_through_a_remote_gateway_are_relayed(folders: dict[str, Path]) -> None:
    near = create_app(config({"ranks": folders["ranks"]}))
    async with listening(near) as port:
        await all_ready(near)
        backends = {"far": {"kind": "openai", "url": f"http://127.0.0.1:{port}/v1"}}
        arm = ServedEntity(name="far", backend="far", model="ranks")
        app = create_app(Config(backends=backends, endpoints={"r": Endpoint(served_entities=(arm,), task="rerank")}))
        async with running(app) as client:
            for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
                answer = await client.post(path, json={"model": "r", "query": "q", "documents": DOCUMENTS})
                assert len(json.loads(answer.content)["results"]) == 3, answer.text
