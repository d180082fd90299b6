"""`/info` in each dialect's form. Its counts are required integers; 0 stands for unknown."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from adapters.base import Call
from adapters.tgi.decode import default_card
from adapters.tgi.dialects import Dialect
from schemas.catalog import ModelCard
from schemas.tgi import Info, Info09, MindieInfo, MindieModel


def info(dialect: Dialect, call: Call) -> bytes:
    """The body of `/info`.

    Raises:
        schemas.errors.ModelNotFound: nothing is served by default.
    """
    form = {"tgi": _info, "tgi-0.9": _info_09, "mindie": _mindie_info}[dialect.answers.info]
    return msgspec.json.encode(form(dialect, call, default_card(call)))


def _info(dialect: Dialect, call: Call, card: ModelCard) -> Info:
    return Info(
        model_id=card.name,
        max_concurrent_requests=call.catalog.max_concurrent_requests,
        max_best_of=dialect.limits.max_best_of,
        max_stop_sequences=dialect.limits.max_stop_sequences,
        max_input_tokens=_max_input(card),
        max_total_tokens=card.context_length or 0,
        version=call.catalog.version,
        adapters=card.lora_adapters or UNSET,
    )


def _info_09(dialect: Dialect, call: Call, card: ModelCard) -> Info09:
    return Info09(
        model_id=card.name,
        model_dtype=card.dtype or "unknown",
        model_device_type=card.device or "unknown",
        max_concurrent_requests=call.catalog.max_concurrent_requests,
        max_best_of=dialect.limits.max_best_of,
        max_stop_sequences=dialect.limits.max_stop_sequences,
        max_input_length=_max_input(card),
        max_total_tokens=card.context_length or 0,
        # The field is required, and the catalog has no batch capacity: one full context stands for it.
        max_batch_total_tokens=card.context_length or 0,
        version=call.catalog.version,
    )


def _mindie_info(dialect: Dialect, call: Call, card: ModelCard) -> MindieInfo:
    models = tuple(
        MindieModel(
            model_device_type=other.device,
            model_dtype=other.dtype,
            model_id=other.name,
            max_total_tokens=other.context_length or 0,
        )
        for other in call.catalog.cards.values()
        # TGI's routes generate text only: models for embeddings are left out.
        if other.task != "embeddings"
    )
    return MindieInfo(
        max_best_of=dialect.limits.max_best_of,
        max_concurrent_requests=call.catalog.max_concurrent_requests,
        version=call.catalog.version,
        models=models,
        max_input_length=_max_input(card),
    )


def _max_input(card: ModelCard) -> int:
    """The longest prompt in tokens; TGI leaves at least one token of the context for the answer."""
    return card.context_length - 1 if card.context_length else 0
