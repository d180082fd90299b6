"""One request for vectors on its way through the engine. Vectors have length 1, whatever their dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot

from backends.native.answer import check_ids, raise_failure
from backends.native.link import EngineLink
from backends.native.messages import Ready, Submit
from backends.native.text import TextCodec
from backends.prompts import fit
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, Embeddings, TextPrompt, TokensPrompt, Usage

_AT_ONCE = 256
"""Texts that the engine is given at a time, so that one request leaves room in its queue."""


async def embed(request: Embed, link: EngineLink, text: TextCodec, ready: Ready) -> Embeddings:
    """One vector per input.

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
    prompts = [await text.encode(_instructed(prompt, request.instruction)) for prompt in request.inputs]
    for ids in prompts:
        check_ids("input", ids, ready.vocab_size)
        fit(len(ids), 0, ready.context_length)
    vectors = [
        _unit(vector[:size])
        for start in range(0, len(prompts), _AT_ONCE)
        for vector in await _vectors(prompts[start : start + _AT_ONCE], request.adapter_id or "", link)
    ]
    return Embeddings(request.model, tuple(vectors), Usage(sum(map(len, prompts)), 0))


async def _vectors(prompts: Sequence[tuple[int, ...]], adapter: str, link: EngineLink) -> Iterator[tuple[float, ...]]:
    numbers = link.reserve(len(prompts))
    submits = [Submit(seq, ids, 0, pool=True, adapter=adapter) for seq, ids in zip(numbers, prompts, strict=True)]
    exchange = link.submit(submits)
    found: dict[int, tuple[float, ...]] = {}
    try:
        while len(found) < len(prompts):
            for output in await exchange.outputs():
                raise_failure(output)
                found[output.seq] = output.vector
    finally:
        link.release(exchange)
    return (found[seq] for seq in numbers)


def _instructed(prompt: TextPrompt | TokensPrompt, instruction: str | None) -> TextPrompt | TokensPrompt:
    """The input after what is to be done with it; token ids are used as they are."""
    if not instruction or isinstance(prompt, TokensPrompt):
        return prompt
    return TextPrompt(f"{instruction} {prompt.text}")


def _unit(vector: tuple[float, ...]) -> tuple[float, ...]:
    length = hypot(*vector)
    return tuple(value / length for value in vector) if length else vector
