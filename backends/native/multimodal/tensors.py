"""Reads a tensor from a file that a client sent: what `numpy.save`, safetensors or `torch.save` write. No torch.

Such a file is not trusted. The one of `torch.save` holds a pickle, a program, which is never run: of its instructions
the few that write a tensor are followed by `_TorchFile`, which makes nothing but texts, numbers and tuples.
"""

from __future__ import annotations

import pickletools
import re
from io import BytesIO
from math import prod
from typing import Annotated, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray

_NPY_HEADER = re.compile(
    rb"\{'descr': '(?P<type><[fi][248])', 'fortran_order': False, 'shape': \((?P<shape>[\d, ]{0,80})\), \} *\n"
)
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
_ZIP_ENTRY = b"PK\x01\x02"
_MAX_ENTRIES = 64
"""Files in an archive; `torch.save` writes seven for a tensor."""
_MAX_HEADER = 1000
"""Bytes that describe the one tensor; the usual number is 200."""
_MAX_RANK = 4
_LONGEST = 1 << 15
"""Elements of one dimension; four such dimensions are fewer than numpy's most."""
_DAMAGED = (BadZipFile, KeyError, ValueError, OverflowError, NotImplementedError, RuntimeError, OSError, EOFError)
"""What `zipfile` raises for an archive that it cannot read."""
_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "torch DoubleStorage": "<f8",
    "torch FloatStorage": "<f4",
    "torch HalfStorage": "<f2",
    "torch BFloat16Storage": "<u2",
    "torch LongStorage": "<i8",
    "torch IntStorage": "<i4",
}
"""The element types of safetensors and of torch, in numpy's notation; bfloat16, which numpy lacks, by its bits."""
_BFLOAT16 = ("BF16", "torch BFloat16Storage")

Size = Annotated[int, msgspec.Meta(ge=0)]


class BadTensor(Exception):
    """The file cannot be read as one tensor; the text says why, in words for the client."""


