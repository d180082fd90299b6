"""One request for scores on its way through the engine: by a classification head, by the cosine of embeddings, or by
MaxSim; or for sparse vectors or vectors of tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import hypot
from operator import mul

from backends.native import embedding
from backends.native.answer import check_ids
from backends.native.classification import Head
from backends.native.client.engine_client import EngineClient
from backends.native.protocol.messages import Ready, Submit
from backends.native.sentence_transformers import Recipe
from backends.native.text.codec import TextCodec
from backends.native.text.pairs import encode_pairs
from backends.prompts import fit
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, TextPrompt, TokensPrompt, Usage
from schemas.origin import Scoring
from schemas.scores import Score, Scores

Table = tuple[tuple[float, ...], ...]
"""The vectors of a text's tokens."""


def scoring_of(ready: Ready, head: Head | None, recipe: Recipe) -> frozenset[Scoring]:
    """What a model can do of scoring and classification, and which vectors other than embeddings it makes."""
    if recipe.splade is not None:
        return frozenset({"sparse"})
    if recipe.late is not None:
        return frozenset({"rerank", "score", "tokens"})
    if head is not None:
        return frozenset({"rerank", "score", "classify"} if len(head.labels) == 1 else {"classify"})
    # A language model's hidden states are embeddings, too, but nobody trained them to be compared.
    return frozenset() if ready.generates or not ready.embedding_size else frozenset({"rerank", "score", "tokens"})


async def classify(request: Score, client: EngineClient, text: TextCodec, ready: Ready, head: Head) -> Scores:
    """The scores of a model with a classification head: of pairs, or of texts.

    Raises:
        schemas.errors.InvalidRequest: an input does not fit the model.
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    limit = _limit(request, ready)
    if request.pairs:
        encoded = await encode_pairs(text, head.of, request.pairs, limit, request.instruction)
    else:
        texts = [given.text for given in request.texts if isinstance(given, TextPrompt)]
        made = iter(await text.encode_texts(texts, truncate=limit))
        encoded = [(given.ids if isinstance(given, TokensPrompt) else next(made), 0) for given in request.texts]
    for ids, _ in encoded:
        check_ids("input", ids, ready.vocab_size)
        fit(len(ids), 0, ready.context_length)
    submits = [Submit(0, ids, 0, pool=True, second=second) for ids, second in encoded]
    numbers = await embedding.vectors(submits, client)
    values = tuple(head.scores(row) if request.activation else row for row in numbers)
    return Scores(request.model, values, Usage(sum(len(ids) for ids, _ in encoded), 0), head.labels)


async def compare(request: Score, client: EngineClient, text: TextCodec, ready: Ready, recipe: Recipe) -> Scores:
    """The cosine of the embeddings of each pair; each distinct text is embedded once.

    Raises:
        schemas.errors.InvalidRequest: a text does not fit the model, or it takes no instruction.
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    _refuse_instruction(request)
    places = {text: place for place, text in enumerate(dict.fromkeys(text for pair in request.pairs for text in pair))}
    asked = Embed(id=request.id, model=request.model, inputs=tuple(map(TextPrompt, places)))
    made = await embedding.embed(asked, client, text, ready, recipe, truncate=_limit(request, ready))
    values = tuple((_cosine(made.vectors[places[one]], made.vectors[places[other]]),) for one, other in request.pairs)
    return Scores(request.model, values, made.usage)


