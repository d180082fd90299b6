"""What is served, in Ollama's words: the models, those that are loaded, one of them, and the version.

Clients read the context length and the capabilities of a model; sizes of files have no meaning here.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec

from adapters.base import Call, Reply
from adapters.body import read
from adapters.ollama.decode import LATEST, find_model
from adapters.ollama.dialects import Dialect
from schemas import ollama as wire
from schemas.catalog import ModelCard, Task

_ARCHITECTURE = "interlingua"
"""The value of `general.architecture`, with which the names of other entries of `model_info` begin."""
_NEVER = "9999-12-31T23:59:59Z"
"""The time at which a loaded model is unloaded."""
_CAPABILITIES: dict[Task, tuple[str, ...]] = {
    "chat": ("completion", "tools"),
    "completions": ("completion",),
    "embeddings": ("embedding",),
}


def list_models(call: Call) -> Reply:
    """The answer of `GET /api/tags`."""
    models = tuple(
        wire.ListedModel(
            name=with_tag(name),
            model=with_tag(name),
            modified_at=_timestamp(card.changed),
            digest=_digest(name),
            details=_details(card),
        )
        for name, card in call.catalog.models()
    )
    return Reply(msgspec.json.encode(wire.ModelList(models)))


def list_running(call: Call) -> Reply:
    """The answer of `GET /api/ps`: the endpoints that can answer."""
    models = tuple(
        wire.RunningModel(
            name=with_tag(name),
            model=with_tag(name),
            digest=_digest(name),
            details=_details(card),
            expires_at=_NEVER,
            context_length=card.context_length or 0,
        )
        for name, card in call.catalog.cards.items()
        if card.ready
    )
    return Reply(msgspec.json.encode(wire.RunningList(models)))


def show_model(call: Call, body: bytes) -> Reply:
    """The answer of `POST /api/show`.

    Raises:
        schemas.errors.RequestError: the body cannot be read, or there is no model of that name.
    """
    given, _ = read(body, wire.ShowRequest)
    _, card = find_model(given.model or given.name or "", call)
    info: dict[str, Any] = {"general.architecture": _ARCHITECTURE}
    if card.context_length is not None:
        info[f"{_ARCHITECTURE}.context_length"] = card.context_length
    if card.vocab_size is not None:
        info[f"{_ARCHITECTURE}.vocab_size"] = card.vocab_size
    described = wire.ModelDescription(
        template=(card.tokenizer.chat_template or "") if card.tokenizer is not None else "",
        details=_details(card),
        model_info=info,
        capabilities=(*_CAPABILITIES.get(card.task, ()), *(("vision",) if card.images else ())),
        modified_at=_timestamp(card.changed),
    )
    return Reply(msgspec.json.encode(described))


def show_version(dialect: Dialect) -> Reply:
    """The answer of `GET /api/version`."""
    return Reply(msgspec.json.encode(wire.Version(dialect.answers.version)))


def with_tag(name: str) -> str:
    """A model's name as Ollama lists it, always with a tag. Open WebUI adds `latest` before it looks a name up."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def _details(card: ModelCard) -> wire.Details:
    return wire.Details(parent_model=card.parent or "", quantization_level=card.dtype or "")


def _digest(name: str) -> str:
    """A digest in the form of Ollama's, which clients show and compare: of the name, since there is no one file."""
    return hashlib.sha256(name.encode()).hexdigest()


def _timestamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
