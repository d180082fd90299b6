"""Tensors in files: what numpy, safetensors and torch write is read exactly, and anything else is refused."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from contextlib import suppress
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st

from backends.native.multimodal.tensors import BadTensor, read_tensor

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7


def npy(values: Any) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("write", [npy, lambda values: safetensors.numpy.save({"x": values})])
def test_numbers_are_read_exactly(write: Any, dtype: str) -> None:
    values = (VALUES * 10).astype(dtype)
    found = read_tensor(write(values))
    assert found.dtype == (np.float32 if dtype[0] == "f" else np.int64)
    assert (found == values.astype(found.dtype)).all()


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_what_torch_saves(dtype: str) -> None:
    import torch

    whole = (torch.from_numpy(VALUES) * 10).to(getattr(torch, dtype))
    for saved in (whole, whole[1], whole.chunk(2)[1], whole[:1, 1:2], whole[:0]):
        file = BytesIO()
        torch.save(saved, file)
        expected = saved.float() if saved.is_floating_point() else saved.long()
        assert torch.equal(torch.from_numpy(read_tensor(file.getvalue()).copy()), expected)


@pytest.mark.torch
def test_what_torch_saves_of_other_things() -> None:
    import torch

    whole = torch.from_numpy(VALUES)
    parameter = BytesIO()
    torch.save(torch.nn.Parameter(whole), parameter)
    assert (read_tensor(parameter.getvalue()) == VALUES).all()
    transposed: Any = whole.transpose(0, 1)
    for saved, why in (
        (transposed, "contiguous"),
        ({"image_embeds": whole}, "something else"),
        ([whole, whole], "something else"),
        (whole.to_sparse(), "something else"),
        (torch.tensor([True]), "something else"),
        (3, "something else"),
    ):
        file = BytesIO()
        torch.save(saved, file)
        with pytest.raises(BadTensor, match=why):
            read_tensor(file.getvalue())
    old = BytesIO()
    torch.save(whole, old, _use_new_zipfile_serialization=False)
    with pytest.raises(BadTensor, match="neither"):
        read_tensor(old.getvalue())


def archive(pickled: bytes, compression: int = 0, **files: bytes) -> bytes:
    file = BytesIO()
    with ZipFile(file, "w", compression) as found:
        found.writestr("archive/data.pkl", pickled)
        for name, data in files.items():
            found.writestr(f"archive/{name}", data)
    return file.getvalue()


class Runs:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit",))


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps(Runs(), 2),
        pickle.dumps(OrderedDict(), 2),
        b"\x80\x02r\xff\xff\xff\x7f.",  # a place of the memo that takes gigabytes where it is a list
        b"\x80\x02" + b"(" * 900 + b".",
        b"\x80\x02." + b"t.",
        b"\x80\x02Q.",
        b"",
        b"\xff" * 50,
        b"x" * 2000,
    ],
)
def test_a_pickle_is_never_run(pickled: bytes) -> None:
    with pytest.raises(BadTensor):
        read_tensor(archive(pickled))


def test_archives_and_headers_are_bounded() -> None:
    with pytest.raises(BadTensor, match="compressed"):
        read_tensor(archive(b"", ZIP_DEFLATED))
    with pytest.raises(BadTensor, match="too many"):
        read_tensor(archive(b"", **{f"f{number}": b"" for number in range(100)}))
    with pytest.raises(BadTensor, match="big-endian"):
        read_tensor(archive(b"", byteorder=b"big"))
    for shape in (
        "(9999999999999,)",
        "(0, 99999999999999999999)",
        "(0, 9999999999, 9999999999)",
        "(1,1,1,1,24)",
        "(" * 300,
        "-" * 800 + "1",
    ):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        with pytest.raises(BadTensor):
            read_tensor(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + VALUES.tobytes())
    for values in (np.array([{}]), np.array(["a"]), np.asfortranarray(VALUES), VALUES.astype(">f4")):
        with pytest.raises(BadTensor):
            read_tensor(npy(values))
    with pytest.raises(BadTensor, match="2 tensors"):
        read_tensor(safetensors.numpy.save({"a": VALUES[0], "b": VALUES[1]}))


FILES = [npy(VALUES), safetensors.numpy.save({"x": VALUES}), archive(pickle.dumps(("x", 1), 2), data=b"")]


@example(FILES[1], 10, b"\x80", 0)  # a name that is not UTF-8
@given(st.sampled_from(FILES), st.integers(0, 200), st.binary(max_size=8), st.integers(0, 300))
def test_a_damaged_file_is_a_tensor_or_refused(file: bytes, place: int, other: bytes, end: int) -> None:
    for damaged in (file[:place] + other + file[place + len(other) :], file[:end]):
        with suppress(BadTensor):
            read_tensor(damaged)
