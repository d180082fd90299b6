"""One request for vectors on its way through the engine.

A vector that is to be shorter than the model's is cut, and has length 1 again if the model's have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot

from msgspec.structs import replace

from backends.native.answer import check_ids, raise_failure
from backends.native.client.engine_client import EngineLink
from backends.native.protocol.messages import Ready, Submit
from backends.native.sentence_transformers import Recipe
from backends.native.text.codec import TextCodec
from backends.prompts import fit
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, Embeddings, TextPrompt, TokensPrompt, Usage

_AT_ONCE = 256
"""Texts that the engine is given at a time, so that one request leaves room in its queue."""


async def embed(request: Embed, link: EngineLink, text: TextCodec, ready: Ready, recipe: Recipe) -> Embeddings:
    """One vector per input: a text after what the model wants to stand before it, token ids as they are.

    Raises:
        schemas.errors.InvalidRequest: an input does not fit the model, or there are not so many dimensions.
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    if not ready.embedding_size:
        raise UnsupportedFeature(f"The model '{request.model}' does not make embeddings.", feature="embeddings")
    size = request.dimensions or ready.embedding_size
    if size > ready.embedding_size:
        message = f"The model '{request.model}' makes vectors of at most {ready.embedding_size} dimensions."
        raise InvalidRequest(message, param="dimensions")
    prompt = recipe.prompt(request.instruction)
    unpooled = 0 if recipe.include_prompt or not prompt else await text.leading(_lowered(prompt, recipe))
    texts = [_lowered(prompt + given.text, recipe) for given in request.inputs if isinstance(given, TextPrompt)]
    encoded = iter(await text.encode_texts(texts))
    inputs = [given.ids if isinstance(given, TokensPrompt) else next(encoded) for given in request.inputs]
    for ids in inputs:
        check_ids("input", ids, ready.vocab_size)
        fit(len(ids), 0, ready.context_length)
    lora = request.lora_adapter or ""
    submits = [
        Submit(0, ids, 0, pool=True, unpooled=unpooled if isinstance(given, TextPrompt) else 0, lora_adapter=lora)
        for given, ids in zip(request.inputs, inputs, strict=True)
    ]
    unit = recipe.normalize and size < ready.embedding_size
    vectors = [
        _unit(vector[:size]) if unit else vector[:size]
        for start in range(0, len(submits), _AT_ONCE)
        for vector in await _vectors(submits[start : start + _AT_ONCE], link)
    ]
    return Embeddings(request.model, tuple(vectors), Usage(sum(map(len, inputs)), 0))


async def _vectors(submits: Sequence[Submit], link: EngineLink) -> Iterator[tuple[float, ...]]:
    numbers = link.reserve(len(submits))
    exchange = link.submit([replace(submit, seq=seq) for seq, submit in zip(numbers, submits, strict=True)])
    found: dict[int, tuple[float, ...]] = {}
    try:
        while len(found) < len(submits):
            for output in await exchange.outputs():
                raise_failure(output)
                found[output.seq] = output.vector
    finally:
        link.release(exchange)
    return (found[seq] for seq in numbers)


def _lowered(text: str, recipe: Recipe) -> str:
    return text.lower() if recipe.lower_case else text


def _unit(vector: tuple[float, ...]) -> tuple[float, ...]:
    length = hypot(*vector)
    return tuple(value / length for value in vector) if length else vector
