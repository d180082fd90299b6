"""Tensors as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.triton.tensors import DATATYPES, INPUTS, OUTPUTS, inputs, outputs, pack, unpack
from schemas.catalog import ModelCard, TensorNames

ELEMENTS = {
    "BYTES": st.text(),
    "BOOL": st.booleans(),
    "UINT32": st.integers(0, 2**32 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32, allow_nan=False),
}


@given(st.data(), st.sampled_from(sorted(set(DATATYPES.values()))))
def test_unpack_is_the_inverse_of_pack(data: st.DataObject, datatype: str) -> None:
    values = data.draw(st.lists(ELEMENTS[datatype]))
    assert unpack(datatype, pack(datatype, values)) == values


@given(st.binary(), st.sampled_from(sorted(ELEMENTS)))
def test_any_bytes_are_unpacked_or_refused(data: bytes, datatype: str) -> None:
    try:
        values = unpack(datatype, data)
    except ValueError:
        return
    if datatype in ("BYTES", "UINT32"):
        assert pack(datatype, values) == data


def test_the_binary_form_of_strings() -> None:
    assert pack("BYTES", ["hé", ""]) == b"\x03\x00\x00\x00h\xc3\xa9\x00\x00\x00\x00"


@pytest.mark.parametrize("names", [TensorNames(), TensorNames({"PROMPT": "text_input"}, {"TEXT": "text_output"})])
def test_tensors_that_are_not_renamed_keep_their_names(names: TensorNames) -> None:
    card = ModelCard(name="m", tensors=names)
    assert list(inputs(card).values()) == list(INPUTS)
    assert list(outputs(card).values()) == list(OUTPUTS)
    assert set(inputs(card)) >= set(names.inputs)
    assert set(outputs(card)) >= set(names.outputs)
