"""Just-in-time compilation of the C++ in `src/`, when the engine first needs it.

Strategy: every compiled function has a torch equivalent, so a machine without a C++ compiler gets None here and is
slower, not wrong. Libraries are built for one kind of CPU (`-march=native`; `INTERLINGUA_KERNEL_MARCH` names another)
and kept (`library_cache`) under a name that holds a digest of sources, flags, CPU and compiler. Without a compiler, a
library of any compiler is loaded, so that an image can be built with one (`gateway build-kernels`) and run without.

OpenMP is compiled in and not linked: its symbols are found among those that torch has loaded, so that there is one pool
of threads.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from backends.native.engine.kernels.libraries import LIBRARIES, Library
from backends.native.engine.kernels.library_cache import LibraryCache, default_folder, digest

log = structlog.get_logger()
Function = Callable[..., Any]

FLAGS = ("-O3", "-fopenmp", "-fPIC")
# With AVX2 alone GCC copies vectors in halves of a register, and what reads the whole behind them waits for both. With
# these a step of Mamba 2 or Qwen3.5 takes 0.75 to 0.8 times as long (measured).
_WHOLE_COPIES = ("-mmove-max=256", "-mstore-max=256")
MARCH_VARIABLE = "INTERLINGUA_KERNEL_MARCH"
# The largest source takes 4 s on an idle core for AVX-512 and 20 s for AVX2.
_COMPILE_TIMEOUT = 300
_REASON_LENGTH = 1000  # characters of a compiler's errors that are logged
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def function(library: str, symbol: str) -> Function | None:
    """The function `symbol` of `library`, with its argument types set; None if the library cannot be loaded."""
    signature = LIBRARIES[library].symbols[symbol]
    loaded = load(LIBRARIES[library])
    if loaded is None:
        return None
    found: Any = getattr(loaded, symbol)
    # Once: every layer asks in every step, and the library keeps the object.
    if found.argtypes is None:
        # Without `argtypes` ctypes would pass Python integers as C ints and cut addresses to 32 bits.
        found.restype, *found.argtypes = signature
    return found  # type: ignore[no-any-return]


def typed_function(library: str, base: str, dtype: object) -> Function | None:
    """The version of `base` for a torch dtype; None also for a dtype that has none."""
    symbol = f"{base}_{str(dtype).removeprefix('torch.')}"
    return function(library, symbol) if symbol in LIBRARIES[library].symbols else None


# The result None is cached, too: one attempt and one warning a process, not one for each layer.
@cache
def load(library: Library) -> ctypes.CDLL | None:
    """The library, compiled if the cache has none; None, and a warning, if it cannot be compiled or loaded."""
    try:
        return _open(library, LibraryCache.default())[0]
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("kernel.not_built", kernel=library.name, cost=library.cost, why=_reason(error))
        return None


@dataclass(frozen=True, slots=True)
class BuildResult:
    """One library of `build_all`: its path, or why it could not be built."""

    name: str
    path: Path | None
    why: str = ""


def build_all(folder: Path | None = None) -> Iterator[BuildResult]:
    """Compile every library that `folder` (the default cache folder, if None) lacks, and load it as a check.

    Raises:
        OSError: the folder cannot be made or must not be trusted.
        RuntimeError: there is no default folder.
    """
    # An image's folder is readable for the user that will run it (0755); a user's own is private.
    kept = LibraryCache.at(default_folder()) if folder is None else LibraryCache.at(folder, mode=0o755)
    for library in LIBRARIES.values():
        try:
            path = _open(library, kept)[1]
            # Otherwise the library was built in a temporary folder, which is removed by now.
            if path.parent == kept.folder:
                yield BuildResult(library.name, path)
            else:
                yield BuildResult(library.name, None, f"{kept.folder} cannot be written")
        except (OSError, subprocess.SubprocessError) as error:
            yield BuildResult(library.name, None, _reason(error))


def is_first_build() -> bool:
    """Whether nothing has been built here yet, and can be: the next engine takes longer to start."""
    kept = LibraryCache.default()
    return find_compiler() is not None and not any(kept.find(_key(library)) for library in LIBRARIES.values())


def target() -> str:
    """The CPU that libraries are compiled for, in words."""
    if march() != "native":
        return f"{platform.machine()} (-march={march()})"
    return f"{platform.machine()} ({_cpu_field('model name', 'Processor') or 'this CPU'}, -march=native)"


def march() -> str:
    """The architecture that is compiled for, as GCC names it."""
    return os.environ.get(MARCH_VARIABLE) or "native"


def find_compiler() -> str | None:
    """Path of the C++ compiler."""
    return shutil.which("g++") or shutil.which("c++")


def compile_object(source: Path, compiled: Path, *flags: str, compiler: str | None = None) -> None:
    """Compile `source` with `flags` to the object file `compiled`, by `compiler` or the one that is found.

    Raises:
        FileNotFoundError: there is no compiler.
        subprocess.SubprocessError: it does not compile, or takes too long.
    """
    _run(compiler, *flags, "-c", str(source), "-o", str(compiled))


def source_files(source: Path) -> list[Path]:
    """`source` and all that it includes from its folder, each once."""
    files = [source]
    for file in files:  # grows meanwhile
        included = (file.parent / name for name in _INCLUDE.findall(file.read_text()))
        # Lists may grow while they are iterated over: includes of includes are visited in turn.
        files += [path for path in dict.fromkeys(included) if path not in files]
    return files


def _open(library: Library, kept: LibraryCache) -> tuple[ctypes.CDLL, Path]:
    """The loaded library and its path, from the cache or newly built."""
    import torch  # noqa: F401 - brings the OpenMP runtime whose symbols the library needs

    key = _key(library)
    path = kept.find(key)
    if path is not None:
        try:
            # The digest in its name was right and it still does not load: its dependencies differ here. Build it anew.
            return _dlopen(library, path), path
        except OSError as error:
            kept.reject(path, str(error))
    with kept.building() as folder:
        built = _build(library, folder)
        loaded = _dlopen(library, built)  # before it is kept, and before `folder` is removed
        return loaded, kept.keep(built, key)


def _build(library: Library, folder: Path) -> Path:
    """Compile and link the library in `folder`; in two steps, since `-shared` with `-fopenmp` would link OpenMP."""
    compiled, linked = folder / "compiled.o", folder / "linked.so"
    flags = _flags() if _copies_whole() else FLAGS
    compile_object(library.source, compiled, *flags, f"-march={march()}")
    _run(None, "-shared", str(compiled), "-o", str(linked))
    return linked


def _dlopen(library: Library, path: Path) -> ctypes.CDLL:
    """Load the library at `path`.

    Raises:
        OSError: it cannot be loaded, or lacks a function.
    """
    # CDLL, not PyDLL: the interpreter's lock is released during each call, so that other threads (sockets, masks) run.
    loaded = ctypes.CDLL(str(path))
    missing = [symbol for symbol in library.symbols if not hasattr(loaded, symbol)]
    if missing:
        raise OSError(f"{path.name} has no function {', '.join(missing)}")
    return loaded


def _key(library: Library) -> str:
    """The beginning of the name of a library that may be loaded."""
    # With a compiler: only what this very compiler built. Without one the key is shorter, and the glob of `find`
    # matches libraries of every compiler.
    return _source_key(library) + (f"{_compiler_digest()}-" if find_compiler() is not None else "")


def _source_key(library: Library) -> str:
    """The beginning of a library's file name: its name, and a digest of sources, flags and CPU."""
    parts = [part for file in source_files(library.source) for part in (file.name.encode(), file.read_bytes())]
    # `-march=native` means another set of instructions on another CPU. A library from there could end the process by an
    # illegal instruction, so the CPU's features are part of the name.
    cpu = _cpu_field("flags", "Features") or platform.processor() if march() == "native" else ""
    settings = (*_flags(), march(), platform.machine(), cpu)
    return f"{library.name}-{digest(*parts, *(setting.encode() for setting in settings))}-"


def _flags() -> tuple[str, ...]:
    """How libraries are compiled for the CPU, by a compiler that knows all flags."""
    features = {"avx2"} if march() == "x86-64-v3" else _cpu_field("flags").split() if march() == "native" else ()
    return (*FLAGS, *_WHOLE_COPIES) if "avx2" in features and "avx512f" not in features else FLAGS


@cache
def _copies_whole() -> bool:
    """Whether the compiler knows `_WHOLE_COPIES`: GCC 12 is the first."""
    try:
        _run(None, *_WHOLE_COPIES, "-E", "-x", "c++", os.devnull)
    except subprocess.CalledProcessError:
        return False
    return True


@cache
def _compiler_digest() -> str:
    return digest(_run(None, "--version").encode())


def _run(compiler: str | None, *arguments: str) -> str:
    compiler = compiler or find_compiler()
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler (g++ or c++), and no library built for this CPU")
    return subprocess.run(  # noqa: S603 - our own arguments
        (compiler, *arguments), check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT
    ).stdout


def _cpu_field(*names: str) -> str:
    """The value of the first line of /proc/cpuinfo with one of these names; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def _reason(error: Exception) -> str:
    errors = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return errors.strip()[:_REASON_LENGTH] or str(error)