class _Header(msgspec.Struct, frozen=True):
    """A tensor's entry in the header of a safetensors file."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


def read_tensor(data: bytes) -> NDArray[Any]:
    """The tensor in a file: float32 for numbers of any floating-point type, int64 for integers.

    Raises:
        BadTensor: the file is damaged, or not in one of the three formats, or holds something else.
    """
    if data.startswith(_NPY):
        return _widened(_read_npy(data))
    if data.startswith(_ZIP):
        return _widened(_read_torch(data))
    return _widened(_read_safetensors(data))


def _read_npy(data: bytes) -> NDArray[Any]:
    # Magic, two bytes of the version, and the length of the header: two bytes, from version 2 on four.
    start = 10 if data[6:7] == b"\1" else 12
    end = start + int.from_bytes(data[8:start], "little")
    # numpy's own reader parses a literal of Python; this is the form in which it writes an array's.
    header = _NPY_HEADER.fullmatch(data[start:end]) if end - start <= _MAX_HEADER else None
    if header is None:
        raise BadTensor("its .npy header is not that of an array of numbers, row by row")
    shape = tuple(int(size) for size in header["shape"].split(b",") if size.strip())
    return _shaped(data[end:], np.dtype(header["type"].decode()), shape)


def _read_safetensors(data: bytes) -> NDArray[Any]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(_MAX_HEADER, len(data) - 8):
        raise BadTensor("it is neither a .npy file, nor a safetensors file of one tensor, nor one of torch.save")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
        named = [msgspec.json.decode(each, type=_Header) for name, each in header.items() if name != "__metadata__"]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the latter for names that are not UTF-8
        raise BadTensor("its safetensors header cannot be read") from error
    if len(named) != 1:
        raise BadTensor(f"it holds {len(named)} tensors, not one")
    (found,) = named
    start, stop = found.data_offsets
    return _typed(data[8 + length :][start:stop], found.dtype, found.shape)


def _read_torch(data: bytes) -> NDArray[Any]:
    # Each entry becomes an object: they are counted, roughly, before the archive is read.
    if data.count(_ZIP_ENTRY) > _MAX_ENTRIES:
        raise BadTensor("its archive has too many entries")
    try:
        with ZipFile(BytesIO(data)) as archive:
            entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            # torch compresses nothing, so that no entry is longer than the file.
            if any(entry.compress_type != ZIP_STORED or entry.flag_bits & 1 for entry in entries.values()):
                raise BadTensor("its archive is compressed")
            if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
                raise BadTensor("it was saved on a big-endian machine")
            if "data.pkl" not in entries or entries["data.pkl"].file_size > _MAX_HEADER:
                raise BadTensor("it holds something else than one dense tensor")
            (kind, key), offset, shape, strides = _TorchFile(archive.read(entries["data.pkl"])).tensor()
            values = archive.read(entries[f"data/{key}"])
    except _DAMAGED as error:
        raise BadTensor("its archive is damaged") from error
    # As in torch, the stride of a dimension of one element says nothing.
    if any(each > 1 and strides[place] != prod(shape[place + 1 :]) for place, each in enumerate(shape)):
        raise BadTensor("it is not contiguous: save `tensor.contiguous()`")
    size = np.dtype(_TYPES[kind]).itemsize
    return _typed(values[offset * size : (offset + prod(shape)) * size], kind, shape)


class _TorchFile:
    """The pickle of a tensor: `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …)`.

    Args:
        data: the pickle.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[Any, Any] = {}

    def tensor(self) -> tuple[tuple[str, str], int, tuple[int, ...], tuple[int, ...]]:
        """The type and the key of the storage, and the tensor's offset, shape and strides in elements.

        Raises:
            BadTensor: it is something else.
        """
        try:
            name, (first, *rest) = self._value()
            # A parameter is made of its tensor.
            if name == "torch._utils _rebuild_parameter":
                name, (first, *rest) = first
            (kind, key), (offset, shape, strides, *_) = first, rest
            counts = (offset, *shape, *strides)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise BadTensor("it holds something else than one dense tensor") from error
        if name != "torch._utils _rebuild_tensor_v2" or kind not in _TYPES or not isinstance(key, str):
            raise BadTensor("it holds something else than one dense tensor")
        if len(shape) != len(strides) or any(type(each) is not int or not 0 <= each < 2**40 for each in counts):
            raise BadTensor("its shape is wrong")
        return (kind, key), offset, tuple(shape), tuple(strides)

    def _value(self) -> Any:
        """What the pickle stands for: a call is the pair of a name and the arguments, a storage its type and key."""
        for code, argument, _ in pickletools.genops(self._data):
            if code.name == "STOP":
                break
            self._follow(code.name, argument)
        (found,) = self._stack
        return found

    def _follow(self, instruction: str, argument: Any) -> None:
        stack = self._stack
        if instruction in _PUSHING:
            stack.append(_PUSHING[instruction] if argument is None else argument)
        elif instruction == "BINPUT":
            self._memo[argument] = stack[-1]
        elif instruction == "BINGET":
            stack.append(self._memo[argument])
        elif instruction == "MARK":
            self._marks.append(len(stack))
        elif instruction in _TUPLES:
            start = self._marks.pop() if instruction == "TUPLE" else len(stack) - _TUPLES[instruction]
            stack[start:] = [tuple(stack[start:])]
        elif instruction == "REDUCE":
            stack[-2:] = [(stack[-2], stack[-1])]
        elif instruction == "BINPERSID":
            _, kind, key, _, _ = stack.pop()
            stack.append((kind, key))
        elif instruction != "PROTO":
            raise BadTensor("it holds something else than one dense tensor")


_PUSHING = {"NEWTRUE": True, "NEWFALSE": False} | dict.fromkeys(
    ("GLOBAL", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1")
)
"""The instructions of a pickle that put a value on its stack: this one, or their argument."""
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": 0}
"""The instructions that make a tuple -> how many values they take; "TUPLE" takes those behind a mark."""


def _typed(values: bytes, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if kind not in _TYPES:
        raise BadTensor(f"tensors of {kind} are not read")
    found = _shaped(values, np.dtype(_TYPES[kind]), shape)
    # A bfloat16 is the upper half of a float32.
    return (found.astype("<u4") << 16).view("<f4") if kind in _BFLOAT16 else found


def _shaped(values: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    # Without the second bound, a dimension of 0 would allow for others that numpy cannot hold.
    if len(shape) > _MAX_RANK or max(shape, default=0) > _LONGEST or prod(shape) * dtype.itemsize != len(values):
        raise BadTensor(f"its shape {list(shape)[: _MAX_RANK + 1]} does not fit its {len(values)} bytes")
    return np.frombuffer(values, dtype).reshape(shape)


def _widened(found: NDArray[Any]) -> NDArray[Any]:
    # Too large a float64 becomes infinite, which the caller refuses with the other values that are not finite.
    with np.errstate(over="ignore"):
        return found.astype(np.float32 if found.dtype.kind == "f" else np.int64)
