"""The model list."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from adapters.base import Call, Reply
from adapters.openai.dialects import Dialect
from schemas.catalog import ModelCard
from schemas.errors import ModelNotFound
from schemas.openai.answers import Model, ModelList


def list_models(dialect: Dialect, call: Call) -> Reply:
    """The answer of `GET /v1/models`."""
    models = ModelList(data=tuple(_model(dialect, card) for card in call.catalog.cards.values()))
    return Reply(msgspec.json.encode(models))


def retrieve_model(dialect: Dialect, call: Call) -> Reply:
    """The answer of `GET /v1/models/{id}`.

    Raises:
        schemas.errors.ModelNotFound: there is no model of that name.
    """
    name = call.path["id"]
    card = call.catalog.cards.get(name)
    if card is None:
        raise ModelNotFound(f"The model '{name}' does not exist", param="model")
    return Reply(msgspec.json.encode(_model(dialect, card)))


def _model(dialect: Dialect, card: ModelCard) -> Model:
    return Model(id=card.name, created=card.created, owned_by=dialect.answers.owned_by, parent=card.parent or UNSET)
