"""Compiles C++ when the engine starts, where there is a compiler, and keeps what came of it for the next start.

Whatever is built here must have a plain way beside it: a machine without a compiler, or without a cache folder that
can be written, gets None. The libraries are for one kind of CPU (`-march=native`), which is part of their names. OpenMP
is compiled in and not linked: its symbols are found among those that torch has loaded, so that there is one set of
threads. Import torch first.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

log = structlog.get_logger()

_COMPILE = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-c")
_SECONDS = 60  # takes one or two


def load(name: str, source: str) -> ctypes.CDLL | None:
    """The library that C++ `source` makes, or None if it cannot be made here; the log says why."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "interlingua")
    digest = blake2b("\0".join((source, *_COMPILE, platform.machine(), _cpu())).encode(), digest_size=8)
    library = folder / f"{name}-{digest.hexdigest()}.so"
    try:
        if not library.exists():
            _build(source, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("kernel.not_built", kernel=name, why=_told(error))
        return None


def _build(source: str, library: Path) -> None:
    """Several processes may do so at once: each in a folder of its own, and the last to rename it wins."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler")
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as folder:
        code, compiled, linked = (Path(folder, f"code.{ending}") for ending in ("cpp", "o", "so"))
        code.write_text(source)
        for command in ((*_COMPILE, code, "-o", compiled), ("-shared", compiled, "-o", linked)):
            subprocess.run((compiler, *command), check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
        linked.replace(library)


def _cpu() -> str:
    """What the CPU can do, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _told(error: OSError | subprocess.SubprocessError) -> str:
    errors = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return errors.strip() or str(error)
