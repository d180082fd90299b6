"""Sparse vectors equal those of sentence-transformers for the same folders, vectors of tokens transformers' own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModel, AutoTokenizer

from backends.native.sentence_transformers import RecipeError, read_recipe
from schemas.errors import ContextLengthExceeded, InvalidRequest, UnsupportedFeature
from schemas.ir import TextPrompt, TokensPrompt
from schemas.origin import Origin
from schemas.scores import Score, Scores
from tests.backends.native.encoders import CASES, GOLDEN_LATE, GOLDEN_SPARSE, LATE, SPARSE, TEXTS, build
from tests.backends.native.test_encoder_models import asked as embedding_of
from tests.backends.native.test_encoder_models import running

pytestmark = pytest.mark.torch


def asked(task: Any, *texts: str | tuple[int, ...], **fields: Any) -> Score:
    inputs = tuple(TextPrompt(text) if isinstance(text, str) else TokensPrompt(text) for text in texts)
    return Score(id="s", model="m", task=task, texts=inputs, origin=Origin("openai", "openai", task), **fields)


@pytest.mark.parametrize("name", SPARSE)
async def test_sparse_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    golden, case = json.loads(GOLDEN_SPARSE.read_text())[name], SPARSE[name]
    async with running(build(tmp_path, case), step_tokens=200) as backend:
        assert backend.capabilities.scoring == {"sparse"}
        assert not backend.capabilities.embeddings
        together = await backend.score(asked("sparse", *TEXTS, instruction=case.instruction))
        alone = [await backend.score(asked("sparse", text, instruction=case.instruction)) for text in TEXTS]
    for rows, one, expected in zip(together.rows, alone, golden, strict=True):
        for found in (rows, one.rows[0]):
            assert [index for index, _ in found] == [index for index, _ in expected]
            assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-5, abs=1e-5)
    assert together.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert all(0 < len(rows) < 193 for rows in together.rows)


async def test_vectors_of_tokens_are_the_hidden_states(tmp_path: Path) -> None:
    folder = build(tmp_path, CASES["xlm-roberta, prompts"])
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    async with running(folder) as backend:
        raw = await backend.score(asked("tokens", *TEXTS, instruction="query", activation=False))
        short = await backend.score(asked("tokens", (0, 30, 2), truncate_prompt_tokens=-1))
        with pytest.raises(InvalidRequest, match=r"no prompt 'other' \(it has: passage, query\)"):
            await backend.score(asked("tokens", "a", instruction="other"))
        with pytest.raises(ContextLengthExceeded):
            await backend.score(asked("tokens", "a" * 200))
        with pytest.raises(InvalidRequest, match="have 360000 tokens"):
            await backend.score(asked("tokens", *[(0,) * 90] * 4000))
        cut = await backend.score(asked("tokens", "a" * 200, truncate_prompt_tokens=-1))
    for text, rows in zip(TEXTS, raw.rows, strict=True):
        _equal(rows, _states(model, tokenizer(f"query: {text}")["input_ids"]))
    _equal(short.rows[0], torch.nn.functional.normalize(_states(model, [0, 30, 2]), dim=-1))
    assert cut.usage.prompt_tokens == len(cut.rows[0]) == 100


def _states(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0]


def _equal(rows: tuple[tuple[float, ...], ...], expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(rows), expected, atol=1e-5, rtol=0)


async def test_an_embedding_beside_vectors_of_tokens_is_its_own(tmp_path: Path) -> None:
    """Both are in one batch of the engine."""
    async with running(build(tmp_path, CASES["bert, dense"])) as backend:
        alone = await backend.embed(embedding_of("hi"))
        rows, beside = await asyncio.gather(backend.score(asked("tokens", "ho")), backend.embed(embedding_of("hi")))
    assert isinstance(rows, Scores)
    assert beside.vectors[0] == pytest.approx(alone.vectors[0], abs=1e-6)


@pytest.mark.parametrize(
    ("kinds", "settings", "why"),
    [
        (("Transformer", "SpladePooling"), {}, "unsupported modules: Transformer, SpladePooling"),
        (("Router", "SpladePooling"), {}, "unsupported modules: Router"),
        (("MLMTransformer", "SpladePooling", "Normalize"), {}, "unsupported modules"),
        (("MLMTransformer", "SpladePooling"), {"pooling_strategy": "mean"}, "the pooling 'mean' of 'relu'"),
    ],
)
def test_other_sparse_models_are_refused_by_name(
    kinds: tuple[str, ...], settings: dict[str, str], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    steps = [{"type": f"sentence_transformers.{kind}", "path": f"{place}"} for place, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(steps))
    (tmp_path / "1").mkdir()
    (tmp_path / "1/config.json").write_text(json.dumps(settings))
    with pytest.raises(RecipeError, match=why):
        read_recipe(str(tmp_path))


@pytest.mark.parametrize("name", LATE)
async def test_vectors_of_late_interaction_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    """Queries are cut at their fixed length; what fills them up is seen or not, and punctuation has no vector."""
    golden, texts = json.loads(GOLDEN_LATE.read_text())[name], TEXTS[:2]
    async with running(build(tmp_path, LATE[name]), step_tokens=200) as backend:
        assert backend.capabilities.scoring == {"rerank", "score", "tokens"}
        assert not backend.capabilities.embeddings
        cut = {"truncate_prompt_tokens": -1}
        queries = await backend.score(asked("tokens", *texts, instruction="query", **cut))
        documents = await backend.score(asked("tokens", *texts, **cut))
        named = await backend.score(asked("tokens", texts[1], instruction="document"))
        pairs = tuple((query, document) for query in texts for document in texts)
        scores = await backend.score(replace(asked("rerank", **cut), pairs=pairs))
        with pytest.raises(UnsupportedFeature, match="takes no instruction"):
            await backend.score(replace(asked("score", instruction="query"), pairs=pairs))
        with pytest.raises(InvalidRequest, match="no prompt 'other': it has query and document"):
            await backend.score(asked("tokens", "a", instruction="other"))
        if name == "bert, fixed":
            with pytest.raises(ContextLengthExceeded, match="20 tokens"):
                await backend.score(asked("tokens", TEXTS[0], instruction="query"))
    for rows, expected in zip((*queries.rows, *documents.rows, *named.rows), [*golden, golden[-1]], strict=True):
        _equal(rows, torch.tensor(expected))
    vectors = [torch.tensor(each) for each in golden]
    similar = [[(query @ document.T).amax(1).sum().item()] for query in vectors[:2] for document in vectors[2:]]
    # The golden numbers have six decimals.
    torch.testing.assert_close(torch.tensor(scores.values), torch.tensor(similar), atol=2e-5, rtol=1e-5)
    assert scores.usage.prompt_tokens == queries.usage.prompt_tokens + documents.usage.prompt_tokens


@pytest.mark.parametrize(
    ("kinds", "mask", "limits", "why"),
    [
        (("Transformer", "Dense", "HierarchicalPooling"), {}, {}, "unsupported modules"),
        (("Transformer", "Normalize", "MultiVectorMask"), {}, {}, "unsupported modules"),
        (("Transformer", "MultiVectorMask"), {"keep_only_token_ids": [1]}, {}, "some tokens only"),
        (("Transformer", "MultiVectorMask"), {}, {"query_expansion": {"strategy": "max"}}, "by 'max'"),
    ],
)
def test_other_models_of_late_interaction_are_refused_by_name(
    kinds: tuple[str, ...], mask: dict[str, Any], limits: dict[str, Any], why: str, tmp_path: Path
) -> None:
    files = {
        "config_sentence_transformers.json": {"model_type": "MultiVectorEncoder"},
        "sentence_bert_config.json": limits,
        "modules.json": [{"type": f"x.{kind}", "path": str(at) if at else ""} for at, kind in enumerate(kinds)],
        "1/config.json": mask,
    }
    (tmp_path / "1").mkdir()
    for name, said in files.items():
        (tmp_path / name).write_text(json.dumps(said))
    with pytest.raises(RecipeError, match=why):
        read_recipe(str(tmp_path))
