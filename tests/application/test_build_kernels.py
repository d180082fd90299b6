"""`gateway build-kernels` lists what it compiled and fails if a kernel does not compile."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backends.native.engine.kernels import jit, library_cache
from backends.native.engine.kernels.libraries import Library
from gateway.cli import main
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small kernel in place of the product's sources."""
    (tmp_path / "seven.cpp").write_text('extern "C" int seven() { return 7; }')
    seven = Library("seven", "sevens are slower", {"seven": (ctypes.c_int,)}, tmp_path)
    monkeypatch.setattr(jit, "LIBRARIES", {"seven": seven})
    monkeypatch.delenv(jit.MARCH_VARIABLE, raising=False)
    library_cache._warn.cache_clear()
    return tmp_path


def build(folder: Path) -> Result:
    return CliRunner().invoke(main, ["build-kernels", "--into", str(folder)])


def test_kernels_are_built_into_a_folder(sources: Path) -> None:
    result = build(sources / "image")
    [library] = (sources / "image").iterdir()
    first, second = result.output.splitlines()
    assert (result.exit_code, second) == (0, f"  seven: {library}")
    assert first.startswith("Kernels for ")
    assert first.endswith("-march=native):")


def test_the_named_architecture_is_reported(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jit.MARCH_VARIABLE, "no-such-cpu")
    result = build(sources / "image")
    assert result.exit_code == 1
    assert "(-march=no-such-cpu):" in result.output
    assert "seven: not built: " in result.output


def test_a_kernel_that_does_not_compile_is_an_error(sources: Path) -> None:
    (sources / "seven.cpp").write_text("no C++")
    result = build(sources / "image")
    assert result.exit_code == 1
    assert "seven: not built: " in result.output
    assert "does not name a type" in result.output


def test_a_folder_that_others_can_write_is_an_error(sources: Path) -> None:
    sources.chmod(0o777)
    result = build(sources)
    assert result.exit_code == 1
    assert f"Error: kernels are not loaded from {sources}: others can write to it (mode 0777)" in result.output


def test_a_folder_that_cannot_be_written_is_an_error(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    result = build(sources / "image")
    assert result.exit_code == 1
    assert f"seven: not built: {sources / 'image'} cannot be written" in result.output
