"""A remote's log-probabilities decoded to tokens.

Strategy: the protocol gives the string of each token, not what the token adds to the text. The end token may be listed
or not, a part of a character is U+FFFD or nothing, and a stop string cuts a token in two. Tokens are therefore aligned
with the text that they came with, so that their visible texts concatenate to it.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from adapters.openai.inbound.logprobs import UNLIKELY
from schemas.ir import Token, TopToken
from schemas.openai.remote import RemoteLogprobs, RemoteToken, RemoteTop

_INCOMPLETE = "\ufffd"
"""What a server writes for a part of a character."""


def remote_tokens(logprobs: RemoteLogprobs | None) -> tuple[RemoteToken, ...]:
    """The tokens of log-probabilities in the form of chats or of completions."""
    if logprobs is None:
        return ()
    if logprobs.tokens is None:
        return logprobs.content or ()
    # The lists of a completion are parallel, but servers leave some of them out or null.
    rows = zip_longest(logprobs.tokens, logprobs.token_logprobs or (), logprobs.top_logprobs or ())
    return tuple(RemoteToken(token, logprob, None, _ranked(top)) for token, logprob, top in rows if token is not None)


class Aligner:
    """Aligns the tokens of one choice with its text, chunk by chunk.

    Args:
        limit: alternatives of each token that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Lives across chunks: the bytes of one character may arrive in two of them.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, listed: Sequence[RemoteToken], text: str) -> tuple[Token, ...]:
        """The tokens of a chunk. Their visible texts concatenate to `text`; a token that is not in it is special."""
        if not listed:
            return ()
        # The fast path: nearly all chunks, with one or two whole tokens.
        if "".join(token.token for token in listed) == text:
            return tuple(self._token(token, token.token) for token in listed)
        tokens: list[Token] = []
        incomplete: int | None = None  # place of the last token that ended amid a character
        for token in listed:
            # The bytes are exact where the string is U+FFFD; the decoder yields a character with its last byte.
            piece = token.token if token.bytes is None else self._decoder.decode(bytes(token.bytes))
            at = text.find(piece) if incomplete is not None and piece else 0
            if incomplete is not None and at > 0:  # the text before the piece completes that character
                tokens[incomplete] = _extended(tokens[incomplete], text[:at])
                text = text[at:]
            # The text begins with the piece, or ends within it (a stop string cut the token).
            if text.startswith(piece) or (text and piece.startswith(text)):
                visible = text[: len(piece)]
                incomplete = len(tokens) if not visible else None
                tokens.append(self._token(token, visible))
                text = text[len(visible) :]
            # No bytes, only U+FFFD: the text has the character with a later token, or not at all.
            elif _INCOMPLETE in piece:
                incomplete = len(tokens)
                tokens.append(self._token(token, ""))
            else:
                # Not in the text: an end token, whose name the server lists but does not write.
                top = _alternatives(token, self._limit)
                tokens.append(Token(None, token.token, token.logprob, special=True, top=top))
        # The concatenation must equal the text in every case: protocols that send tokens alone would lose the rest.
        return _with_rest(tokens, text)

    def _token(self, listed: RemoteToken, visible: str) -> Token:
        own = listed.token.encode() if listed.bytes is None else bytes(listed.bytes)
        return Token(
            None,
            visible,
            listed.logprob,
            top=_alternatives(listed, self._limit),
            # Stored only where they differ, as `schemas.ir.Token` says.
            bytes=own if own != visible.encode() else None,
        )


def _with_rest(tokens: list[Token], text: str) -> tuple[Token, ...]:
    """The tokens, with the `text` that none of them accounts for added to the last one that is not special."""
    if text:
        last = next((place for place in reversed(range(len(tokens))) if not tokens[place].special), None)
        # Special tokens alone, but there is text: it gets a token without an id and probability.
        if last is None:
            return (Token(None, text), *tokens)
        tokens[last] = _extended(tokens[last], text)
    return tuple(tokens)


def _extended(token: Token, text: str) -> Token:
    own = token.text.encode() if token.bytes is None else token.bytes
    return msgspec.structs.replace(token, text=token.text + text, bytes=own)


def _alternatives(listed: RemoteToken, limit: int) -> tuple[TopToken, ...]:
    return tuple(_alternative(other) for other in (listed.top_logprobs or ())[:limit])


def _alternative(listed: RemoteTop) -> TopToken:
    own = None if listed.bytes is None else bytes(listed.bytes)
    # An alternative without a value: `TopToken` requires one.
    logprob = UNLIKELY if listed.logprob is None else listed.logprob
    return TopToken(None, listed.token, logprob, own if own != listed.token.encode() else None)


def _ranked(top: dict[str, float | None] | None) -> tuple[RemoteTop, ...]:
    """The alternatives of a completion's token, the most probable first."""
    found = ((token, logprob) for token, logprob in (top or {}).items() if logprob is not None)
    return tuple(RemoteTop(token, logprob) for token, logprob in sorted(found, key=lambda item: -item[1]))
