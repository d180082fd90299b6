"""The models, in the API's words."""

from __future__ import annotations

import re

import msgspec

from adapters.base import Call, Reply
from schemas import gemini as wire
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest, ModelNotFound

_MAX_PAGE = 1000
_GENERATING = ("generateContent", "streamGenerateContent", "countTokens")
_METHODS = {"embeddings": ("embedContent", "batchEmbedContents", "countTokens"), "rerank": (), "classify": ()}
"""What a model can be asked for, by its task; clients choose by it. The API has no method that scores texts."""


def list_models(call: Call) -> Reply:
    """The answer of `GET /v1beta/models`: one page; the token of the next one is the place of its first model.

    Raises:
        schemas.errors.InvalidRequest: `pageSize` or `pageToken` is no number.
    """
    models = [_model(name, card) for name, card in call.catalog.models()]
    size = min(_number(call, "pageSize") or _MAX_PAGE, _MAX_PAGE)
    first = _number(call, "pageToken")
    last = first + size
    return Reply(
        msgspec.json.encode(wire.ModelList(tuple(models[first:last]), str(last) if last < len(models) else ""))
    )


def retrieve_model(call: Call) -> Reply:
    """The answer of `GET /v1beta/models/{model}`.

    Raises:
        schemas.errors.ModelNotFound: there is no model of that name.
    """
    name = call.path["id"]
    card = call.catalog.find(name)
    if card is None:
        raise ModelNotFound(f"models/{name} is not found", param="model")
    return Reply(msgspec.json.encode(_model(name, card)))


def _model(name: str, card: ModelCard) -> wire.Model:
    return wire.Model(
        name=f"models/{name}",
        version=str(card.version),
        display_name=name,
        input_token_limit=card.context_length,
        output_token_limit=card.context_length,
        supported_generation_methods=_METHODS.get(card.task, _GENERATING),
    )


def _number(call: Call, name: str) -> int:
    given = call.query.get(name) or "0"
    # The pattern bounds the number before `int` reads it.
    if not re.fullmatch(r"[0-9]{1,6}", given):
        raise InvalidRequest(f"{name}: must be a number, got '{given}'", param=name)
    return int(given)
