"""Libraries are compiled once, rebuilt when they are not what was built, and done without where nothing compiles."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from backends.native.engine.kernels import jit, library_cache
from backends.native.engine.kernels.libraries import SOURCES, Library
from backends.native.engine.kernels.library_cache import FOLDER_VARIABLE, LibraryCache
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(jit.MARCH_VARIABLE, raising=False)
    jit.load.cache_clear()
    library_cache._warn.cache_clear()
    yield tmp_path / "cache"
    jit.load.cache_clear()


def library(folder: Path, code: str = 'extern "C" int seven() { return 7; }') -> Library:
    folder.mkdir(exist_ok=True)
    (folder / "seven.cpp").write_text(code)
    return Library("seven", "sevens are slower", {"seven": (ctypes.c_int,)}, folder)


def warnings(library: Library) -> list[Any]:
    """What loading the library in vain logs."""
    with capture_logs() as logs:
        assert jit.load(library) is None
    return logs


def seven(library: Library) -> int:
    loaded = jit.load(library)
    assert loaded is not None
    found: int = loaded.seven()
    return found


@needs_compiler
def test_a_library_is_compiled_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = library(tmp_path / "src")
    monkeypatch.setattr(jit, "LIBRARIES", {"seven": own})
    assert jit.is_first_build()
    assert seven(own) == 7
    assert not jit.is_first_build()
    [kept] = folder.iterdir()
    jit.load.cache_clear()
    monkeypatch.setattr(jit, "_build", None)
    assert seven(own) == 7
    assert [kept] == list(folder.iterdir())


@needs_compiler
def test_without_a_compiler_a_library_built_before_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = library(tmp_path / "src")
    assert seven(own) == 7
    jit.load.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert seven(own) == 7


def test_without_a_compiler_a_warning_says_what_that_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert warnings(library(tmp_path / "src")) == [
        {
            "event": "kernel.not_built",
            "log_level": "warning",
            "kernel": "seven",
            "cost": "sevens are slower",
            "why": "there is no C++ compiler (g++ or c++), and no library built for this CPU",
        }
    ]


@needs_compiler
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("no C++", "does not name a type"),
        ('extern "C" { void nowhere(); void seven() { nowhere(); } }', "undefined symbol: nowhere"),
        ('extern "C" int eight() { return 8; }', "has no function seven"),
    ],
)
def test_what_does_not_compile_or_load_is_done_without(folder: Path, tmp_path: Path, code: str, reason: str) -> None:
    [logged] = warnings(library(tmp_path / "src", code))
    assert reason in logged["why"]
    assert not list(folder.iterdir()), "nothing is kept"


@needs_compiler
@pytest.mark.parametrize("change", ["source", "header", "architecture", "compiler"])
def test_a_change_of_what_machine_code_depends_on_builds_anew(
    change: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "src"
    own = library(sources, '#include "number.h"\nextern "C" int seven() { return NUMBER; }')
    (sources / "number.h").write_text("#define NUMBER 7")
    assert seven(own) == 7
    jit.load.cache_clear()
    if change == "source":
        library(sources, 'extern "C" int seven() { return 8; }')
    elif change == "header":
        (sources / "number.h").write_text("#define NUMBER 8")
    elif change == "architecture":
        monkeypatch.setenv(jit.MARCH_VARIABLE, "x86-64" if jit.platform.machine() == "x86_64" else "armv8-a")
    else:
        monkeypatch.setattr(jit, "_compiler_digest", lambda: "another")
    assert seven(own) == (8 if change in ("source", "header") else 7)
    assert len({path.name.rpartition("-")[0] for path in folder.iterdir()}) == 2


@pytest.mark.parametrize(
    ("march", "features", "copies"),
    [
        ("", "sse2 avx avx2 fma", True),
        ("", "avx2 avx512f", False),
        ("", "asimd", False),
        ("x86-64-v3", "avx2 avx512f", True),
        ("x86-64-v4", "avx2 fma", False),
    ],
)
def test_copies_of_whole_registers_are_asked_for_with_avx2_alone(
    march: str, features: str, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jit.MARCH_VARIABLE, march)
    monkeypatch.setattr(jit, "_cpu_field", lambda *names: features)
    assert jit._flags() == (jit.FLAGS + jit._WHOLE_COPIES if copies else jit.FLAGS)


@needs_compiler
def test_a_compiler_that_does_not_know_such_copies_is_not_asked_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jit.MARCH_VARIABLE, "x86-64-v3" if jit.platform.machine() == "x86_64" else "native")
    older = tmp_path / "g++"
    older.write_text(f'#!/bin/sh\ncase "$*" in *move-max*) exit 1;; esac\nexec {jit.find_compiler()} "$@"\n')
    older.chmod(0o755)
    monkeypatch.setattr(jit, "find_compiler", lambda: str(older))
    jit._copies_whole.cache_clear()
    try:
        assert seven(library(tmp_path / "src")) == 7
    finally:
        jit._copies_whole.cache_clear()


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "planted", "link", "writable by others"])
def test_a_library_that_is_not_what_was_built_is_rebuilt(
    damage: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = library(tmp_path / "src")
    planted = _built(library(tmp_path / "planted", 'extern "C" int seven() { return 666; }'), tmp_path)
    key = f"{jit._source_key(own)}{jit._compiler_digest()}-"
    good = LibraryCache.at(folder)
    kept = folder / f"{key}{library_cache.digest(planted.read_bytes())}.so"
    if damage == "truncated":
        kept.write_bytes(planted.read_bytes()[:5000])
    elif damage == "planted":
        kept.with_name(f"{key}0123.so").write_bytes(planted.read_bytes())
    elif damage == "link":
        kept.symlink_to(planted)
    else:
        kept.write_bytes(planted.read_bytes())
        kept.chmod(0o666)
    loaded: list[str] = []
    cdll = ctypes.CDLL
    monkeypatch.setattr(jit.ctypes, "CDLL", lambda path: (loaded.append(path), cdll(path))[1])
    assert seven(own) == 7
    assert [Path(path).name for path in loaded] == ["linked.so"], "only what was built now is loaded"
    assert {path.name for path in folder.glob("*.so")} == {good.find(key).name}, "the other one is removed"


def _built(library: Library, folder: Path) -> Path:
    return jit._build(library, folder)


@needs_compiler
def test_a_library_without_the_wanted_function_is_rebuilt(folder: Path, tmp_path: Path) -> None:
    own = library(tmp_path / "src")
    cache = LibraryCache.at(folder)
    with cache.building() as building:
        other = _built(library(tmp_path / "planted", 'extern "C" int eight() { return 8; }'), building)
        foreign = cache.keep(other, f"{jit._source_key(own)}{jit._compiler_digest()}-")
    with capture_logs() as logs:
        assert seven(own) == 7
    assert [entry["why"] for entry in logs] == [f"{foreign.name} has no function seven"]
    assert not foreign.exists()


@needs_compiler
def test_a_library_is_loaded_though_it_cannot_be_kept(folder: Path, tmp_path: Path) -> None:
    folder.write_text("a file in the folder's place")
    with capture_logs() as logs:
        assert seven(library(tmp_path / "src")) == 7
    assert [entry["event"] for entry in logs] == ["kernel.cache_not_used"]


def test_a_source_is_read_with_all_that_it_includes() -> None:
    names = [path.name for path in jit.source_files(SOURCES / "fused_decoder_layer.cpp")]
    assert names[0] == "fused_decoder_layer.cpp"
    assert sorted(names[1:]) == [
        "dot.h", "gated_activation.h", "gemm.h", "paged_decode.h", "rms_norm.h", "rotary.h", "simd.h", "tiles.h",
    ]  # fmt: skip


@needs_compiler
def test_functions_of_a_dtype_that_has_none_are_not_looked_for() -> None:
    assert jit.typed_function("gemv", "gemv", "torch.float16") is None
    with pytest.raises(KeyError):
        jit.function("gemv", "gemv_float16")


@needs_compiler
def test_all_libraries_are_built_ahead_and_failures_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = library(tmp_path / "src", "no C++")
    monkeypatch.setattr(jit, "LIBRARIES", {"good": library(tmp_path / "good"), "seven": broken})
    good, bad = jit.build_all(tmp_path / "ahead")
    assert good.path is not None
    assert good.path.parent == tmp_path / "ahead"
    assert bad.path is None
    assert "does not name a type" in bad.why
    [again, _] = jit.build_all(tmp_path / "ahead")
    assert again.path == good.path
