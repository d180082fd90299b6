"""Requests to rank, score and classify: their spellings, what is refused, and the answers' order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.openai.dialects import DIALECTS
from adapters.openai.pooling.scores import encode_scores, read_score
from adapters.openai.vectors import decode_vector
from schemas.errors import InvalidRequest, RequestError
from schemas.ir import TextPrompt, TokensPrompt, Usage
from schemas.origin import Origin, Relay
from schemas.scores import Score, Scores


def read(task: Any, operation: str = "", /, **fields: Any) -> Score:
    body = json.dumps({"model": "m"} | fields).encode()
    relay = Relay(id="r", model="m", origin=Origin("openai", "openai", operation or task, body), scoring=task)
    return read_score(DIALECTS["openai"], relay)


def written(request: Score, *values: tuple[float, ...], labels: tuple[str, ...] = ("LABEL_0",)) -> Any:
    return json.loads(encode_scores(request, Scores("m", values, Usage(1, 0), labels), 1).body)


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents")])
def test_pairs_have_three_spellings_and_one_text_meets_all_others(names: tuple[str, str]) -> None:
    assert read("score", **dict(zip(names, ("q", ["a", "b"]), strict=True))).pairs == (("q", "a"), ("q", "b"))
    assert read("score", **dict(zip(names, (["q", "r"], ["a", "b"]), strict=True))).pairs == (("q", "a"), ("r", "b"))


def test_documents_are_texts_or_objects_and_unknown_fields_are_named() -> None:
    ranked = read("rerank", query="q", documents=["a", {"text": "b"}], rank_fields=["text"])
    assert ranked.pairs == (("q", "a"), ("q", "b"))
    assert ranked.unknown == ("rank_fields",)
    assert read("classify", input=["a", "b"], softmax=False) == Score(
        id="r",
        model="m",
        task="classify",
        texts=(TextPrompt("a"), TextPrompt("b")),
        activation=False,
        origin=read("classify", input=["a", "b"], softmax=False).origin,
    )


@pytest.mark.parametrize(
    ("task", "fields", "param"),
    [
        ("rerank", {"documents": ["a"]}, "query"),
        ("rerank", {"query": "", "documents": ["a"]}, "query"),
        ("rerank", {"query": "q"}, "documents"),
        ("rerank", {"query": "q", "documents": []}, "documents"),
        ("rerank", {"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
        ("score", {"text_1": "q"}, "text_2"),
        ("score", {"text_1": ["q", "r"], "text_2": ["a"]}, "text_2"),
        ("classify", {}, "input"),
        ("classify", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_missing_or_wrong_is_named(task: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(task, **fields)
    assert caught.value.param == param


def test_the_most_relevant_document_comes_first() -> None:
    asked = read("rerank", query="q", documents=["a", "b", "c"], top_n=2, return_documents=False)
    found = json.loads(encode_scores(asked, Scores("m", ((0.1,), (0.9,), (0.9,)), Usage(7, 0)), 1).body)
    assert [(each["index"], each["relevance_score"]) for each in found["results"]] == [(1, 0.9), (2, 0.9)]
    assert "document" not in found["results"][0]
    classified = encode_scores(read("classify", input="a"), Scores("m", ((0.2, 0.8),), Usage(1, 0), ("no", "yes")), 1)
    assert json.loads(classified.body)["data"] == [{"index": 0, "label": "yes", "probs": [0.2, 0.8], "num_classes": 2}]


def test_texts_are_ranked_in_the_form_of_tei() -> None:
    asked = read("rerank", "rerank_texts", query="q", texts=["a", "b"], raw_scores=True, truncate=True, top_n=1)
    assert asked.pairs == (("q", "a"), ("q", "b"))
    assert (asked.activation, asked.truncate_prompt_tokens, asked.unknown) == (False, -1, ("top_n",))
    assert written(asked, (-1.0,), (2.0,)) == [{"index": 1, "score": 2.0}, {"index": 0, "score": -1.0}]
    with_texts = read("rerank", "rerank_texts", query="q", texts=["a", "b"], return_text=True)
    assert with_texts.truncate_prompt_tokens is None
    assert written(with_texts, (0.5,), (0.2,))[0] == {"index": 0, "text": "a", "score": 0.5}


def test_predictions_have_the_form_of_tei() -> None:
    labels = ("bad", "good")
    best = [{"score": 0.75, "label": "good"}, {"score": 0.25, "label": "bad"}]
    assert written(read("classify", "predict", inputs="a"), (0.25, 0.75), labels=labels) == best
    pair = read("classify", "predict", inputs=["a", "b"])
    assert pair.pairs == (("a", "b"),)
    assert written(pair, (0.25, 0.75), labels=labels) == best
    texts = read("classify", "predict", inputs=[["a"], ["b"]])
    assert texts.texts == (TextPrompt("a"), TextPrompt("b"))
    assert written(texts, (0.25, 0.75), (0.25, 0.75), labels=labels) == [best, best]
    assert read("classify", "predict", inputs=[["a", "b"], ["c", "d"]]).pairs == (("a", "b"), ("c", "d"))


def test_sparse_vectors_and_vectors_of_tokens_have_the_form_of_tei() -> None:
    asked = read("sparse", "embed_sparse", inputs=["a", "b"], prompt_name="query", truncate=True)
    assert (asked.texts, asked.instruction) == ((TextPrompt("a"), TextPrompt("b")), "query")
    assert asked.truncate_prompt_tokens == -1
    rows = Scores("m", (), Usage(1, 0), rows=(((3.0, 0.5), (7.0, 0.25)), ()))
    of_a = [{"index": 3, "value": 0.5}, {"index": 7, "value": 0.25}]
    assert json.loads(encode_scores(asked, rows, 1).body) == [of_a, []]
    assert read("tokens", "embed_all", inputs=[1, 2]).texts == (TokensPrompt((1, 2)),)
    assert json.loads(encode_scores(read("tokens", "embed_all", inputs="a"), rows, 1).body)[0] == [
        [3.0, 0.5],
        [7, 0.25],
    ]


def test_pooling_has_the_form_of_vllm() -> None:
    rows = Scores("m", (), Usage(2, 0), rows=(((1.0, 0.5), (0.0, 2.0)),))
    asked = read("tokens", input="a", use_activation=False)
    assert not asked.activation
    assert json.loads(encode_scores(asked, rows, 1).body) == {
        "id": "pool-r",
        "object": "list",
        "created": 1,
        "model": "m",
        "data": [{"index": 0, "object": "pooling", "data": [[1.0, 0.5], [0.0, 2.0]]}],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    in_base64 = json.loads(encode_scores(read("tokens", input="a", encoding_format="base64"), rows, 1).body)
    assert decode_vector(in_base64["data"][0]["data"]) == (1.0, 0.5, 0.0, 2.0)
    assert read("tokens", input="a").activation
    assert not read("tokens", input="a", normalize=False).activation
    many = ["a"] * 2049
    for fields, param in (({}, "input"), ({"input": "a", "task": "embed"}, "task"), ({"input": many}, "input")):
        with pytest.raises(RequestError) as caught:
            read("tokens", **fields)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("operation", "fields", "param"),
    [
        ("rerank_texts", {"texts": ["a"]}, "query"),
        ("rerank_texts", {"query": "q", "texts": []}, "texts"),
        ("rerank_texts", {"query": "q", "texts": ["a"], "truncation_direction": "Left"}, "truncation_direction"),
        ("embed_all", {}, "inputs"),
        ("embed_all", {"inputs": ["a"] * 2049}, "inputs"),
        ("predict", {}, "inputs"),
        ("predict", {"inputs": []}, "inputs"),
        ("predict", {"inputs": ["a", "b", "c"]}, "inputs"),
        ("predict", {"inputs": [["a"], ["b", "c"]]}, "inputs"),
        ("predict", {"inputs": [["a"], "b"]}, "inputs"),
    ],
)
def test_what_is_wrong_in_the_form_of_tei_is_named(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read("classify" if operation == "predict" else "rerank", operation, **fields)
    assert caught.value.param == param
