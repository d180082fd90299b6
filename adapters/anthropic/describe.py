"""The model list in the API's own form, for requests with the header `anthropic-version`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from adapters.base import Call, Reply
from schemas import anthropic as wire
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest, ModelNotFound

_MAX_LIMIT, _DEFAULT_LIMIT = 1000, 20


def list_models(call: Call) -> Reply:
    """The answer of `GET /v1/models`: one page, after or before a model, if the query names one.

    Raises:
        schemas.errors.InvalidRequest: `limit` is no number in its interval, or there is no model to begin at.
    """
    models = [_model(name, card) for name, card in call.catalog.models()]
    limit = _limit(call.query.get("limit", str(_DEFAULT_LIMIT)))
    if (before := call.query.get("before_id")) is not None:
        models = models[: _place(models, before, "before_id")]
        page = models[-limit:]
    else:
        after = call.query.get("after_id")
        models = models if after is None else models[_place(models, after, "after_id") + 1 :]
        page = models[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return Reply(msgspec.json.encode(wire.ModelList(tuple(page), len(page) < len(models), first, last)))


def retrieve_model(call: Call) -> Reply:
    """The answer of `GET /v1/models/{id}`.

    Raises:
        schemas.errors.ModelNotFound: there is no model of that name.
    """
    name = call.path["id"]
    card = call.catalog.find(name)
    if card is None:
        raise ModelNotFound(f"model: {name}")
    return Reply(msgspec.json.encode(_model(name, card)))


def _model(name: str, card: ModelCard) -> wire.Model:
    created = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # RFC 3339
    return wire.Model(id=name, display_name=name, created_at=created)


def _limit(given: str) -> int:
    # The pattern bounds the number before `int` reads it.
    if not re.fullmatch(r"[0-9]{1,4}", given) or not 1 <= int(given) <= _MAX_LIMIT:
        raise InvalidRequest(f"limit: must be an integer from 1 to {_MAX_LIMIT}, got '{given}'.", param="limit")
    return int(given)


def _place(models: list[wire.Model], name: str, param: str) -> int:
    for place, model in enumerate(models):
        if model.id == name:
            return place
    raise InvalidRequest(f"{param}: there is no model '{name}'.", param=param)
