"""The header of a GGUF file: its metadata, and where its tensors lie.

Every count, length and offset is checked against the size of the file before anything is allocated or read: the file is
not trusted. Imports no torch, and reads no tensor.

Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian. All integers are unsigned.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any

import msgspec

from backends.native.checkpoints.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MOST_ENTRIES = 65_536  # metadata entries, and tensors, of a file
_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
_MOST_PARTS = 1024
_LONGEST_STRING = 16 << 20
_LONGEST_ARRAY = 1 << 24
# Value types of the metadata: id -> format of `struct`. Two more have a length: strings (8) and arrays (9).
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# The types whose values `gguf.quants.dequantize` computes.
_READ = (
    {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
    | {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"}
    | {"TQ1_0", "TQ2_0", "MXFP4"}
)
_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class Tensor(msgspec.Struct, frozen=True):
    """Where a tensor lies.

    Attributes:
        name: in the file, such as `blk.0.attn_q.weight`.
        shape: as in torch, slowest dimension first.
        kind: ggml's number of the type that its values are stored in.
        file: which file holds it; a model may be split into several.
        start: of its bytes, from the beginning of the file.
        size: bytes.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    file: Path
    start: int
    size: int


class Header(msgspec.Struct, frozen=True):
    """The header of a model of one or more files.

    Attributes:
        metadata: of the first file; strings, numbers, booleans, and lists of one of them.
        tensors: of all files, by name.
    """

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        """The model's architecture, in the words of GGUF: `llama`, `qwen2`, …"""
        return str(self.metadata["general.architecture"])

    def own(self, key: str) -> Any:
        """The value of a key of the architecture, such as `llama.context_length`; None if there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(file: Path) -> Header:
    """Read the header of a model; of a split one, `file` is its first part and the others lie beside it.

    Raises:
        CheckpointError: it is cut, damaged, or of a kind that is not read.
    """
    metadata, tensors = _read_part(file)
    parts = metadata.get("split.count", 1)
    for other in _other_parts(file, parts) if parts != 1 else ():
        _, more = _read_part(other)
        if twice := tensors.keys() & more.keys():
            raise CheckpointError(f"{other} holds the tensor '{min(twice)}' again, which {file.name} holds")
        tensors |= more
    if not isinstance(metadata.get("general.architecture"), str):
        raise CheckpointError(f"{file} does not say of which architecture it is (general.architecture)")
    return Header(metadata, tensors)


def _other_parts(file: Path, parts: Any) -> list[Path]:
    """The further files of a split model."""
    named = _PART.match(file.name)
    if named is None or not isinstance(parts, int) or int(named["count"]) != parts or parts > _MOST_PARTS:
        raise CheckpointError(
            f"{file} is one of {parts} parts and is not called so: name-00001-of-{parts:05d}.gguf is expected"
        )
    if int(named["number"]) != 1:
        raise CheckpointError(f"{file} is a later part of a model: name its first, number 00001")
    others = [file.with_name(f"{named['stem']}-{number:05d}-of-{parts:05d}.gguf") for number in range(2, parts + 1)]
    if absent := [other for other in others if not other.is_file()]:
        raise CheckpointError(f"{absent[0]} is missing: {file.name} is one of {parts} parts")
    return others


def _read_part(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        # Mapped: tokens are many small strings, and a model's tensors must not be read.
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Reader(file, content).read()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError:  # an empty file cannot be mapped
        raise CheckpointError(f"{file} is empty") from None


class _Reader:
    """Reads one file from front to back."""

    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self._file = file
        self._content = content
        self._size = len(content)
        self._place = 0

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The metadata and the tensors."""
        tensors, entries = self._read_counts()
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string()
            if key in metadata:
                raise self._wrong(f"has the key '{key}' twice")
            metadata[key] = self._value(self._number("I"))
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._wrong(f"has the alignment {alignment!r}")
        return metadata, self._tensors(tensors, alignment)

    def _read_counts(self) -> tuple[int, int]:
        if self._content[:4] != _MAGIC:
            raise self._wrong("is not a GGUF file: it does not begin with 'GGUF'")
        self._place = 4
        version = self._number("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "big-endian GGUF" if swapped in _VERSIONS else f"GGUF version {version}"
            raise self._wrong(f"is {kind}, which is not read: versions 2 and 3, little-endian, are")
        tensors, entries = self._number("Q"), self._number("Q")
        if max(tensors, entries) > _MOST_ENTRIES:
            raise self._wrong(
                f"claims {tensors:,} tensors and {entries:,} entries of metadata: more than any model has"
            )
        return tensors, entries

    def _tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        entries = {}
        for _ in range(count):
            name = self._string()
            dimensions = self._number("I")
            if not 0 < dimensions <= _MOST_DIMENSIONS:
                raise self._wrong(f"has the tensor '{name}' of {dimensions} dimensions")
            shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
            kind, offset = self._number("I"), self._number("Q")
            if name in entries:
                raise self._wrong(f"has the tensor '{name}' twice")
            entries[name] = (shape, kind, offset)
        data = -(-self._place // alignment) * alignment
        tensors = {}
        for name, (shape, kind, offset) in entries.items():
            size = self._bytes_of(name, shape, kind)
            start = data + offset
            if start + size > self._size:
                raise self._wrong(f"is cut: the tensor '{name}' ends at byte {start + size:,} of {self._size:,}")
            tensors[name] = Tensor(name, shape, kind, self._file, start, size)
        return tensors

    def _bytes_of(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        block, size = block_of(kind) or (0, 0)
        if not block:
            raise self._wrong(f"has the tensor '{name}' of the ggml type {kind}, which is not read")
        if shape[-1] % block or not math.prod(shape):
            raise self._wrong(f"has the tensor '{name}' of the shape {shape}, which is not of whole blocks")
        return math.prod(shape) // block * size

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(self._format(kind))
        kind, count = self._number("I"), self._number("Q")
        if count > _LONGEST_ARRAY:
            raise self._wrong(f"claims an array of {count:,} values")
        if kind == _STRING:
            # Each has at least its length: an array of more strings than fit is found before it is made.
            self._require(8 * count)
            return self._strings(count)
        form = struct.Struct(f"<{count}{self._format(kind)}")
        return list(form.unpack(self._take(form.size)))

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._wrong(f"has metadata of the type {kind}, which is unknown, or arrays in arrays")
        return _SCALARS[kind]

    def _string(self) -> str:
        length = self._number("Q")
        if length > _LONGEST_STRING:
            raise self._wrong(f"claims a string of {length:,} bytes")
        # A damaged name or token must not stop the reading: vocabularies in the wild hold bytes that are no UTF-8.
        return self._take(length).decode(errors="replace")

    def _strings(self, count: int) -> list[str]:
        """`_string`, `count` times: vocabularies have hundreds of thousands."""
        content, place, size = self._content, self._place, self._size
        length_of = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            if place + 8 > size:
                break
            start = place + 8
            place = start + length_of(content, place)[0]
            if place > size or place - start > _LONGEST_STRING:
                break
            strings.append(content[start:place].decode(errors="replace"))
        if len(strings) < count:
            raise self._wrong("is cut or damaged: an array of strings has no end")
        self._place = place
        return strings

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, size: int) -> bytes:
        self._require(size)
        taken = self._content[self._place : self._place + size]
        self._place += size
        return taken

    def _require(self, size: int) -> None:
        if self._place + size > self._size:
            raise self._wrong(f"is cut: its header goes on behind byte {self._size:,}, its last")

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._file} {what}")


def block_of(kind: int) -> tuple[int, int] | None:
    """The values of a block and its bytes, for a type whose values can be had; None for others."""
    # Imported here: the package brings writers and editors, too.
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        return None
    return GGML_QUANT_SIZES[known] if known.name in _READ else None


def find_models(folder: Path) -> list[Path]:
    """The GGUF files of a folder that are models: no later parts of split ones, and no projectors of images."""
    return sorted(file for file in folder.glob("*.gguf") if not file.name.startswith("mmproj") and _is_first(file))


def _is_first(file: Path) -> bool:
    named = _PART.match(file.name)
    return named is None or int(named["number"]) == 1
