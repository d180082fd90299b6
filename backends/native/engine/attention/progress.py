"""Signs of life from the middle of a step, which may take longer than a worker waits for one.

A model says `progressed` before each layer; whoever owns the engine `heed`s that, in the engine's thread. What is done
then must be quick and leave the engine as it is. A step that hangs says nothing. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

_heeded: ContextVar[Callable[[], None]] = ContextVar("interlingua_progress", default=lambda: None)


def heed(told: Callable[[], None]) -> None:
    """Have `told` called whenever a model that this thread runs gets on."""
    _heeded.set(told)


def progressed() -> None:
    """A model gets on."""
    _heeded.get()()


def watch_layers(model: Any) -> None:
    """Have a model say so before each of its layers. It costs microseconds a layer: `attention` tells by itself."""
    lists = (module for module in model.modules() if type(module).__name__ == "ModuleList")
    for layer in (layer for layers in lists for layer in layers):
        layer.register_forward_pre_hook(lambda *_: progressed())
