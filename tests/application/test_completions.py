"""Every parameter of completions, through the application with the bundled model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from backends.native.demo import WEIGHTS
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.gateway.serving import ready, running

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

ONCE = "Once upon a time there was"
TOKENIZER = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)


def application(**options: Any) -> Any:
    backend = {"kind": "native", "engine": "inprocess", "dtype": "float32", "threads": 1, "context_length": 256}
    arm = ServedEntity(name="demo", backend="local")
    return create_app(Config(backends={"local": backend | options}, endpoints={"m": Endpoint(served_entities=(arm,))}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = application()
    service = app.state.service  # not the application's lifespan, which wants to end in the task where it began
    await service.start()
    try:
        await ready(app)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60
        ) as made:
            yield made
    finally:
        await service.aclose()


async def complete(client: httpx.AsyncClient, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": ONCE, "temperature": 0, "max_tokens": 8} | fields
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def text(client: httpx.AsyncClient, **fields: Any) -> str:
    return (await complete(client, **fields))["choices"][0]["text"]


async def test_logit_bias(client: httpx.AsyncClient) -> None:
    (id,) = TOKENIZER.encode(" star", add_special_tokens=False)[:1]
    piece = TOKENIZER.decode([id])
    assert await text(client, logit_bias={str(id): 100}) == piece * 8
    plain = (await complete(client, logprobs=0))["choices"][0]["logprobs"]["tokens"]
    (first,) = TOKENIZER.encode(plain[0], add_special_tokens=False)[:1]
    assert (await text(client, logit_bias={str(first): -100})) != "".join(plain)
    refused = await client.post("/v1/completions", json={"model": "m", "prompt": "x", "logit_bias": {"99999": 1}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")


async def test_min_tokens_and_ignore_eos(client: httpx.AsyncClient) -> None:
    ids = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False
    )
    asked = {"prompt": ids, "max_tokens": 40}
    plain = await complete(client, **asked)
    ended = plain["usage"]["completion_tokens"]
    assert (plain["choices"][0]["finish_reason"], ended < 30) == ("stop", True)
    longer = await complete(client, **asked, min_tokens=30)
    assert 30 <= longer["usage"]["completion_tokens"] <= 40
    forced = await complete(client, **asked, ignore_eos=True)
    assert (forced["usage"]["completion_tokens"], forced["choices"][0]["finish_reason"]) == (40, "length")


async def test_prompts_are_answered_in_order(client: httpx.AsyncClient) -> None:
    prompts = [ONCE, "The sun is", "Hi"]
    alone = [await text(client, prompt=prompt) for prompt in prompts]
    together = await complete(client, prompt=prompts)
    assert [(choice["index"], choice["text"]) for choice in together["choices"]] == list(enumerate(alone))
    ids = [TOKENIZER.encode(prompt) for prompt in prompts]
    assert [choice["text"] for choice in (await complete(client, prompt=ids))["choices"]] == alone
    twice = await complete(client, prompt=prompts, n=2)
    assert [choice["text"] for choice in twice["choices"]] == [said for said in alone for _ in range(2)]


async def test_best_of_returns_the_choices_of_the_highest_mean_logprob(client: httpx.AsyncClient) -> None:
    asked = {"temperature": 1.5, "seed": 7, "logprobs": 0}
    all_of_them = (await complete(client, **asked, n=6))["choices"]
    means = [sum(scores) / len(scores) for scores in (choice["logprobs"]["token_logprobs"] for choice in all_of_them)]
    best = await complete(client, **asked, best_of=6, n=2)
    ranked = [all_of_them[place]["text"] for place in sorted(range(6), key=lambda place: -means[place])]
    assert len(set(ranked)) > 1
    assert [choice["text"] for choice in best["choices"]] == ranked[:2]


@pytest.mark.parametrize("as_ids", [False, True])
async def test_echo_with_logprobs_scores_the_prompt(client: httpx.AsyncClient, as_ids: bool) -> None:
    """Evaluation harnesses send token ids with `max_tokens` 0 or 1; the expected scores are transformers'."""
    ids = TOKENIZER.encode(ONCE)
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32).eval()
    with torch.inference_mode():
        scores = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(scores[place, id]) for place, id in enumerate(ids[1:])]
    for limit in (0, 1):
        answer = await complete(client, prompt=[ids] if as_ids else ONCE, echo=True, logprobs=1, max_tokens=limit)
        (choice,) = answer["choices"]
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(ids) + limit
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-4)
        for token, score, top in list(zip(*(logprobs[name] for name in _LISTS), strict=True))[1:]:
            assert top[token] == score == pytest.approx(min(score, max(top.values())))
        assert choice["text"].startswith(ONCE)
        assert answer["usage"]["completion_tokens"] == limit


