"""Requests for vectors."""

from __future__ import annotations

from typing import Any

from adapters.base import Call
from adapters.dialect import Bound
from adapters.openai.inbound.checks import missing, out_of_bounds, refused, too_long
from adapters.openai.inbound.decode import read_prompts
from schemas.ir import Embed, Origin, TextPrompt
from schemas.openai.requests import EmbeddingRequest

MAX_INPUTS = 2048
"""Of one request."""

_DIMENSIONS = Bound("dimensions", 1)


def embedding(given: EmbeddingRequest, origin: Origin, call: Call, extra: dict[str, Any]) -> Embed:
    """A request for vectors.

    Raises:
        schemas.errors.InvalidRequest: `param` names the field that is wrong.
    """
    if not given.model:
        raise missing("model")
    if given.dimensions is not None and not _DIMENSIONS.holds(given.dimensions):
        raise out_of_bounds(_DIMENSIONS, given.dimensions)
    inputs = read_prompts(given.input, "input")
    if len(inputs) > MAX_INPUTS:
        raise too_long("input", MAX_INPUTS, len(inputs))
    if any(isinstance(text, TextPrompt) and not text.text for text in inputs):
        raise refused("input", "Invalid 'input': input cannot be an empty string.")
    return Embed(
        id=call.id,
        model=given.model,
        inputs=inputs,
        encoding=given.encoding_format or "float",
        dimensions=given.dimensions,
        user=given.user,
        extra=extra,
        origin=origin,
    )
