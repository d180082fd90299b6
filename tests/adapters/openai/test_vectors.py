"""Embedding vectors in base64."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.openai.vectors import decode_vector, encode_vector


def test_a_vector_is_little_endian_32_bit_floats() -> None:
    assert encode_vector((0.5, -1.0)) == "AAAAPwAAgL8="  # 0x3f000000, 0xbf800000


@given(st.lists(st.floats(width=32, allow_nan=False)).map(tuple))
def test_a_vector_survives_base64(vector: tuple[float, ...]) -> None:
    assert decode_vector(encode_vector(vector)) == vector


@pytest.mark.parametrize("data", ["AAAA*", "AAA", "AAAAPw==AAAA", "AAA="])
def test_what_is_no_base64_of_whole_floats_is_refused(data: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_vector(data)
