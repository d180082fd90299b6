"""Paired comparison of real models: the bundled one, a copy of it, and a tiny random one with the same tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from gateway.app import create_app
from gateway.config import Config, Endpoint, Paired, ServedEntity
from tests.gateway.experiments.pairs.reports import likelihoods, pairs_report
from tests.gateway.serving import running

pytestmark = pytest.mark.torch

NEW = 12
QUESTIONS = ("What is the capital of France?", "Tell me a story.", "Hello!")


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with random weights, wide enough that its answers depend on the prompt."""
    folder = str(tmp_path_factory.mktemp("random"))
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ends))
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder


@asynccontextmanager
async def compared(arm: str) -> AsyncIterator[httpx.AsyncClient]:
    """Pair the bundled model with this one."""
    options = {"engine": "inprocess", "threads": 1, "dtype": "float32"}
    backends = {"control": NativeBackend("control", options), "arm": NativeBackend("arm", options | {"model": arm})}
    paired = Paired(share=1.0, max_concurrent_requests=8)
    arms = (
        ServedEntity(name="control", backend="control"),
        ServedEntity(name="arm", backend="arm", traffic_percentage=0, paired=paired),
    )
    config = Config(
        backends={name: {"kind": "native"} for name in backends}, endpoints={"chat": Endpoint(served_entities=arms)}
    )
    app = create_app(config, backends)
    async with running(app) as client:
        while not all(map(app.state.service.backend_health.is_well, backends)):  # noqa: ASYNC110 - a poll is what health is for
            await asyncio.sleep(0.05)
        yield client


async def ask(client: httpx.AsyncClient, question: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "chat", "messages": [{"role": "user", "content": question}], "max_tokens": NEW} | fields
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_copy_of_the_model_always_agrees() -> None:
    async with compared(str(WEIGHTS)) as client:
        for number, question in enumerate(QUESTIONS * 2, 1):
            await ask(client, question, temperature=1.0)
            found = await pairs_report(client, number)
    assert (found["pairs"], found["first_divergence"]) == (6, {"never": 6})
    assert (found["top_token_agreement"]["mean"], found["top_token_agreement"]["high"]) == (1.0, 1.0)
    assert (found["verdict"]["word"], found["examples"]) == ("keep collecting", [])
    for answers_of, by_control, by_arm, difference in likelihoods(found):
        assert answers_of in ("control", "arm")
        assert by_arm == pytest.approx(by_control, abs=1e-5)
        assert difference == pytest.approx(0.0, abs=1e-5)


async def test_another_model_is_scored_as_transformers_scores_it(random_model: str) -> None:
    async with compared(random_model) as client:
        for number, question in enumerate(QUESTIONS, 1):
            await ask(client, question, temperature=0)
            found = await pairs_report(client, number)
    assert (found["pairs"], found["identical"]["mean"]) == (3, 0.0)
    expected, top = by_transformers(Path(random_model))
    assert found["top_token_agreement"]["mean"] == pytest.approx(top, abs=1e-9)
    for name, by_control, by_arm, difference in likelihoods(found):
        assert (by_control, by_arm) == pytest.approx(expected[name], abs=2e-4)
        assert difference == pytest.approx(by_arm - by_control)
    assert likelihoods(found)[0][3] < -1.0 < 1.0 < likelihoods(found)[1][3]  # each likes its own


def by_transformers(random_model: Path) -> tuple[dict[str, tuple[float, float]], float]:
    """Mean log-likelihoods of each model's greedy answers, under each of the two models, and at how many positions of
    the control's answers both find the same token most likely.
    """
    models = (
        AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32).eval(),
        AutoModelForCausalLM.from_pretrained(random_model, local_files_only=True, dtype=torch.float32).eval(),
    )
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    found, tops = torch.zeros(2, 2, dtype=torch.float64), []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
        prompt = given["input_ids"].shape[1]
        for answering, model in enumerate(models):
            with torch.inference_mode():
                ids = model.generate(**given, max_new_tokens=NEW, do_sample=False)
                best = [judge(input_ids=ids).logits[0, prompt - 1 : -1].argmax(-1) for judge in models]
                tops += [(best[0] == best[1]).double().mean().item()] if answering == 0 else []
                for scoring, judge in enumerate(models):
                    logprobs = judge(input_ids=ids).logits[0, prompt - 1 : -1].log_softmax(-1)
                    found[answering, scoring] += logprobs.gather(1, ids[0, prompt:, None]).mean() / len(QUESTIONS)
    return {name: tuple(row) for name, row in zip(("control", "arm"), found.tolist(), strict=True)}, sum(tops) / len(
        tops
    )
