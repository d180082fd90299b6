"""How the supervisor and the workers import what they run, which is most of the time that a start takes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def quick_imports() -> Iterator[None]:
    """For the imports of a process that starts: without the collector, and without rich.

    Nothing that imports make is garbage, and the collector takes a sixth of their time. What was imported is taken out
    of its sight.
    """
    gc.disable()
    try:
        with without_rich():
            import structlog  # noqa: F401
        yield
        gc.freeze()
    finally:
        gc.enable()


def run(module: str) -> None:
    """Import a module and call its `main`, which turns the collector on again."""
    gc.disable()
    with without_rich():
        import_module(module).main()


@contextmanager
def without_rich() -> Iterator[None]:
    """Import modules as if rich, and pygments for it, were not installed.

    structlog imports rich for tracebacks that nobody asks for here (they show local variables, and so prompts), and
    httpx both for its command line, at 0.08 s of CPU time and 9 MB a process. Litestar installs them, for its own one.
    """
    hidden = [name for name in ("rich", "pygments") if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python then raises ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
