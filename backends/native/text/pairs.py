"""Pairs of texts as a cross-encoder reads them: two texts, or a chat of a query and a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.native.cross_encoder import CrossEncoder, PairChat
from backends.native.text.codec import TextCodec
from schemas.ir import TextPrompt

Encoded = tuple[tuple[int, ...], int]
"""The ids of a pair, and where its second text begins for models that distinguish them, else 0."""

_MAX_CUTS = 8


async def encode_pairs(
    text: TextCodec, of: CrossEncoder, pairs: Sequence[tuple[str, str]], limit: int | None
) -> list[Encoded]:
    """Encode pairs; longer ones are cut to `limit` tokens.

    Two texts are cut as the tokenizer cuts them, token by token of the longer one; in a chat the document is cut.

    Raises:
        schemas.errors.InvalidRequest: the chat template rejects the pair.
    """
    if of.chat is not None:
        return [(await _encode_chat(text, of.chat, of.prompt, pair, limit), 0) for pair in pairs]
    given = [(of.prompt + one, other) for one, other in pairs] if of.prompt else pairs
    return await text.encode_pairs(given, truncate=limit)


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
