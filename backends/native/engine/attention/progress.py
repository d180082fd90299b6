"""Progress within a step, which may take longer than a worker waits for a sign of life.

A model calls `report_progress` before each layer. Whoever runs the engine sets a callback by `on_progress`, in the
engine's thread; the callback must be quick and must not change the engine. A step that hangs reports nothing. Imports
no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

# A context variable is separate in each thread: two in-process engines do not answer each other's pings.
_callback: ContextVar[Callable[[], None]] = ContextVar("interlingua_progress", default=lambda: None)


def on_progress(callback: Callable[[], None]) -> None:
    """Have `callback` called before each layer of every model that this thread runs."""
    _callback.set(callback)


def report_progress() -> None:
    """Call the thread's callback."""
    _callback.get()()


def watch_layers(model: Any) -> None:
    """Have a model report progress before each of its layers; it costs microseconds a layer.

    For models whose attention is not ours: ours (`interface.attend`) reports by itself.
    """
    # transformers keeps the layers of every encoder and decoder in a ModuleList. Compared by name, so that this module
    # imports no torch.
    lists = (module for module in model.modules() if type(module).__name__ == "ModuleList")
    for layer in (layer for layers in lists for layer in layers):
        layer.register_forward_pre_hook(lambda *_: report_progress())
