"""One embedding request on its way through the engine.

A vector that is shortened by `dimensions` is normalized again if the model's vectors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from msgspec.structs import replace

from backends.native.answer import check_ids, failure
from backends.native.client.engine_client import EngineClient
from backends.native.protocol.messages import Ready, Submit
from backends.native.sentence_transformers import Recipe
from backends.native.text.codec import TextCodec
from backends.prompts import fit
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, Embeddings, TextPrompt, TokensPrompt, Usage

_BATCH = 256
"""Inputs submitted at a time, so that one request leaves room in the engine's queue."""
_MAX_NUMBERS = 2**23
"""Numbers of the vectors of tokens in one answer, which take about 0.5 GB on their way."""


async def embed(
    request: Embed,
    client: EngineClient,
    text: TextCodec,
    ready: Ready,
    recipe: Recipe,
    *,
    truncate: int | None = None,
) -> Embeddings:
    """One vector per input. Texts get the recipe's prompt in front; token ids are taken as they are.

    Args:
        request: the inputs.
        client: of the engine.
        text: the model's tokenizer.
        ready: what the engine announced.
        recipe: how the checkpoint's vectors are made.
        truncate: tokens to which longer texts are cut; None: they are refused.

    Raises:
        schemas.errors.InvalidRequest: an input does not fit the model, or it has fewer dimensions than requested.
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    size = _size(request, ready)
    made, inputs = await pooled(request, client, text, ready, recipe, truncate=truncate)
    # Matryoshka embeddings (arXiv 2205.13147): the first components of a vector are a shorter embedding, but not of
    # length 1. OpenAI normalizes vectors shortened by `dimensions`, too.
    if size < ready.embedding_size:
        made = [normalized(vector[:size]) if recipe.normalize else vector[:size] for vector in made]
    return Embeddings(request.model, tuple(made), Usage(sum(map(len, inputs)), 0))


async def pooled(
    request: Embed,
    client: EngineClient,
    text: TextCodec,
    ready: Ready,
    recipe: Recipe,
    *,
    truncate: int | None = None,
    each_token: bool = False,
) -> tuple[list[tuple[float, ...]], list[tuple[int, ...]]]:
    """What the engine makes of each input, and the token ids of each; arguments and errors are those of `embed`.

    `each_token`: the hidden states of an input's tokens, one after the other, instead of its vector.
    """
    prompt = recipe.prompt(request.instruction)
    # Some recipes (`include_prompt` false, as INSTRUCTOR's) exclude the prompt's tokens from the mean.
    unpooled = 0 if recipe.include_prompt or not prompt else await text.prefix_length(_cased(recipe, prompt))
    inputs = await token_ids(request, text, recipe, truncate)
    if each_token:
        check_numbers(inputs, ready)
    for ids in inputs:
        check_ids("input", ids, ready.vocab_size)
        fit(len(ids), 0, ready.context_length)
    lora = request.lora_adapter or ""
    # The sequence number is set in `_batch`, once it is reserved. `max_new_tokens` is 0: nothing is generated.
    submits = [
        Submit(
            0,
            ids,
            0,
            pool=True,
            each_token=each_token,
            unpooled=unpooled if isinstance(given, TextPrompt) else 0,
            lora_adapter=lora,
            flow=request.flow,
        )
        for given, ids in zip(request.inputs, inputs, strict=True)
    ]
    return await vectors(submits, client, request.destinations), inputs


async def token_ids(request: Embed, text: TextCodec, recipe: Recipe, truncate: int | None) -> list[tuple[int, ...]]:
    """The token ids of each input; texts have the recipe's prompt in front."""
    prompt = recipe.prompt(request.instruction)
    texts = [_cased(recipe, prompt + given.text) for given in request.inputs if isinstance(given, TextPrompt)]
    # One call for all texts: a fast tokenizer encodes a batch in parallel. Inputs of both kinds keep their order: each
    # text takes the next encoded one.
    encoded = iter(await text.encode_texts(texts, truncate=truncate))
    return [given.ids if isinstance(given, TokensPrompt) else next(encoded) for given in request.inputs]


def check_numbers(inputs: Sequence[Sequence[int]], ready: Ready) -> None:
    """Refuse to make a vector of each of too many tokens.

    Raises:
        schemas.errors.InvalidRequest: they are too many.
    """
    tokens, most = sum(map(len, inputs)), _MAX_NUMBERS // ready.embedding_size
    if tokens > most:
        raise InvalidRequest(f"The inputs have {tokens} tokens; a request may ask for the vectors of {most}.")


def _cased(recipe: Recipe, given: str) -> str:
    return given.lower() if recipe.lower_case else given


def _size(request: Embed, ready: Ready) -> int:
    """The number of components of each vector."""
    if not ready.embedding_size:
        raise UnsupportedFeature(f"The model '{request.model}' does not make embeddings.", feature="embeddings")
    size = request.dimensions or ready.embedding_size
    if size > ready.embedding_size:
        message = f"The model '{request.model}' makes vectors of at most {ready.embedding_size} dimensions."
        raise InvalidRequest(message, param="dimensions")
    return size


async def vectors(
    submits: Sequence[Submit], client: EngineClient, destinations: Sequence[str] = ()
) -> list[tuple[float, ...]]:
    """The vectors of sequences that ask for one each (`Submit.pool`), in order; `seq` is set here.

    Raises:
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    found: list[tuple[float, ...]] = []
    for start in range(0, len(submits), _BATCH):
        found += await _batch(submits[start : start + _BATCH], client, destinations)
    return found


async def _batch(
    submits: Sequence[Submit], client: EngineClient, destinations: Sequence[str]
) -> list[tuple[float, ...]]:
    """Submit one batch; its vectors in order."""
    seqs = client.reserve_seqs(len(submits))
    numbered = [replace(submit, seq=seq) for seq, submit in zip(seqs, submits, strict=True)]
    in_flight = client.submit(numbered, destinations=destinations)
    found: dict[int, tuple[float, ...]] = {}
    try:
        # Vectors arrive in any order: the engine composes its batches itself.
        while len(found) < len(submits):
            for output in await in_flight.outputs():
                if output.error is not None:
                    raise failure(output)
                found[output.seq] = output.vector
    finally:
        # After an error, or if the client left, this cancels the batch's remaining sequences.
        client.release(in_flight)
    return [found[seq] for seq in seqs]


def normalized(vector: tuple[float, ...]) -> tuple[float, ...]:
    """A vector of the same direction and length 1; 0 stays."""
    length = hypot(*vector)
    return tuple(value / length for value in vector) if length else vector
