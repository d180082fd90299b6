"""Incremental detokenization, with a vocabulary of single bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backends.detokenization.detokenizer import Detokenizer, Piece, piece
from schemas.ir import Token

SPECIAL = 256


class Bytes:
    """A vocabulary of single bytes, and one special token."""

    def piece(self, id: int) -> Piece:
        return piece(id, b"<end>", special=True) if id == SPECIAL else piece(id, bytes([id]))


def detokenize(ids: list[int]) -> list[Token]:
    detokenizer = Detokenizer(Bytes())
    return [token for id in ids for token in detokenizer.feed(id)] + detokenizer.close()


def text(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens if not token.special)


@given(st.text())
def test_encoded_text_is_decoded_unchanged(source: str) -> None:
    assert text(detokenize(list(source.encode()))) == source


@given(st.lists(st.integers(0, SPECIAL), max_size=40))
def test_any_bytes_decode_as_they_do_together(ids: list[int]) -> None:
    tokens = detokenize(ids)
    assert [token.id for token in tokens] == ids
    raw = bytes(id for id in ids if id != SPECIAL)
    assert text(tokens) == raw.decode("utf-8", "replace")
    assert b"".join(t.bytes if t.bytes is not None else t.text.encode() for t in tokens if not t.special) == raw


def test_the_token_that_completes_a_character_carries_it() -> None:
    detokenizer = Detokenizer(Bytes())
    first, second, third = "東".encode()
    assert detokenizer.feed(first, -1.0) == []
    assert detokenizer.feed(second, -2.0) == []
    assert detokenizer.feed(third, -3.0) == [
        Token(first, "", -1.0, bytes=bytes([first])),
        Token(second, "", -2.0, bytes=bytes([second])),
        Token(third, "東", -3.0, bytes=bytes([third])),
    ]


def test_a_broken_character_comes_at_the_end_before_the_end_token() -> None:
    detokenizer = Detokenizer(Bytes())
    assert detokenizer.feed(0xE6) == []
    assert detokenizer.feed(SPECIAL) == []
    assert detokenizer.close() == [Token(0xE6, "\ufffd", bytes=b"\xe6"), Token(SPECIAL, "<end>", special=True)]
    assert detokenizer.close() == []
