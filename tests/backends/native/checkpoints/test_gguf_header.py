"""The header of GGUF files: what ggml's own package wrote comes back, and no damaged or hostile file is believed."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_header import find_models, read_header
from tests.backends.native.checkpoints.gguf_files import TEMPLATE, vocabulary, write_llama

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_1")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gguf") / "model.gguf", kinds=KINDS)


def test_keys_and_tensors_are_those_that_were_written(file: Path) -> None:
    header = read_header(file)
    tokens, merges = vocabulary()
    assert header.architecture == "llama"
    assert (header.own("context_length"), header.own("absent")) == (64, None)
    assert header.metadata["tokenizer.ggml.tokens"] == tokens
    assert header.metadata["tokenizer.ggml.merges"] == merges
    assert header.metadata["tokenizer.chat_template"] == TEMPLATE
    expected = {
        tensor.name: (
            tuple(map(int, reversed(tensor.shape))),
            int(tensor.tensor_type),
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in GGUFReader(file).tensors
    }
    assert {name: (t.shape, t.kind, t.start, t.size) for name, t in header.tensors.items()} == expected


def refusal(tmp_path: Path, content: bytes) -> str:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        read_header(tmp_path / "m.gguf")
    return str(raised.value).replace(f"{tmp_path / 'm.gguf'} ", "")


def start(version: int = 3, tensors: int = 0, entries: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


ARCHITECTURE = text("general.architecture") + struct.pack("<I", 8) + text("llama")
HUGE = 2**63


def tensor(name: str, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04", "is not a GGUF file"),
        (b"GGUF", "is cut"),
        (start(1), "is GGUF version 1, which is not read"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian GGUF"),
        (start(tensors=HUGE), "more than any model has"),
        (start(entries=HUGE), "more than any model has"),
        (start(entries=1) + struct.pack("<Q", HUGE), "claims a string of"),
        (start(entries=1) + struct.pack("<Q", 1 << 20), "is cut"),
        (start(entries=1) + text("k") + struct.pack("<I", 99), "of the type 99"),
        (start(entries=1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "arrays in arrays"),
        (start(entries=1) + text("k") + struct.pack("<IIQ", 9, 8, HUGE), "claims an array of"),
        (start(entries=1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 20), "is cut"),
        (start(entries=1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 20), "is cut"),
        (start(entries=1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, HUGE), "an array of strings has no end"),
        (start(entries=2) + ARCHITECTURE + ARCHITECTURE, "has the key 'general.architecture' twice"),
        (start(), "of which architecture"),
        (start(entries=1) + text("general.alignment") + struct.pack("<II", 4, 0), "has the alignment 0"),
        (start(tensors=1) + tensor("t", *[1] * 5), "of 5 dimensions"),
        (start(tensors=1) + tensor("t", 4, kind=77), "of the ggml type 77, which is not read"),
        (start(tensors=1) + tensor("t", 33, kind=8), "not of whole blocks"),
        (start(tensors=1) + tensor("t", 0), "not of whole blocks"),
        (start(tensors=1) + tensor("t", 1 << 40, 1 << 40), "is cut: the tensor 't' ends at byte"),
        (start(tensors=1) + tensor("t", 1, offset=HUGE), "is cut: the tensor 't'"),
        (start(tensors=2) + tensor("t", 1) + tensor("t", 1), "has the tensor 't' twice"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    assert why in refusal(tmp_path, content)


def test_a_file_whose_download_was_cut_says_so(file: Path, tmp_path: Path) -> None:
    assert "is cut: the tensor 'blk.1.ffn_down.weight' ends at byte" in refusal(tmp_path, file.read_bytes()[:-1])


@pytest.mark.slow
@settings(max_examples=200)
@given(place=st.integers(0, 3000), byte=st.integers(0, 255))
def test_no_changed_byte_makes_another_error(place: int, byte: int, file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[place] = byte
    (file.parent / "changed.gguf").write_bytes(changed)
    try:
        header = read_header(file.parent / "changed.gguf")
    except CheckpointError:
        return
    assert all(t.start + t.size <= len(changed) and math.prod(t.shape) for t in header.tensors.values())


def test_the_parts_of_a_split_model_are_read_together(tmp_path: Path) -> None:
    def part(number: int) -> Path:
        return tmp_path / f"m-{number:05d}-of-00002.gguf"

    def split(name: str) -> bytes:
        count = text("split.count") + struct.pack("<IH", 2, 2)
        head = start(tensors=1, entries=2) + ARCHITECTURE + count + tensor(name, 1)
        return head.ljust(-(-len(head) // 32) * 32, b"\0") + b"\0" * 4

    part(1).write_bytes(split("a"))
    with pytest.raises(CheckpointError, match=r"-00002-of-00002\.gguf is missing: m-00001-of-00002\.gguf is one of 2"):
        read_header(part(1))
    part(2).write_bytes(split("b"))
    assert {name: found.file for name, found in read_header(part(1)).tensors.items()} == {"a": part(1), "b": part(2)}
    assert find_models(tmp_path) == [part(1)]
    with pytest.raises(CheckpointError, match="is a later part"):
        read_header(part(2))
    part(2).write_bytes(split("a"))
    with pytest.raises(CheckpointError, match="holds the tensor 'a' again"):
        read_header(part(1))
    part(1).rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"name-00001-of-00002\.gguf is expected"):
        read_header(tmp_path / "other.gguf")
