"""Tokens encoded as log-probabilities, in the forms of chats and of completions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from schemas.ir import Token, TopToken
from schemas.openai.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    PromptToken,
    TokenLogprob,
    TopLogprob,
)

UNLIKELY = -9999.0
"""Stands for minus infinity, which JSON does not have. OpenAI's reference: "the value -9999.0 is used to signify that
the token is very unlikely".
"""


def chat_logprobs(tokens: Sequence[Token], top: int) -> ChatLogprobs | None:
    """The log-probabilities of a message's tokens, without special tokens. None if no token has one.

    Args:
        tokens: the tokens.
        top: how many alternatives each token gets at most.
    """
    content = tuple(
        TokenLogprob(
            name(token),
            _finite(token.logprob),
            _bytes(token),
            tuple(TopLogprob(name(other), _finite(other.logprob), _bytes(other)) for other in token.top[:top]),
        )
        for token in tokens
        # Special tokens are not part of the message; their bytes would not join to its content.
        if token.logprob is not None and not token.special
    )
    return ChatLogprobs(content) if content else None


def completion_logprobs(tokens: Sequence[Token], top: int, offset: int) -> CompletionLogprobs | None:
    """The log-probabilities of all tokens, special ones included: lm-eval expects one entry for each token.

    `top_logprobs` always contains the token itself. It is None for a token without probability (a prompt's first).

    Args:
        tokens: the tokens.
        top: how many alternatives each token gets at most.
        offset: place of the first token in the text, in characters.
    """
    if not tokens:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        # A special token adds nothing to the text: the next token has the same offset.
        offset += 0 if token.special else len(token.text)
    return CompletionLogprobs(
        text_offset=tuple(offsets),
        token_logprobs=tuple(None if token.logprob is None else _finite(token.logprob) for token in tokens),
        tokens=tuple(map(name, tokens)),
        top_logprobs=tuple(_top(token, top) for token in tokens),
    )


def prompt_logprobs(tokens: Sequence[Token], top: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: each token of a prompt and its alternatives, by their ids; None for the first token.

    Args:
        tokens: the tokens, with their ids and log-probabilities.
        top: how many alternatives each token gets at most.
    """
    return tuple(None if token.logprob is None else _ranked(token, top) for token in tokens)


def _ranked(token: Token, top: int) -> dict[str, PromptToken]:
    ranks = {other.id: rank for rank, other in enumerate(token.top, 1)}
    assert token.logprob is not None
    # As in vLLM the token itself comes first, whatever its rank.
    found = {str(token.id): PromptToken(_finite(token.logprob), ranks.get(token.id), name(token))}
    for other in token.top[:top]:
        found.setdefault(str(other.id), PromptToken(_finite(other.logprob), ranks[other.id], name(other)))
    return found


def name(token: Token | TopToken) -> str:
    """The token's own string, which differs from its visible text where a character or a stop string was cut."""
    return token.text if token.bytes is None else token.bytes.decode("utf-8", "replace")


def _top(token: Token, top: int) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    named: dict[str, float] = {}
    for other in token.top[:top]:
        # Different tokens may have the same string (a part of a character is U+FFFD): the most likely one keeps the
        # key.
        named.setdefault(name(other), _finite(other.logprob))
    # "The API will always return the logprob of the sampled token, so there may be up to logprobs+1 elements in the
    # response."
    named.setdefault(name(token), _finite(token.logprob))
    return named


def _bytes(token: Token | TopToken) -> tuple[int, ...]:
    return tuple(token.text.encode() if token.bytes is None else token.bytes)


def _finite(logprob: float) -> float:
    return UNLIKELY if logprob == -math.inf else logprob
