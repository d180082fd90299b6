"""Tokens to the two forms in which the protocol tells log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

from schemas.ir import Token, TopToken
from schemas.openai.answers import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

_UNLIKELY = -9999.0
"""OpenAI: "-9999.0 is used to signify that the token is very unlikely". JSON has no infinity."""


def chat_logprobs(tokens: Sequence[Token], top: int) -> ChatLogprobs | None:
    """The tokens of a message, of which special ones are no part; None where a backend tells none."""
    content = tuple(
        TokenLogprob(
            name(token),
            _finite(token.logprob),
            _bytes(token),
            tuple(TopLogprob(name(other), _finite(other.logprob), _bytes(other)) for other in token.top[:top]),
        )
        for token in tokens
        if token.logprob is not None and not token.special
    )
    return ChatLogprobs(content) if content else None


def completion_logprobs(tokens: Sequence[Token], top: int, offset: int) -> CompletionLogprobs | None:
    """All tokens, special ones too (lm-eval counts on one entry a token); `offset` is the first one's place.

    `top_logprobs` always holds the token itself, and None where a token has no probability: a prompt's first.
    """
    if not tokens:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += 0 if token.special else len(token.text)
    return CompletionLogprobs(
        text_offset=tuple(offsets),
        token_logprobs=tuple(None if token.logprob is None else _finite(token.logprob) for token in tokens),
        tokens=tuple(map(name, tokens)),
        top_logprobs=tuple(_top(token, top) for token in tokens),
    )


def name(token: Token | TopToken) -> str:
    """The token as a string of its own: half a character has none, a stop string may have cut its visible text."""
    return token.text if token.bytes is None else token.bytes.decode("utf-8", "replace")


def _top(token: Token, top: int) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    named: dict[str, float] = {}
    for other in token.top[:top]:
        named.setdefault(name(other), _finite(other.logprob))
    named.setdefault(name(token), _finite(token.logprob))
    return named


def _bytes(token: Token | TopToken) -> tuple[int, ...]:
    return tuple(token.text.encode() if token.bytes is None else token.bytes)


def _finite(logprob: float) -> float:
    return _UNLIKELY if logprob == -math.inf else logprob
