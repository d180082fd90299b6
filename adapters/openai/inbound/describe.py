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
    # Aliases are models of their own, as vLLM lists further `--served-model-name`s. Patterns are no names to list.
    models = tuple(_model(dialect, card, name) for name, card in call.catalog.models())
    return Reply(msgspec.json.encode(ModelList(data=models)))


def retrieve_model(dialect: Dialect, call: Call) -> Reply:
    """The answer of `GET /v1/models/{id}`.

    Raises:
        schemas.errors.ModelNotFound: there is no model of that name.
    """
    name = call.path["id"]
    card = call.catalog.find(name)
    if card is None:
        raise ModelNotFound(f"The model '{name}' does not exist", param="model")
    return Reply(msgspec.json.encode(_model(dialect, card, name)))


def _model(dialect: Dialect, card: ModelCard, name: str) -> Model:
    """The model of an endpoint, or of its alias `name`, whose `root` is the endpoint."""
    return Model(
        id=name,
        created=card.created,
        owned_by=dialect.answers.owned_by,
        root=card.name if name != card.name else UNSET,
        parent=card.parent or UNSET,
    )
