"""Files that are written as memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gateway.storage.mapped_file import map_file


def test_a_new_file_is_zeros_with_its_space_reserved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    mapped = map_file(path, 100_000)
    assert mapped[:] == path.read_bytes() == bytes(100_000)
    assert path.stat().st_blocks * 512 >= 100_000
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_what_is_stored_is_read_from_the_file_and_kept(tmp_path: Path) -> None:
    map_file(tmp_path / "file", 8)[:2] = b"ab"
    assert (tmp_path / "file").read_bytes() == b"ab" + bytes(6)
    assert map_file(tmp_path / "file", 8)[:2] == b"ab"


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    map_file(tmp_path / "file", 8)
    with pytest.raises(ValueError, match="size"):
        map_file(tmp_path / "file", 16)


def test_without_space_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'file'}'"):
        map_file(tmp_path / "file", 8)
    assert [*tmp_path.iterdir()] == []


def test_without_a_path_it_is_memory() -> None:
    assert map_file(None, 8)[:] == bytes(8)
