"""Bodies of `/rerank`, `/predict`, `/embed_sparse` and `/embed_all` as text-embeddings-inference (TEI) has them, and
their answers.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from adapters.base import Reply
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import empty, missing, refused, too_long
from adapters.openai.inbound.decode import read_fields, read_prompts
from adapters.openai.pooling.embeddings import MAX_INPUTS
from adapters.unknown_fields import Unknown
from schemas.errors import UnsupportedFeature
from schemas.ir import TextPrompt
from schemas.openai import tei as wire
from schemas.origin import Relay
from schemas.scores import Score, Scores


def read_rank_texts(dialect: Dialect, request: Relay, fields: Any) -> Score:
    """The request of a body of `/rerank` with `texts`."""
    given, extra = read_fields(dialect, fields, wire.RankTexts)
    if not given.query:
        raise missing("query")
    if not given.texts:
        raise missing("texts") if given.texts is None else empty("texts")
    pairs = tuple((given.query, text) for text in given.texts)
    return _score(request, given, extra, pairs=pairs, activation=not given.raw_scores)


def read_predict(dialect: Dialect, request: Relay, fields: Any) -> Score:
    """The request of a body of `/predict`."""
    given, extra = read_fields(dialect, fields, wire.Predict)
    if given.inputs is None:
        raise missing("inputs")
    rows, _ = _rows(given.inputs)
    pairs = tuple((row[0], row[1]) for row in rows if len(row) == 2)
    texts = tuple(TextPrompt(row[0]) for row in rows if len(row) == 1)
    if len(pairs) + len(texts) < len(rows) or not rows:
        raise refused("inputs", "Invalid 'inputs': expected a text, a pair of texts, or a list of lists of them.")
    if pairs and texts:
        raise refused("inputs", "Invalid 'inputs': texts and pairs of texts cannot be mixed.")
    return _score(request, given, extra, pairs=pairs, texts=texts, activation=not given.raw_scores)


def read_vectors(dialect: Dialect, request: Relay, fields: Any) -> Score:
    """The request of a body of `/embed_sparse` or `/embed_all`."""
    given, extra = read_fields(dialect, fields, wire.VectorsRequest)
    if given.inputs is None:
        raise missing("inputs")
    texts = read_prompts(given.inputs, "inputs")
    if len(texts) > MAX_INPUTS:
        raise too_long("inputs", MAX_INPUTS, len(texts))
    return _score(request, given, extra, texts=texts, instruction=given.prompt_name, activation=False)


def write_rank_texts(request: Score, answer: Scores) -> Reply:
    """The answer to a request of `read_rank_texts`."""
    asked = msgspec.json.decode(request.origin.body, type=wire.RankTexts)
    # The sort is stable: of equal scores the earlier text comes first.
    ranked = sorted(((value, index) for index, (value,) in enumerate(answer.values)), key=lambda each: -each[0])
    texts = [text for _, text in request.pairs]
    return _reply([wire.RankedText(at, texts[at] if asked.return_text else UNSET, value) for value, at in ranked])


def write_predict(request: Score, answer: Scores) -> Reply:
    """The answer to a request of `read_predict`."""
    asked = msgspec.json.decode(request.origin.body, type=wire.Predict)
    every = [sorted(map(wire.Prediction, row, answer.labels), key=lambda each: -each.score) for row in answer.values]
    assert asked.inputs is not None
    _, single = _rows(asked.inputs)
    return _reply(every[0] if single else every)


def write_sparse(_: Score, answer: Scores) -> Reply:
    """The answer of `/embed_sparse`."""
    return _reply([[wire.SparseValue(int(index), value) for index, value in rows] for rows in answer.rows])


def write_tokens(_: Score, answer: Scores) -> Reply:
    """The answer of `/embed_all`."""
    return _reply(answer.rows)


def _rows(inputs: str | tuple[str | tuple[str, ...], ...]) -> tuple[list[tuple[str, ...]], bool]:
    """The texts (1 string) and pairs (2) of `inputs`, and whether it is a single one of them and no list."""
    if isinstance(inputs, str):
        return [(inputs,)], True
    strings = tuple(each for each in inputs if isinstance(each, str))
    if len(strings) == len(inputs):
        return [strings], True
    # A string among lists is no row: it makes the count differ, and the request is refused.
    return [() if isinstance(each, str) else each for each in inputs], False


def _score(request: Relay, given: wire.InputsRequest, extra: Unknown, **inputs: Any) -> Score:
    assert request.scoring is not None
    if (given.truncation_direction or "right").lower() != "right":
        raise UnsupportedFeature(
            f"'truncation_direction' {given.truncation_direction} is not supported: inputs are cut at the right.",
            feature="truncation_direction",
            param="truncation_direction",
        )
    return Score(
        id=request.id,
        model=request.model,
        task=request.scoring,
        truncate_prompt_tokens=-1 if given.truncate else None,
        unknown=extra.paths,
        origin=request.origin,
        **inputs,
    )


def _reply(answer: Any) -> Reply:
    return Reply(msgspec.json.encode(answer))