async def test_a_folded_stream_equals_the_whole_answer(client: httpx.AsyncClient) -> None:
    asked = {
        "model": "m",
        "prompt": [ONCE, "Hi"],
        "temperature": 0,
        "max_tokens": 8,
        "echo": True,
        "logprobs": 2,
        "n": 2,
    }
    whole = (await client.post("/v1/completions", json=asked)).json()["choices"]
    streamed = await client.post("/v1/completions", json=asked | {"stream": True})
    folded: dict[int, dict[str, Any]] = {}
    for line in streamed.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                kept = folded.setdefault(choice["index"], {"text": "", "tokens": [], "finish": None})
                kept["text"] += choice["text"]
                kept["tokens"] += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
                kept["finish"] = choice["finish_reason"] or kept["finish"]
    assert len(folded) == len(whole) == 4
    for choice in whole:
        kept = folded[choice["index"]]
        assert (kept["text"], kept["finish"]) == (choice["text"], choice["finish_reason"])
        assert kept["tokens"][1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-4)
        assert kept["tokens"][0] is None


async def test_anthropics_token_count_equals_the_usage(client: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "system": "Be kind."}
    counts = []
    for tools in ({}, {"tools": [{"name": "get_weather", "description": "Weather", "input_schema": schema}]}):
        counted = await client.post("/v1/messages/count_tokens", json=asked | tools)
        answered = await client.post("/v1/messages", json=asked | tools | {"max_tokens": 4})
        assert counted.json()["input_tokens"] == answered.json()["usage"]["input_tokens"]
        counts.append(counted.json()["input_tokens"])
    assert counts[0] < counts[1]


INVOCATIONS = "/serving-endpoints/m/invocations"


async def test_databricks_appends_its_suffix(client: httpx.AsyncClient) -> None:
    asked = {"path": INVOCATIONS, "use_raw_prompt": True}
    plain = (await complete(client, **asked))["choices"][0]["text"]
    assert (await complete(client, **asked, suffix=" THE END"))["choices"][0]["text"] == f"{plain} THE END"
    echoed = await complete(client, **asked, suffix=" THE END", echo=True)
    assert echoed["choices"][0]["text"] == f"{ONCE}{plain} THE END"


async def test_databricks_prompts_are_user_messages(client: httpx.AsyncClient) -> None:
    question = "What is the capital of France?"
    raw = await complete(client, path=INVOCATIONS, prompt=question, use_raw_prompt=True, max_tokens=20)
    said = await complete(client, path=INVOCATIONS, prompt=question, max_tokens=20)
    chat = await client.post(
        "/v1/chat/completions",
        json={"model": "m", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 20},
    )
    assert said["choices"][0]["text"] == chat.json()["choices"][0]["message"]["content"]
    assert raw["choices"][0]["text"] == await text(client, prompt=question, max_tokens=20)
    assert raw["usage"]["prompt_tokens"] < said["usage"]["prompt_tokens"]


@pytest.mark.parametrize("asked", [{"prompt": "and so on " * 300}, {"max_tokens": 5000}])
async def test_error_behavior(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    body = {"prompt": ONCE, "use_raw_prompt": True, "temperature": 0, "max_tokens": 8, "ignore_eos": True} | asked
    for behavior in ({}, {"error_behavior": "error"}):
        refused = await client.post(INVOCATIONS, json=body | behavior)
        assert (refused.status_code, refused.json()["error_code"]) == (400, "BAD_REQUEST")
    cut = await client.post(INVOCATIONS, json=body | {"error_behavior": "truncate"})
    assert cut.status_code == 200, cut.text
    assert cut.json()["usage"]["total_tokens"] == 256
    assert cut.json()["choices"][0]["finish_reason"] == "length"


async def test_a_suffix_is_rejected_if_the_model_cannot_infill(client: httpx.AsyncClient) -> None:
    refused = await client.post("/v1/completions", json={"model": "m", "prompt": ONCE, "suffix": "the end."})
    assert (refused.status_code, "suffix" in refused.text) == (400, True)


async def test_a_suffix_is_infilled(tmp_path: Path) -> None:
    """The bundled model, with its tokenizer's rarest tokens renamed to fill-in-the-middle tokens."""
    async with infilling(tmp_path) as (client, (prefix, suffix, middle)):
        infilled = await text(client, prompt="def f(", suffix="return 1")
        bare = {"add_special_tokens": False}
        ids = [prefix, *TOKENIZER.encode("def f(", **bare), suffix, *TOKENIZER.encode("return 1", **bare), middle]
        assert infilled == await text(client, prompt=ids)
        assert infilled != await text(client, prompt="def f(")
        assert await text(client, prompt=TOKENIZER.encode("def f(", **bare), suffix="return 1") == infilled


@asynccontextmanager
async def infilling(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, tuple[int, int, int]]]:
    for file in WEIGHTS.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    described = json.loads((folder / "tokenizer.json").read_text())
    places = sorted(described["model"]["vocab"].items(), key=lambda item: -item[1])[:3]
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    for (old, id), new in zip(places, names, strict=True):
        described["model"]["merges"] = [m for m in described["model"]["merges"] if "".join(m) != old]
        del described["model"]["vocab"][old]
        described["model"]["vocab"][new] = id
        described["added_tokens"].append({"id": id, "content": new, "special": True} | _FLAGS)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    async with running(application(model=str(folder))) as client:
        yield client, tuple(id for _, id in places)  # type: ignore[misc]


_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_LISTS = ("tokens", "token_logprobs", "top_logprobs")