async def rows(request: Score, client: EngineClient, text: TextCodec, ready: Ready, recipe: Recipe) -> Scores:
    """The sparse vector of each text, or the vectors of its tokens: hidden states, of length 1 with `activation`.

    Raises:
        schemas.errors.InvalidRequest: a text does not fit the model, or it has no such prompt.
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    if request.instruction and request.instruction not in recipe.prompts:
        known = ", ".join(sorted(recipe.prompts)) or "none"
        raise InvalidRequest(f"The model has no prompt '{request.instruction}' (it has: {known}).", param="prompt_name")
    asked = Embed(id=request.id, model=request.model, inputs=request.texts, instruction=request.instruction)
    each = request.task == "tokens"
    limit = _limit(request, ready)
    made, inputs = await embedding.pooled(asked, client, text, ready, recipe, truncate=limit, each_token=each)
    tables = []
    for numbers, ids in zip(made, inputs, strict=True):
        table = _table(numbers, len(numbers) // len(ids) if each else 2)
        tables.append(tuple(map(embedding.normalized, table)) if each and request.activation else table)
    return Scores(request.model, (), Usage(sum(map(len, inputs)), 0), rows=tuple(tables))


async def late_rows(request: Score, client: EngineClient, text: TextCodec, ready: Ready, recipe: Recipe) -> Scores:
    """The vectors of each text's tokens by a model of late interaction; arguments and errors are those of `rows`.

    With the prompt "query" texts are queries, else documents.
    """
    name = request.instruction or "document"
    if name not in {"query", "document", *recipe.prompts}:
        raise InvalidRequest(f"The model has no prompt '{name}': it has query and document.", param="prompt_name")
    made, tokens = await _late_vectors(request, request.texts, name, client, text, ready, recipe)
    return Scores(request.model, (), Usage(tokens, 0), rows=made)


async def max_similarities(
    request: Score, client: EngineClient, text: TextCodec, ready: Ready, recipe: Recipe
) -> Scores:
    """MaxSim of each pair of a query and a document by a model of late interaction: of each of the query's vectors the
    greatest product with one of the document's, added up. Each distinct text is run once.

    Raises:
        schemas.errors.InvalidRequest: a text does not fit the model, or it takes no instruction.
        schemas.errors.GatewayError: the engine has no room or failed.
    """
    _refuse_instruction(request)
    made: list[dict[str, Table]] = []
    tokens = 0
    for side, name in enumerate(("query", "document")):
        texts = dict.fromkeys(pair[side] for pair in request.pairs)
        tables, used = await _late_vectors(request, tuple(map(TextPrompt, texts)), name, client, text, ready, recipe)
        made.append(dict(zip(texts, tables, strict=True)))
        tokens += used
    queries, documents = made
    # In a thread: a document has some 40,000 numbers, and a request many documents.
    compared = await asyncio.to_thread(
        lambda: [_max_similarity(queries[query], documents[document]) for query, document in request.pairs]
    )
    return Scores(request.model, tuple((value,) for value in compared), Usage(tokens, 0))


async def _late_vectors(
    request: Score,
    texts: tuple[TextPrompt | TokensPrompt, ...],
    name: str,
    client: EngineClient,
    text: TextCodec,
    ready: Ready,
    recipe: Recipe,
) -> tuple[tuple[Table, ...], int]:
    """Of each text with the prompt `name` the vectors of its tokens; and how many tokens the texts have."""
    assert recipe.late is not None
    asked = Embed(id=request.id, model=request.model, inputs=texts, instruction=recipe.prompts.get(name) and name)
    most = min(recipe.late.limit(query=name == "query") or ready.context_length, ready.context_length)
    limit = _limit(request, ready)
    inputs = await embedding.token_ids(asked, text, recipe, None if limit is None else min(limit, most))
    embedding.check_numbers(inputs, ready)
    for ids in inputs:
        check_ids("input", ids, ready.vocab_size)
        fit(len(ids), 0, most)
    tokens = text.late_tokens(recipe.late, query=name == "query")
    expanded = [tokens.expand(ids) for ids in inputs]
    submits = [Submit(0, ids, 0, pool=True, unattended=unattended) for ids, unattended in expanded]
    made = await embedding.vectors(submits, client)
    kept = [
        tokens.kept(ids, _table(numbers, ready.embedding_size))
        for numbers, (ids, _) in zip(made, expanded, strict=True)
    ]
    return tuple(kept), sum(map(len, inputs))


def _refuse_instruction(request: Score) -> None:
    if request.instruction:
        raise UnsupportedFeature("The model takes no instruction.", feature="instruction", param="instruction")


def _max_similarity(query: Table, document: Table) -> float:
    import numpy as np  # here: only few workers need it

    if not query or not document:  # nothing but tokens that have no vector
        return 0.0
    return float((np.asarray(query) @ np.asarray(document).T).max(1).sum())


def _table(numbers: Sequence[float], width: int) -> Table:
    return tuple(zip(*[iter(numbers)] * width, strict=True))


def _limit(request: Score, ready: Ready) -> int | None:
    """The tokens to which longer inputs are cut; None: not at all."""
    limit = request.truncate_prompt_tokens
    if limit is not None and limit > ready.context_length:
        message = f"Invalid 'truncate_prompt_tokens': the model takes at most {ready.context_length} tokens."
        raise InvalidRequest(message, param="truncate_prompt_tokens")
    return ready.context_length if limit == -1 else limit


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = hypot(*one) * hypot(*other)
    return sum(map(mul, one, other)) / lengths if lengths else 0.0
