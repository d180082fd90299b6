"""Images by path: only regular files below the folder, and no symbolic links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.images.files import read_file
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest
from tests.backends.images.audit import recorded_events


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.png").write_bytes(b"a")
    (folder / "inner" / "b c.png").write_bytes(b"b")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "images-too").mkdir()
    (tmp_path / "images-too" / "c.png").write_bytes(b"secret")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "inside.png").symlink_to("a.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.png")
    return folder


@pytest.mark.parametrize("path", ["a.png", "{}/a.png", "file://{}/a.png"])
def test_a_file_in_the_folder_is_read(folder: Path, path: str) -> None:
    assert read_file(path.format(folder), ImageOptions(folder=str(folder))) == b"a"


def test_a_file_in_a_subfolder_is_read(folder: Path) -> None:
    assert read_file("inner/b c.png", ImageOptions(folder=f"{folder}/")) == b"b"


NOT_READ = [
    *("missing.png", "../secret.png", "inner/../a.png", "inner/../../secret.png", "./a.png", "inner//b c.png"),
    *("{}/../secret.png", "{}-too/c.png", "/etc/passwd", "/dev/zero", "/proc/self/environ", "file:///etc/passwd"),
    *("link.png", "inside.png", "up/secret.png", "pipe.png", "inner", "inner/", "a.png/", "a.png/b", ""),
    *("a.png\0.jpg", "..\\secret.png", "%2e%2e/secret.png", "~/a.png", "file://host/a.png", "FILE:///etc/passwd"),
    "x" * 5000,
]


@pytest.mark.parametrize("path", NOT_READ)
def test_other_paths_are_refused_with_one_text(folder: Path, path: str) -> None:
    with recorded_events() as seen, pytest.raises(InvalidRequest) as refused:
        read_file(path.format(folder), ImageOptions(folder=str(folder)))
    assert refused.value.message == "There is no such image that may be read."
    assert refused.value.__cause__ is None
    opened = [str(arguments[0]) for event, arguments in seen if event == "open"]
    assert all(name == str(folder) or "/" not in name for name in opened), "opens stay inside the folder"


def test_without_a_configured_folder_nothing_is_opened(folder: Path) -> None:
    with recorded_events() as seen, pytest.raises(InvalidRequest):
        read_file(str(folder / "a.png"), ImageOptions())
    assert not seen


def test_a_file_over_the_limit_is_refused(folder: Path) -> None:
    (folder / "large.png").write_bytes(b"x" * 11)
    with pytest.raises(InvalidRequest, match="larger than 10 bytes"):
        read_file("large.png", ImageOptions(folder=str(folder), max_bytes=10))
