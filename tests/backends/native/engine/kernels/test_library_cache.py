"""Nothing is loaded from the cache that another user could have written, or that is not what was built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from backends.native.engine.kernels import library_cache
from backends.native.engine.kernels.library_cache import (
    FOLDER_VARIABLE,
    LibraryCache,
    UntrustedFolderError,
    default_folder,
    why_untrusted,
)

KEY = "seven-0123-"
CONTENT = b"a library"


@pytest.fixture
def cache(tmp_path: Path) -> LibraryCache:
    return LibraryCache.at(tmp_path / "cache")


@pytest.fixture(autouse=True)
def _log_every_reason() -> None:
    library_cache._warn.cache_clear()


def keep(cache: LibraryCache, content: bytes = CONTENT) -> Path:
    with cache.building() as folder:
        built = folder / "linked.so"
        built.write_bytes(content)
        return cache.keep(built, KEY)


def rejections(cache: LibraryCache) -> list[str]:
    """Why each library of the key was rejected by a search that found none."""
    with capture_logs() as logs:
        assert cache.find(KEY) is None
    return [entry["why"] for entry in logs if entry["event"] == "kernel.cached_library_rejected"]


def test_what_was_kept_is_found_by_its_key(cache: LibraryCache) -> None:
    kept = keep(cache)
    assert cache.find(KEY) == kept
    assert kept.read_bytes() == CONTENT
    assert cache.find("eight-0123-") is None
    assert [path.name for path in kept.parent.iterdir()] == [kept.name], "no temporary folder stays"


def test_nobody_else_may_write_to_what_is_made(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = LibraryCache.at(tmp_path / "cache")
        kept = keep(cache)
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    assert kept.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_library_that_others_can_write_is_removed(cache: LibraryCache, mode: int) -> None:
    kept = keep(cache)
    kept.chmod(mode)
    assert rejections(cache) == [f"others can write to it (mode {mode:04o})"]
    assert not kept.exists()


def owned_by(owner: int, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let `lstat` say that paths which end with `name` belong to user `owner`."""
    lstat = Path.lstat

    def pretended(path: Path) -> os.stat_result:
        status = lstat(path)
        fields = list(status)
        if path.name.endswith(name):
            fields[4] = owner
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", pretended)


def test_a_library_of_another_user_is_removed(cache: LibraryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(cache)
    owned_by(4321, monkeypatch, ".so")
    assert rejections(cache) == ["it belongs to another user (4321)"]
    assert not kept.exists()


def test_a_library_of_root_is_used(cache: LibraryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(cache)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    owned_by(0, monkeypatch, ".so")
    assert cache.find(KEY) == kept


def test_a_symbolic_link_is_removed_and_not_followed(cache: LibraryCache, tmp_path: Path) -> None:
    kept = keep(cache)
    elsewhere = kept.replace(tmp_path / "planted.so")
    kept.symlink_to(elsewhere)
    assert rejections(cache) == ["it is not a regular file"]
    assert not kept.is_symlink()
    assert elsewhere.read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], b"another library", CONTENT + b"\0"])
def test_a_truncated_or_overwritten_library_is_removed(cache: LibraryCache, content: bytes) -> None:
    kept = keep(cache)
    kept.write_bytes(content)
    assert rejections(cache) == ["it is not what was built: truncated, or overwritten"]
    assert not kept.exists()


def test_a_whole_library_beside_a_broken_one_is_found(cache: LibraryCache) -> None:
    kept = keep(cache)
    (kept.parent / f"{KEY}0000.so").write_bytes(b"broken")
    assert cache.find(KEY) == kept


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(UntrustedFolderError, match=f"others can write to it \\(mode {mode:04o}\\)"):
        LibraryCache.at(tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned_by(4321, monkeypatch, tmp_path.name)
    with pytest.raises(UntrustedFolderError, match="belongs to another user"):
        LibraryCache.at(tmp_path)


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UntrustedFolderError, match="not a folder"):
        LibraryCache.at(tmp_path / "link")


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    with pytest.raises(UntrustedFolderError, match=f"everybody can rename what is in .*shared \\(mode {mode:04o}\\)"):
        LibraryCache.at(tmp_path / "shared" / "cache")
    (tmp_path / "shared").chmod(mode | 0o1000)
    LibraryCache.at(tmp_path / "shared" / "cache")


def no_home() -> Any:
    raise RuntimeError("no home")


@pytest.mark.parametrize("unusable", ["a file is in its place", "others can write to it", "the user has no home"])
def test_without_a_folder_a_private_temporary_one_is_used(
    unusable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "interlingua"
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if unusable == "a file is in its place":
        folder.write_text("")
    elif unusable == "others can write to it":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(library_cache.Path, "home", no_home)
    with capture_logs() as logs:
        cache = LibraryCache.default()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("kernel.cache_not_used", "warning")]
    with cache.building() as private:
        assert private.stat().st_mode & 0o777 == 0o700
        assert not private.is_relative_to(folder)
        built = private / "linked.so"
        built.write_bytes(CONTENT)
        assert cache.keep(built, KEY).parent == private
    assert not private.exists()
    assert cache.find(KEY) is None
    assert not folder.is_dir() or not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_read_but_not_built_in(
    cache: LibraryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(cache)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert cache.find(KEY) == kept
    with capture_logs() as logs, cache.building() as private:
        assert private.parent != cache.folder
    assert "cannot be written" in logs[0]["why"]


def test_the_folder_is_the_named_one_or_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_folder() == Path("/home/somebody/.cache/interlingua")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "interlingua"
    monkeypatch.setenv(FOLDER_VARIABLE, "/kernels")
    assert default_folder() == Path("/kernels")


def test_what_does_not_exist_cannot_be_judged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        why_untrusted(tmp_path / "nothing")
