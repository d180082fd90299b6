"""What a server is: its models, the tokenizer of one, its version."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adapters.base import Call, Reply
from adapters.openai.dialects import Dialect
from schemas.catalog import ModelCard
from schemas.errors import ModelNotFound
from schemas.openai.answers import Model, ModelList
from schemas.openai.tokens import ServerVersion, TokenizerDescription


def list_models(dialect: Dialect, call: Call) -> Reply:
    """The answer of `GET /v1/models`."""
    # Aliases are models of their own, as vLLM lists further `--served-model-name`s. Patterns are no names to list.
    models = [_model(dialect, card, name) for name, card in call.catalog.models()]
    models += [model for lora in call.catalog.lora_models if (model := _lora(dialect, call, lora)) is not None]
    return Reply(msgspec.json.encode(ModelList(data=tuple(models))))


def retrieve_model(dialect: Dialect, call: Call) -> Reply:
    """The answer of `GET /v1/models/{id}`.

    Raises:
        schemas.errors.ModelNotFound: there is no model of that name.
    """
    name = call.path["id"]
    card = call.catalog.find(name)
    model = _model(dialect, card, name) if card is not None else _lora(dialect, call, name)
    if model is None:
        raise ModelNotFound(f"The model '{name}' does not exist", param="model")
    return Reply(msgspec.json.encode(model))


def describe_tokenizer(call: Call) -> Reply:
    """The answer of vLLM's `GET /tokenizer_info`, which names no model: the default endpoint's.

    Raises:
        schemas.errors.ModelNotFound: its tokenizer is not known.
    """
    card = call.catalog.find(call.catalog.default or "")
    if card is None or card.tokenizer is None:
        name = "" if card is None else card.name
        raise ModelNotFound(f"The tokenizer of the model '{name}' is not known here.", param="model")
    described = TokenizerDescription(card.context_length, card.tokenizer.chat_template)
    return Reply(msgspec.json.encode(card.tokenizer.special_tokens | msgspec.to_builtins(described)))


def describe_version(call: Call) -> Reply:
    """The answer of vLLM's `GET /version`: the gateway's own."""
    return Reply(msgspec.json.encode(ServerVersion(call.catalog.version)))


def _model(dialect: Dialect, card: ModelCard, name: str) -> Model:
    """The model of an endpoint, or of its alias `name`, whose `root` is the endpoint."""
    return Model(
        id=name,
        created=card.created,
        owned_by=dialect.answers.owned_by,
        root=card.name if name != card.name else UNSET,
        parent=card.parent or UNSET,
        max_model_len=card.context_length or UNSET,
    )


def _lora(dialect: Dialect, call: Call, name: str) -> Model | None:
    """The model of a LoRA adapter that has no endpoint of its own. Its `parent` is the base model, as in vLLM."""
    card = call.catalog.cards.get(call.catalog.lora_models.get(name, ""))
    return None if card is None else replace(_model(dialect, card, card.name), id=name, parent=card.name)
