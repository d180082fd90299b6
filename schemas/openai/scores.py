"""Wire structs of `/v1/rerank`, `/v1/score`, `/classify` and `/pooling`, which stand beside the OpenAI API of such
servers.

Sources: vllm-project/vllm:vllm/entrypoints/pooling (0.33) and Jina's and Cohere's references of `rerank`. Every field
of a request may be absent, so that a missing one is refused in a sentence of its own.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UnsetType

from schemas.openai.answers import EmbeddingUsage


class ScoringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests have in common. `activation` and `softmax` are former names of `use_activation`."""

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None
    user: str | None = None


class Document(msgspec.Struct, frozen=True):
    """A document to rank, or a ranked one."""

    text: str


class RerankRequest(ScoringRequest, frozen=True, kw_only=True):
    """Body of `/v1/rerank`."""

    query: str | None = None
    documents: tuple[str | Document, ...] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None


class RerankResult(msgspec.Struct, frozen=True):
    """A document's place in the request, and its score."""

    index: int
    document: Document | UnsetType
    relevance_score: float


class RerankAnswer(msgspec.Struct, frozen=True):
    """Answer of `/v1/rerank`: the documents, the most relevant first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: tuple[RerankResult, ...]


class ScoreRequest(ScoringRequest, frozen=True, kw_only=True):
    """Body of `/v1/score`. `text_1` and `text_2` have other names: `data_1`, `data_2`; `queries`, `documents`."""

    text_1: str | tuple[str, ...] | None = None
    text_2: str | tuple[str, ...] | None = None
    data_1: str | tuple[str, ...] | None = None
    data_2: str | tuple[str, ...] | None = None
    queries: str | tuple[str, ...] | None = None
    documents: str | tuple[str, ...] | None = None
    instruction: str | None = None


class PairScore(msgspec.Struct, frozen=True):
    """The score of a pair."""

    index: int
    score: float
    object: str = "score"


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/score`."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: tuple[PairScore, ...]
    usage: EmbeddingUsage


class ClassifyRequest(ScoringRequest, frozen=True, kw_only=True):
    """Body of `/classify`; `input` is as in `/v1/embeddings`."""

    input: str | tuple[str | int | tuple[int, ...], ...] | None = None


class Classified(msgspec.Struct, frozen=True):
    """The most probable label of a text, and the probabilities of all."""

    index: int
    label: str
    probs: tuple[float, ...]
    num_classes: int


class ClassifyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/classify`."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: tuple[Classified, ...]
    usage: EmbeddingUsage


class PoolingRequest(ClassifyRequest, frozen=True, kw_only=True):
    """Body of `/pooling`: a vector of each token. `normalize` is a former name of `use_activation`."""

    task: str | None = None
    normalize: bool | None = None
    encoding_format: Literal["float", "base64"] | None = None


class Pooled(msgspec.Struct, frozen=True):
    """The vectors of a text's tokens, or the base64 of their numbers, one vector after the other."""

    index: int
    data: tuple[tuple[float, ...], ...] | str
    object: str = "pooling"


class PoolingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/pooling`."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: tuple[Pooled, ...]
    usage: EmbeddingUsage
