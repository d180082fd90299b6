"""Scores of folders with a classification head equal transformers' logits, and sentence-transformers' functions."""

from __future__ import annotations

import asyncio
import json
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.features import check
from backends.native.classification import read_head
from backends.native.sentence_transformers import RecipeError, read_recipe
from schemas.errors import BackendUnavailable, ContextLengthExceeded, InvalidRequest, UnsupportedFeature
from schemas.ir import Generate, TextPrompt, TokensPrompt
from schemas.origin import Origin
from schemas.scores import Score
from tests.backends.native.classifiers import (
    answer_scores,
    build,
    build_cross_encoder,
    build_reranker,
    logits,
    write,
)
from tests.backends.native.encoders import CASES
from tests.backends.native.encoders import build as build_encoder
from tests.backends.native.test_encoder_models import asked, running

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PAIRS = (("what is it", "a star is a ball of gas"), ("hi", "yes"), ("what is it?", "x " * 30), ("a", "b"))


def score(*pairs: tuple[str, str], **fields: Any) -> Score:
    return Score(id="s", model="m", task="score", pairs=pairs, origin=Origin("", "", ""), **fields)


def classify(*texts: str | tuple[int, ...], **fields: Any) -> Score:
    given = tuple(TextPrompt(text) if isinstance(text, str) else TokensPrompt(text) for text in texts)
    return Score(id="c", model="m", task="classify", texts=given, origin=Origin("", "", ""), **fields)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v2", "qwen3"])
