"""Which LoRA adapters a model has, and how they are loaded and unloaded while sequences run.

A name may be unloaded and loaded again with other weights, so weights are stored under keys that are never used again.
A sequence keeps its key: it ends with the weights that it began with, and its prefix-cache blocks, which are salted
with the key, are not found by sequences of later weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any

from backends.native.engine.errors import LoadError
from backends.native.engine.lora.layers import eject_lora, inject_lora
from backends.native.engine.lora.weights import load_lora_adapters

Check = Callable[[Collection[str]], str | None]
"""Why layers of these names cannot have LoRA adapters; None if they can."""


class LoraTable:
    """The LoRA adapters of a model.

    Args:
        names: of those that the model was started with.
        model: the model; None: nothing can be loaded.
        check: see `Check`.
        on_loaded: called when the model has another LoRA adapter.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        model: Any = None,
        check: Check = lambda _: None,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self.keys = {name: name for name in names}
        """The key of each name that a sequence may ask for."""
        self._model = model
        self._check = check
        self._on_loaded = on_loaded
        self._checked: set[str] = set()
        self._numbers = count(1)
        self._retired: set[str] = set()

    def load(self, name: str, folder: str) -> None:
        """Load the LoRA adapter in `folder`; it takes the name from another one that has it.

        Raises:
            LoadError: it cannot be loaded, or does not fit the model.
        """
        if self._model is None:
            raise LoadError(
                "This model takes no LoRA adapters while it is served: it was started without `lora_folder`."
            )
        found = load_lora_adapters(self._model, {name: folder})[name]
        if new := found.keys() - self._checked:
            why = self._check(new)
            if why is not None:
                raise LoadError(f"LoRA adapters cannot be applied to this {self._model.config.model_type}: {why}.")
            self._checked |= new
        # "@" is in no name of a LoRA adapter.
        key = f"{name}@{next(self._numbers)}"
        inject_lora(self._model, {key: found})
        self._retire(name)
        self.keys[name] = key
        self._on_loaded()

    def unload(self, name: str) -> None:
        """Let no further sequence ask for the LoRA adapter `name`.

        Raises:
            LoadError: there is none.
        """
        if name not in self.keys:
            raise LoadError(f"There is no LoRA adapter '{name}'.")
        self._retire(name)

    def drop_unused(self, used: Callable[[], Collection[str]]) -> None:
        """Free the weights of those that were unloaded, and whose keys are not among `used()`."""
        if not self._retired:
            return
        for key in self._retired - set(used()):
            self._retired.remove(key)
            eject_lora(self._model, key)

    def _retire(self, name: str) -> None:
        key = self.keys.pop(name, None)
        if key is not None and self._model is not None:
            self._retired.add(key)
