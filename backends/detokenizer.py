"""Token ids to tokens with text, one at a time, never cutting a character in two.

Knows neither stop strings (`stops`) nor where a vocabulary comes from. A token whose bytes end inside a character has
the text "" and waits until the character is complete: the token that completes it carries it.
"""

from __future__ import annotations

import codecs
from typing import Protocol

import msgspec

from schemas.ir import Token, TopToken


class Piece(msgspec.Struct, frozen=True):
    """An entry of a vocabulary. `text` is a special token's name, otherwise what the bytes say on their own; `whole` if
    they say it without the help of other tokens.
    """

    id: int
    bytes: bytes
    text: str
    special: bool = False
    whole: bool = True


def piece(id: int, raw: bytes, *, special: bool = False) -> Piece:
    """The entry for a token of these bytes."""
    text = raw.decode("utf-8", "replace")
    return Piece(id, raw, text, special, whole=special or text.encode() == raw)


class Vocabulary(Protocol):
    """What every token says."""

    def piece(self, id: int) -> Piece:
        """The entry of a token; of an unknown id, an empty one."""
        ...


class TextDecoder(Protocol):
    """Turns ids that are not special into text as far as it is certain."""

    @property
    def pending(self) -> bool:
        """Whether something was pushed that is not told yet."""
        ...

    def push(self, piece: Piece) -> str:
        """The text that became certain."""
        ...

    def flush(self) -> str:
        """The text of what is pending, as good as it goes."""
        ...


class Utf8Decoder:
    """For vocabularies whose text is the concatenation of their tokens' bytes."""

    __slots__ = ("_utf8", "pending")

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending = False

    def push(self, piece: Piece) -> str:
        """The text that became certain."""
        if piece.whole and not self.pending:
            return piece.text
        text = self._utf8.decode(piece.bytes)
        self.pending = bool(self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        """A replacement character for the one that was not completed."""
        self.pending = False
        return self._utf8.decode(b"", final=True)


class Detokenizer:
    """Turns the ids of one sequence into tokens.

    Args:
        vocabulary: what every id says.
        decoder: how ids become text; `Utf8Decoder` unless the vocabulary needs another.
    """

    __slots__ = ("_decoder", "_held", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, decoder: TextDecoder | None = None) -> None:
        self._vocabulary = vocabulary
        self._decoder: TextDecoder = decoder or Utf8Decoder()
        self._held: list[Token] = []

    def feed(self, id: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Token]:
        """The tokens that are certain with this one."""
        piece = self._vocabulary.piece(id)
        if piece.special:
            token = Token(id, piece.text, logprob, special=True, top=top)
        else:
            text = self._decoder.push(piece)
            token = Token(id, text, logprob, top=top, bytes=None if text == piece.text and piece.whole else piece.bytes)
        self._held.append(token)
        return [] if self._decoder.pending else self._release()

    def close(self) -> list[Token]:
        """The tokens still held; the last of them that is not special carries what is left of a broken character."""
        if self._decoder.pending:
            rest = self._decoder.flush()
            place = max(place for place, token in enumerate(self._held) if not token.special)
            token = self._held[place]
            self._held[place] = msgspec.structs.replace(token, text=token.text + rest)
        return self._release()

    def _release(self) -> list[Token]:
        released, self._held = self._held, []
        return released