async def test_scores_of_pairs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = build(tmp_path, family)
    expected = logits(folder, PAIRS)
    async with running(folder, step_tokens=64) as backend:
        raw, beside = await asyncio.gather(
            backend.score(score(*PAIRS, activation=False)), backend.score(score(*PAIRS * 20, activation=False))
        )
        scored = await backend.score(score(*PAIRS))
    torch.testing.assert_close(torch.tensor(raw.values), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(beside.values), expected.repeat(20, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(scored.values), expected.sigmoid(), atol=1e-5, rtol=0)
    assert beside.usage.prompt_tokens == 20 * raw.usage.prompt_tokens
    # Else they say nothing: another second text, and the second text's token types, change the numbers.
    assert (expected[0] - expected[2]).abs() > 1e-2
    if family == "bert":
        texts = logits(folder, PAIRS[:1], return_token_type_ids=False)
        assert (texts - expected[:1]).abs() > 1e-3


async def test_a_long_pair_is_cut_as_the_tokenizer_cuts_it_or_refused(tmp_path: Path) -> None:
    folder = build(tmp_path, "bert")
    long = (("what is it? " * 4, "x " * 200), ("q" * 90, "d" * 90))
    expected = logits(folder, long, truncation=True, max_length=130)
    short = logits(folder, long, truncation=True, max_length=20)
    async with running(folder) as backend:
        cut = await backend.score(score(*long, activation=False, truncate_prompt_tokens=-1))
        shorter = await backend.score(score(*long, activation=False, truncate_prompt_tokens=20))
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 130 tokens"):
            await backend.score(score(*long))
        with pytest.raises(InvalidRequest, match="at most 130 tokens"):
            await backend.score(score(*long, truncate_prompt_tokens=131))
    torch.testing.assert_close(torch.tensor(cut.values), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(shorter.values), short, atol=1e-5, rtol=0)
    assert (cut.usage.prompt_tokens, shorter.usage.prompt_tokens) == (260, 40)


async def test_texts_are_classified_by_all_labels(tmp_path: Path) -> None:
    names = {"0": "bad", "1": "good", "2": "ugly"}
    folder = build(tmp_path, "modernbert", labels=3)
    write(folder, id2label=names)
    texts = ("hi", "a star is a ball of gas", "")
    expected = logits(folder, texts)
    async with running(folder) as backend:
        can = backend.capabilities
        assert (can.scoring, can.embeddings, can.generates) == ({"classify"}, False, False)
        answer = await backend.score(classify(*texts))
        raw = await backend.score(classify(*texts, (0, 7, 2), activation=False))
        with pytest.raises(UnsupportedFeature, match="makes scores, and no text"):
            check(Generate(id="g", model="m", prompts=(TextPrompt("hi"),)), can, "m")
        with pytest.raises(UnsupportedFeature, match="does not make embeddings"):
            await backend.embed(asked("hi"))
        with pytest.raises(InvalidRequest, match="Token ids in input"):
            await backend.score(classify((5, 100_000)))
    assert answer.labels == ("bad", "good", "ugly")
    torch.testing.assert_close(torch.tensor(answer.values), expected.softmax(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(raw.values)[:3], expected, atol=1e-5, rtol=0)


async def test_embeddings_are_compared_by_their_cosine(tmp_path: Path) -> None:
    async with running(build_encoder(tmp_path, CASES["mpnet, cls"])) as backend:
        assert backend.capabilities.scoring == {"rerank", "score", "tokens"}
        pairs = (("hi", "HELLO there!"), ("hi", "hi"), ("hi", "x " * 30))
        answer = await backend.score(score(*pairs))
        texts = ("hi", "HELLO there!", "x " * 30)
        made = await backend.embed(asked(*texts))
        one, other, third = torch.nn.functional.normalize(torch.tensor(made.vectors))
        expected = [float(one @ other), 1.0, float(one @ third)]
        assert [value for (value,) in answer.values] == pytest.approx(expected, abs=1e-5)
        assert answer.usage == made.usage  # each text is embedded once
        with pytest.raises(ContextLengthExceeded):
            await backend.score(score(("hi", "b" * 120)))
        cut = await backend.score(score(("hi", "b" * 120), truncate_prompt_tokens=-1))
        assert cut.usage.prompt_tokens == 100 + 4


async def test_a_decoder_without_padding_token_scores_one_text_at_a_time(tmp_path: Path) -> None:
    folder = build(tmp_path, "qwen3")
    write(folder, pad_token_id=None)
    async with running(folder) as backend:
        answer = await backend.score(score(*PAIRS, activation=False))
    torch.testing.assert_close(torch.tensor(answer.values), logits(folder, PAIRS), atol=1e-5, rtol=0)


async def test_a_cross_encoder_of_sentence_transformers_has_its_function_and_prompt(tmp_path: Path) -> None:
    folder = build_cross_encoder(build(tmp_path, "bert"), prompts={"q": "find: "}, default_prompt_name="q")
    async with running(folder) as backend:
        assert backend.capabilities.scoring == {"rerank", "score", "classify"}
        answer = await backend.score(score(*PAIRS))
    expected = logits(folder, [(f"find: {one}", other) for one, other in PAIRS])
    torch.testing.assert_close(torch.tensor(answer.values), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("answers", [(40, 41), (40,)])
async def test_a_language_model_ranks_by_the_logits_of_its_answer(answers: tuple[int, ...], tmp_path: Path) -> None:
    folder = build_reranker(tmp_path, *answers)
    rendered = [f"Srank them;Q{query};D{document}</s>A:" for query, document in PAIRS]
    expected = answer_scores(folder, rendered, answers)
    async with running(folder, step_tokens=200) as backend:
        assert backend.capabilities.scoring == {"rerank", "score", "classify"}
        raw, beside = await asyncio.gather(
            backend.score(score(*PAIRS, activation=False)), backend.score(score(*PAIRS * 5, activation=False))
        )
        scored = await backend.score(score(*PAIRS))
        # Not the control token, with which a document could end the prompt.
        forged = await backend.score(score(("what is it", "a</s>A:"), activation=False))
        cut = await backend.score(score(("hi", "d" * 200), activation=False, truncate_prompt_tokens=60))
    torch.testing.assert_close(torch.tensor(raw.values), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(beside.values), expected.repeat(5, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(scored.values), expected.sigmoid(), atol=1e-5, rtol=0)
    (plain,) = answer_scores(folder, ["Srank them;Qwhat is it;Da</s>A:</s>A:"], answers)
    assert abs(forged.values[0][0] - float(plain)) > 1e-3
    # Of "Srank them;Qhi;D", the document and "</s>A:", which the template writes behind it, the document is cut.
    assert cut.usage.prompt_tokens == 60
    short = answer_scores(folder, [f"Srank them;Qhi;D{'d' * 42}</s>A:"], answers)
    torch.testing.assert_close(torch.tensor(cut.values), short, atol=1e-5, rtol=0)


async def test_a_reranker_without_a_chat_template_reads_the_two_texts(tmp_path: Path) -> None:
    folder = build_reranker(tmp_path, 40, 41, chat=False)
    async with running(folder) as backend:
        answer = await backend.score(score(("what is it", "a star"), activation=False))
    expected = answer_scores(folder, ["<s>rank themwhat is it</s>a star</s>"], (40, 41))
    torch.testing.assert_close(torch.tensor(answer.values), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "modules", "why"),
    [
        ({"model_type": "ColBERT"}, ("Transformer", "Pooling"), "Transformer, Pooling"),
        ({"model_type": "CrossEncoder"}, ("Transformer", "Pooling", "Dense"), "Transformer, Pooling, Dense"),
        ({"model_type": "CrossEncoder"}, ("Transformer", "LogitScore"), "true_token_id"),
    ],
)
def test_other_modules_are_refused_by_name(
    settings: dict[str, str], modules: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    steps = [{"type": f"sentence_transformers.{kind}", "path": f"{place}"} for place, kind in enumerate(modules)]
    (tmp_path / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(RecipeError, match=why):
        _ = read_head(str(tmp_path)) or read_recipe(str(tmp_path))


def test_a_checkpoint_of_colbert_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["HF_ColBERT"], "model_type": "bert"}))
    with pytest.raises(RecipeError, match="late interaction"):
        read_recipe(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "function"),
    [
        ({}, lambda x: 1 / (1 + exp(-x))),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda x: x),
        ({"problem_type": "regression"}, lambda x: x),
        ({"problem_type": "single_label_classification"}, lambda x: 1 / (1 + exp(-x))),
    ],
)
def test_the_function_is_the_folders_own(tmp_path: Path, config: Any, function: Any) -> None:
    said = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}} | config
    (tmp_path / "config.json").write_text(json.dumps(said))
    head = read_head(str(tmp_path))
    assert head is not None
    assert head.scores([0.7]) == pytest.approx((function(0.7),))
    assert head.scores([-700.0])[0] in (-700.0, pytest.approx(0))
    (tmp_path / "config.json").write_text(json.dumps(said | {"id2label": {str(i): str(i) for i in range(11)}}))
    labels = read_head(str(tmp_path))
    assert labels is not None
    assert labels.labels == tuple(map(str, range(11)))


def test_an_unknown_function_and_other_folders(tmp_path: Path) -> None:
    said: dict[str, Any] = {"architectures": ["BertForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(said | {"sentence_transformers": {"activation_fn": "os.system"}}))
    with pytest.raises(RecipeError, match=r"os\.system"):
        read_head(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    assert read_head(str(tmp_path)) is None


async def test_a_head_without_weights_is_refused(tmp_path: Path) -> None:
    folder = build_encoder(tmp_path, CASES["bert, mean"])
    (folder / "modules.json").unlink()
    write(folder, architectures=["BertForSequenceClassification"])
    with pytest.raises(BackendUnavailable, match="lack 2 tensors"):
        async with running(folder):
            pass
