"""Pairs of texts as a cross-encoder reads them: two texts, a chat of a query and a document, or parts of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from backends.native.cross_encoder import CrossEncoder, PairChat
from backends.native.rerankers import Reranker, has_document
from backends.native.text.codec import TextCodec
from schemas.errors import UnsupportedFeature
from schemas.ir import TextPrompt

Encoded = tuple[tuple[int, ...], int]
"""The ids of a pair, and where its second text begins for models that distinguish them, else 0."""

_MAX_CUTS = 8


async def encode_pairs(
    text: TextCodec,
    of: CrossEncoder,
    pairs: Sequence[tuple[str, str]],
    limit: int | None,
    instruction: str | None = None,
) -> list[Encoded]:
    """Encode pairs; longer ones are cut to `limit` tokens.

    Two texts are cut as the tokenizer cuts them, token by token of the longer one; in a chat and in a prompt the
    document is cut. `instruction` stands in the place of the model's own.

    Raises:
        schemas.errors.InvalidRequest: the chat template rejects the pair.
        schemas.errors.UnsupportedFeature: the model takes no instruction.
    """
    if of.asked is not None and (of.asked.takes_instruction or not instruction):
        return await _encode_parts(text, of.asked, instruction or of.asked.instruction, pairs, limit)
    if of.chat is not None:
        return [(await _encode_chat(text, of.chat, instruction or of.prompt, pair, limit), 0) for pair in pairs]
    if instruction:
        raise UnsupportedFeature("The model takes no instruction.", feature="instruction", param="instruction")
    given = [(of.prompt + one, other) for one, other in pairs] if of.prompt else pairs
    return await text.encode_pairs(given, truncate=limit)


async def _encode_parts(
    text: TextCodec, asked: Reranker, instruction: str, pairs: Sequence[tuple[str, str]], limit: int | None
) -> list[Encoded]:
    parts = asked.parts(instruction)
    values = [{"instruction": instruction, "query": query, "document": document} for query, document in pairs]
    encoded = await text.encode_parts(parts, values)
    if limit is not None:
        cut = next(place for place, part in enumerate(parts) if has_document(part))
        for prompt in encoded:
            others = sum(map(len, prompt)) - len(prompt[cut])
            prompt[cut] = prompt[cut][: max(limit - others, 0)]
    return [(tuple(chain.from_iterable(prompt)), 0) for prompt in encoded]


async def _encode_chat(
    text: TextCodec, chat: PairChat, prompt: str, pair: tuple[str, str], limit: int | None
) -> tuple[int, ...]:
    query, document = pair
    ids = await text.encode_turns(_turns(chat, prompt, query, document), chat.options)
    # More than once: the cut text's last token may be written as two.
    for _ in range(_MAX_CUTS):
        excess = len(ids) - limit if limit is not None else 0
        if excess <= 0 or not document:
            break
        spans = (await text.tokenize(TextPrompt(document), add_special_tokens=False)).spans
        document = document[: spans[-excess].start] if excess < len(spans) else ""
        ids = await text.encode_turns(_turns(chat, prompt, query, document), chat.options)
    return ids


def _turns(chat: PairChat, prompt: str, query: str, document: str) -> list[dict[str, Any]]:
    given = (("system", prompt), ("query", query), ("document", document))
    return [
        {"role": role, "content": [{"type": "text", "text": content}] if chat.parts else content}
        for role, content in given
        if content or role != "system"
    ]
