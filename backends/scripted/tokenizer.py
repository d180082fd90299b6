"""A toy tokenizer: fixed, reversible, and with the difficulties of real ones.

Words include their leading space, unknown words are split into pairs of letters, and characters beyond ASCII into
bytes, so that a character spans several tokens.
"""

from __future__ import annotations

from functools import lru_cache
from string import ascii_letters, ascii_lowercase, digits

from backends.detokenization.detokenizer import Piece, piece
from schemas.ir import TokenSpan

# ruff: noqa: SIM905 - a long word list reads better as text

UNKNOWN, EOS = 0, 1
_NAMES = ("<unk>", "</s>")
_WORDS = (
    "the quick brown fox jumps over lazy dog hello world one two three four five six seven eight nine ten this is an "
    "answer from scripted backend and it says same thing every time what how are you good morning paris tokyo berlin "
    "weather in for me tell user system assistant tool let think about that first with all have not be to of on at a i "
    "please sorry but can help capital france my your name test stop end"
).split()


def _vocabulary() -> list[Piece]:
    words = [*_WORDS, *(word.capitalize() for word in _WORDS)]
    texts = [
        *(f" {word}" for word in words),
        *words,
        *(first + second for first in ascii_lowercase for second in ascii_lowercase),
        *(f" {letter}" for letter in ascii_letters + digits),
    ]
    # All 256 bytes are tokens, so every text can be encoded.
    raws = [*(text.encode() for text in texts), *(bytes([byte]) for byte in range(256))]
    ordinary = dict.fromkeys(raws)  # each once, in this order
    specials = [piece(id, name.encode(), special=True) for id, name in enumerate(_NAMES)]
    return [*specials, *(piece(len(_NAMES) + place, raw) for place, raw in enumerate(ordinary))]


_PIECES = _vocabulary()
_IDS = {entry.bytes: entry.id for entry in _PIECES if not entry.special}
_LONGEST = max(map(len, _IDS))


# Cached, because the same texts are encoded again and again: fixed answers, and prompts that tests repeat.
@lru_cache(1024)
def _encode(text: str) -> tuple[int, ...]:
    raw = text.encode()
    ids: list[int] = []
    start = 0
    while start < len(raw):
        # Greedy longest match. It always finds an end, since every single byte is in the vocabulary.
        end = next(end for end in range(min(len(raw), start + _LONGEST), start, -1) if raw[start:end] in _IDS)
        ids.append(_IDS[raw[start:end]])
        start = end
    return tuple(ids)


class ToyTokenizer:
    """Encodes by longest match; decoding an encoded text gives the text."""

    size = len(_PIECES)

    def piece(self, id: int) -> Piece:
        """The entry of a token; `<unk>` for an unknown id."""
        return _PIECES[id] if 0 <= id < len(_PIECES) else _PIECES[UNKNOWN]

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text. The bytes of the tokens concatenate to it."""
        return _encode(text)

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of ids, without special tokens."""
        return b"".join(entry.bytes for entry in map(self.piece, ids) if not entry.special).decode("utf-8", "replace")

    def spans(self, text: str) -> tuple[TokenSpan, ...]:
        """The tokens of a text, each with the range of characters that it is part of."""
        spans: list[TokenSpan] = []
        start = 0  # bytes
        raw = text.encode()
        for id in self.encode(text):
            end = start + len(self.piece(id).bytes)
            # A token that starts inside a character is given that character: "ignore" drops the half in front of it.
            first = len(raw[:start].decode("utf-8", "ignore"))
            last = first + len(raw[start:end].decode("utf-8", "replace")) if self.piece(id).whole else first + 1
            spans.append(TokenSpan(id, text[first:last], first, last))
            start = end
        return tuple(spans)
