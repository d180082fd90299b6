"""Bodies of `/v1/embeddings` decoded to the IR."""

from __future__ import annotations

from adapters.base import Call
from adapters.dialect import Bound
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import check_bound, refused, too_long
from adapters.openai.inbound.decode import read_model, read_prompts
from adapters.unknown_fields import Unknown
from schemas.ir import Embed, Origin, TextPrompt
from schemas.openai.requests import EmbeddingRequest

# OpenAI's reference: "any array must be 2048 dimensions or less".
MAX_INPUTS = 2048
"""Inputs in one request."""

_DIMENSIONS = Bound("dimensions", 1)


def read_embed(dialect: Dialect, given: EmbeddingRequest, origin: Origin, call: Call, extra: Unknown) -> Embed:
    """The request for embeddings; `extra` are the unknown fields of its body.

    Raises:
        schemas.errors.InvalidRequest: a field is wrong; `param` names it.
    """
    model = read_model(dialect, given.model, call)
    check_bound(_DIMENSIONS, given.dimensions)
    inputs = read_prompts(given.input, "input")
    if len(inputs) > MAX_INPUTS:
        raise too_long("input", MAX_INPUTS, len(inputs))
    if any(isinstance(text, TextPrompt) and not text.text for text in inputs):
        raise refused("input", "Invalid 'input': input cannot be an empty string.")
    return Embed(
        id=call.id,
        model=model,
        inputs=inputs,
        encoding=given.encoding_format or "float",
        dimensions=given.dimensions,
        user=given.user,
        extra=extra,
        unknown=extra.paths,
        origin=origin,
    )
