"""A remote's log-probabilities to tokens.

The protocol tells what a token is called, not what it adds to the text: the end token is told or not, half a character
is a U+FFFD or nothing, and a stop string cuts a token in two. So tokens are laid against the text they came with.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from schemas.ir import Token, TopToken
from schemas.openai.remote import RemoteLogprobs, RemoteToken, RemoteTop

_HALF = "\ufffd"
_UNLIKELY = -9999.0


def told_tokens(logprobs: RemoteLogprobs | None) -> tuple[RemoteToken, ...]:
    """The tokens of either form of log-probabilities."""
    if logprobs is None:
        return ()
    if logprobs.tokens is None:
        return logprobs.content or ()
    rows = zip_longest(logprobs.tokens, logprobs.token_logprobs or (), logprobs.top_logprobs or ())
    return tuple(RemoteToken(token, logprob, None, _ranked(top)) for token, logprob, top in rows if token is not None)


class Aligner:
    """Lays the tokens of one choice against its text, chunk by chunk.

    Args:
        limit: of the likeliest tokens, so many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, told: Sequence[RemoteToken], text: str) -> tuple[Token, ...]:
        """The tokens, their visible texts concatenating to `text`."""
        if not told:
            return ()
        if "".join(token.token for token in told) == text:
            return tuple(self._token(token, token.token) for token in told)
        tokens: list[Token] = []
        half: int | None = None
        for token in told:
            piece = token.token if token.bytes is None else self._decoder.decode(bytes(token.bytes))
            at = text.find(piece) if half is not None and piece else 0
            if half is not None and at > 0:
                tokens[half] = _grown(tokens[half], text[:at])
                text = text[at:]
            if text.startswith(piece) or (text and piece.startswith(text)):
                shown = text[: len(piece)]
                half = len(tokens) if not shown else None
                tokens.append(self._token(token, shown))
                text = text[len(shown) :]
            elif _HALF in piece:
                half = len(tokens)
                tokens.append(self._token(token, ""))
            else:
                tokens.append(Token(None, token.token, token.logprob, special=True, top=_tops(token, self._limit)))
        return _with_rest(tokens, text)

    def _token(self, told: RemoteToken, shown: str) -> Token:
        own = told.token.encode() if told.bytes is None else bytes(told.bytes)
        return Token(
            None,
            shown,
            told.logprob,
            top=_tops(told, self._limit),
            bytes=own if own != shown.encode() else None,
        )


def _with_rest(tokens: list[Token], text: str) -> tuple[Token, ...]:
    """Text that no token's name accounts for is the last ordinary one's."""
    if text:
        last = next((place for place in reversed(range(len(tokens))) if not tokens[place].special), None)
        if last is None:
            return (Token(None, text), *tokens)
        tokens[last] = _grown(tokens[last], text)
    return tuple(tokens)


def _grown(token: Token, text: str) -> Token:
    own = token.text.encode() if token.bytes is None else token.bytes
    return msgspec.structs.replace(token, text=token.text + text, bytes=own)


def _tops(told: RemoteToken, limit: int) -> tuple[TopToken, ...]:
    return tuple(_top(other) for other in (told.top_logprobs or ())[:limit])


def _top(told: RemoteTop) -> TopToken:
    own = None if told.bytes is None else bytes(told.bytes)
    logprob = _UNLIKELY if told.logprob is None else told.logprob
    return TopToken(None, told.token, logprob, own if own != told.token.encode() else None)


def _ranked(top: dict[str, float | None] | None) -> tuple[RemoteTop, ...]:
    found = ((token, logprob) for token, logprob in (top or {}).items() if logprob is not None)
    return tuple(RemoteTop(token, logprob) for token, logprob in sorted(found, key=lambda item: -item[1]))
