"""Wire structs of `/rerank`, `/predict`, `/embed_sparse` and `/embed_all` as text-embeddings-inference (TEI) has them.

Source: huggingface/text-embeddings-inference (1.9): router/src/http/types.rs. Its bodies name no model; `model` is
taken nevertheless, for servers of several.
"""

from __future__ import annotations

import msgspec
from msgspec import UnsetType


class InputsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests have in common. `truncate` cuts longer inputs to the context."""

    model: str | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None


class TextsRequest(InputsRequest, frozen=True, kw_only=True):
    """What the requests for scores have in common."""

    raw_scores: bool = False


class RankTexts(TextsRequest, frozen=True, kw_only=True):
    """Body of `/rerank`."""

    query: str | None = None
    texts: tuple[str, ...] | None = None
    return_text: bool = False


class RankedText(msgspec.Struct, frozen=True):
    """A text's place in the request, and its score. The answer is a list of them, the most relevant first."""

    index: int
    text: str | UnsetType
    score: float


class Predict(TextsRequest, frozen=True, kw_only=True):
    """Body of `/predict`: a text, a pair, or a list of texts and pairs, which are lists of one and two strings."""

    inputs: str | tuple[str | tuple[str, ...], ...] | None = None


class Prediction(msgspec.Struct, frozen=True):
    """A label and its score. Of each text or pair there is a list of them, the most probable first."""

    score: float
    label: str


class VectorsRequest(InputsRequest, frozen=True, kw_only=True):
    """Body of `/embed_sparse` and `/embed_all`; `inputs` is as `input` of `/v1/embeddings`.

    `prompt_name`: the prompt of the model that precedes each text.
    """

    inputs: str | tuple[str | int | tuple[int, ...], ...] | None = None
    prompt_name: str | None = None


class SparseValue(msgspec.Struct, frozen=True):
    """A component of a sparse vector that is not 0; `index` is a token's id. Of each text there is a list of them."""

    index: int
    value: float
