"""Incremental detokenization: token ids to tokens with text, without splitting a character.

A token whose bytes end inside a UTF-8 character has the text "" and is held back until the character is complete; the
token that completes it carries its text. Stop strings are in `backends.detokenization.stops`.
"""

from __future__ import annotations

import codecs
from typing import Protocol

import msgspec

from schemas.ir import Token, TopToken


class Piece(msgspec.Struct, frozen=True):
    """An entry of a vocabulary.

    `text` is the name of a special token, else the decoded bytes. `whole`: the bytes are complete UTF-8, so that the
    text does not depend on other tokens.
    """

    id: int
    bytes: bytes
    text: str
    special: bool = False
    whole: bool = True


def piece(id: int, raw: bytes, *, special: bool = False) -> Piece:
    """Make the entry of a token with these bytes."""
    text = raw.decode("utf-8", "replace")
    # Bytes that do not survive the round trip hold a part of a character, or are no UTF-8.
    return Piece(id, raw, text, special, whole=special or text.encode() == raw)


class Vocabulary(Protocol):
    """The tokens of a model, by id."""

    def piece(self, id: int) -> Piece:
        """The entry of a token; an empty one for an unknown id."""
        ...


class TextDecoder(Protocol):
    """Decodes the tokens that are not special to text, as far as their characters are complete."""

    @property
    def pending(self) -> bool:
        """Whether bytes were pushed whose text was not returned yet."""
        ...

    def push(self, piece: Piece) -> str:
        """Add a token; the text that is complete with it."""
        ...

    def flush(self) -> str:
        """The text of the pending bytes, with replacement characters for broken ones."""
        ...


class Utf8Decoder:
    """The decoder for vocabularies where a text is the concatenation of its tokens' bytes."""

    __slots__ = ("_utf8", "pending")

    def __init__(self) -> None:
        # "replace": invalid bytes become U+FFFD at once, so that only an incomplete character is ever held back.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending = False

    def push(self, piece: Piece) -> str:
        """Add a token; the text that is complete with it."""
        # Fast path: nearly every token is whole, and its text was decoded when the vocabulary was made.
        if piece.whole and not self.pending:
            return piece.text
        text = self._utf8.decode(piece.bytes)
        self.pending = bool(self._utf8.getstate()[0])  # bytes that the decoder holds
        return text

    def flush(self) -> str:
        """A replacement character (U+FFFD) for the character that was not completed."""
        self.pending = False
        return self._utf8.decode(b"", final=True)


class Detokenizer:
    """Turns the token ids of one sequence into tokens with text.

    Args:
        vocabulary: of the model.
        decoder: a new `Utf8Decoder` by default; vocabularies whose text is not the concatenation of bytes need another.
    """

    __slots__ = ("_decoder", "_held", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, decoder: TextDecoder | None = None) -> None:
        self._vocabulary = vocabulary
        self._decoder: TextDecoder = decoder or Utf8Decoder()
        self._held: list[Token] = []

    def feed(self, id: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Token]:
        """Add an id; the tokens whose text is complete with it, in order."""
        piece = self._vocabulary.piece(id)
        # A special token has no bytes in the text, so it does not complete or break a pending character.
        if piece.special:
            token = Token(id, piece.text, logprob, special=True, top=top)
        else:
            text = self._decoder.push(piece)
            # `bytes` only where they differ from the text: whole tokens, the common case, carry them once.
            token = Token(id, text, logprob, top=top, bytes=None if text == piece.text and piece.whole else piece.bytes)
        if not self._held and not self._decoder.pending:  # the usual case
            return [token]
        # Through `_held` else: a special token behind an incomplete character must not overtake it.
        self._held.append(token)
        return [] if self._decoder.pending else self._release()

    def close(self) -> list[Token]:
        """The tokens still held back. The last one that is not special carries the rest of a broken character."""
        if self._decoder.pending:
            rest = self._decoder.flush()
            # There is one, since only a token that is not special can leave bytes pending.
            place = max(place for place, token in enumerate(self._held) if not token.special)
            token = self._held[place]
            self._held[place] = msgspec.structs.replace(token, text=token.text + rest)
        return self._release()

    def _release(self) -> list[Token]:
        released, self._held = self._held, []
        return released
