"""Bodies of `/v1/rerank`, `/v1/score`, `/classify` and `/pooling` for models here, and their answers; `tei` has those
of TEI.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adapters.base import Reply
from adapters.body import parse
from adapters.dialect import Bound
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import check_bound, empty, missing, refused, too_long
from adapters.openai.inbound.decode import read_fields, read_prompts
from adapters.openai.pooling import tei
from adapters.openai.pooling.embeddings import MAX_INPUTS
from adapters.openai.vectors import encode_vector
from adapters.unknown_fields import Unknown
from schemas.errors import UnsupportedFeature
from schemas.openai import scores as wire
from schemas.openai.answers import EmbeddingUsage
from schemas.origin import Relay, Scoring
from schemas.scores import Score, Scores

_TEI: dict[str, tuple[Callable[[Dialect, Relay, Any], Score], Callable[[Score, Scores], Reply]]] = {
    "rerank_texts": (tei.read_rank_texts, tei.write_rank_texts),
    "predict": (tei.read_predict, tei.write_predict),
    "embed_sparse": (tei.read_vectors, tei.write_sparse),
    "embed_all": (tei.read_vectors, tei.write_tokens),
}
"""Operations in the form of text-embeddings-inference."""
_TOP_N = Bound("top_n", 0)
_TRUNCATE = Bound("truncate_prompt_tokens", -1)


def read_score(dialect: Dialect, request: Relay) -> Score:
    """The request for scores that a relayed body is.

    Raises:
        schemas.errors.RequestError: a field is missing or wrong.
    """
    assert request.scoring is not None
    of_tei = _TEI.get(request.origin.operation)
    read = _READ[request.scoring] if of_tei is None else of_tei[0]
    return read(dialect, request, parse(request.origin.body))


def encode_scores(request: Score, answer: Scores, created: int) -> Reply:
    """The answer to a request of `read_score`; `created` is Unix time in seconds."""
    if (form := _TEI.get(request.origin.operation)) is not None:
        return form[1](request, answer)
    body = _WRITE[request.task](request, answer, created)
    return Reply(msgspec.json.encode(body))


# --- requests -----------------------------------------------------------------------------------------------------


def _read_rerank(dialect: Dialect, request: Relay, fields: Any) -> Score:
    given, extra = read_fields(dialect, fields, wire.RerankRequest)
    query = _given("query", given.query)
    check_bound(_TOP_N, given.top_n)
    documents = given.documents
    if documents is None:
        raise missing("documents")
    if not documents:
        raise empty("documents")
    pairs = tuple((query, _text(document)) for document in documents)
    return _score(request, given, extra, pairs=pairs, instruction=given.instruction)


def _read_score(dialect: Dialect, request: Relay, fields: Any) -> Score:
    given, extra = read_fields(dialect, fields, wire.ScoreRequest)
    names = ("text_1", "text_2")
    for other in (("data_1", "data_2"), ("queries", "documents")):
        if any(getattr(given, name) is not None for name in other):
            names = other
    ones, others = (_texts(name, getattr(given, name)) for name in names)
    if len(ones) == 1:
        ones *= len(others)
    if len(ones) != len(others):
        message = f"Invalid '{names[1]}': expected as many texts as '{names[0]}' has ({len(ones)}), got {len(others)}."
        raise refused(names[1], message)
    pairs = tuple(zip(ones, others, strict=True))
    return _score(request, given, extra, pairs=pairs, instruction=given.instruction)


def _read_classify(dialect: Dialect, request: Relay, fields: Any) -> Score:
    given, extra = read_fields(dialect, fields, wire.ClassifyRequest)
    if given.input is None:
        raise missing("input")
    return _score(request, given, extra, texts=read_prompts(given.input, "input"))


def _read_pooling(dialect: Dialect, request: Relay, fields: Any) -> Score:
    given, extra = read_fields(dialect, fields, wire.PoolingRequest)
    if given.input is None:
        raise missing("input")
    if given.task not in (None, "token_embed"):
        raise UnsupportedFeature(
            f"'task' {given.task} is not supported here: models here answer token_embed; embeddings are at "
            "/v1/embeddings, classes at /classify.",
            feature="task",
            param="task",
        )
    texts = read_prompts(given.input, "input")
    if len(texts) > MAX_INPUTS:
        raise too_long("input", MAX_INPUTS, len(texts))
    given = replace(given, use_activation=given.normalize if given.use_activation is None else given.use_activation)
    return _score(request, given, extra, texts=texts)


_READ: dict[Scoring, Callable[[Dialect, Relay, Any], Score]] = {
    "rerank": _read_rerank,
    "score": _read_score,
    "classify": _read_classify,
    "tokens": _read_pooling,
}


def _score(request: Relay, given: wire.ScoringRequest, extra: Unknown, **inputs: Any) -> Score:
    assert request.scoring is not None
    check_bound(_TRUNCATE, given.truncate_prompt_tokens)
    if given.truncate_prompt_tokens == 0:
        raise refused("truncate_prompt_tokens", "Invalid 'truncate_prompt_tokens': no tokens would be left.")
    chosen = (given.use_activation, given.activation, given.softmax)
    return Score(
        id=request.id,
        model=request.model,
        task=request.scoring,
        truncate_prompt_tokens=given.truncate_prompt_tokens,
        activation=next((each for each in chosen if each is not None), True),
        unknown=extra.paths,
        origin=request.origin,
        **inputs,
    )


def _given(name: str, text: str | None) -> str:
    if text is None:
        raise missing(name)
    if not text:
        raise refused(name, f"Invalid '{name}': {name} cannot be an empty string.")
    return text


def _texts(name: str, given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if given is None:
        raise missing(name)
    if not given:
        raise empty(name) if isinstance(given, tuple) else refused(name, f"Invalid '{name}': it is an empty string.")
    return (given,) if isinstance(given, str) else given


def _text(document: str | wire.Document) -> str:
    return document if isinstance(document, str) else document.text


# --- answers ------------------------------------------------------------------------------------------------------


def _rerank_answer(request: Score, answer: Scores, created: int) -> wire.RerankAnswer:  # noqa: ARG001 - has no time
    asked = msgspec.json.decode(request.origin.body, type=wire.RerankRequest)
    values = [value for (value,) in answer.values]
    # The sort is stable: of equal scores the earlier document comes first.
    order = sorted(range(len(values)), key=lambda index: -values[index])[: asked.top_n or None]
    # Jina's default and vLLM's only form; Cohere's clients ignore it.
    shown = asked.return_documents is not False
    results = tuple(
        wire.RerankResult(index, wire.Document(request.pairs[index][1]) if shown else UNSET, values[index])
        for index in order
    )
    return wire.RerankAnswer(f"rerank-{request.id}", answer.model, _usage(answer), results)


def _score_answer(request: Score, answer: Scores, created: int) -> wire.ScoreAnswer:
    data = tuple(wire.PairScore(index, value) for index, (value,) in enumerate(answer.values))
    return wire.ScoreAnswer(
        id=f"score-{request.id}", created=created, model=answer.model, data=data, usage=_usage(answer)
    )


def _classify_answer(request: Score, answer: Scores, created: int) -> wire.ClassifyAnswer:
    labels = answer.labels
    data = tuple(
        wire.Classified(index, labels[max(range(len(row)), key=row.__getitem__)], row, len(row))
        for index, row in enumerate(answer.values)
    )
    return wire.ClassifyAnswer(
        id=f"classify-{request.id}", created=created, model=answer.model, data=data, usage=_usage(answer)
    )


def _pooling_answer(request: Score, answer: Scores, created: int) -> wire.PoolingAnswer:
    asked = msgspec.json.decode(request.origin.body, type=wire.PoolingRequest)
    in_base64 = asked.encoding_format == "base64"
    data = tuple(
        wire.Pooled(index, encode_vector(tuple(chain.from_iterable(rows))) if in_base64 else rows)
        for index, rows in enumerate(answer.rows)
    )
    return wire.PoolingAnswer(
        id=f"pool-{request.id}", created=created, model=answer.model, data=data, usage=_usage(answer)
    )


_WRITE: dict[Scoring, Callable[[Score, Scores, int], msgspec.Struct]] = {
    "rerank": _rerank_answer,
    "score": _score_answer,
    "classify": _classify_answer,
    "tokens": _pooling_answer,
}


def _usage(answer: Scores) -> EmbeddingUsage:
    return EmbeddingUsage(answer.usage.prompt_tokens, answer.usage.total_tokens)
