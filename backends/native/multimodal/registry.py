"""Which classes know what about which model. Ours are in `models`; others come by the entry points of `GROUP`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from backends.native.multimodal.interfaces import SupportsMultiModal
from backends.native.multimodal.models.generic import (
    GenericDummyInputsBuilder,
    GenericModel,
    GenericMultiModalProcessor,
    GenericProcessingInfo,
)
from backends.native.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

GROUP = "gateway.multimodal_models"
"""Entry points of this group name modules; importing one registers its models."""

_OURS = ("fuyu", "llava", "qwen2_vl")

M = TypeVar("M", bound=type[SupportsMultiModal])


@dataclass(frozen=True, slots=True)
class Registered:
    """All about a model's pictures."""

    model: type[SupportsMultiModal]
    processor: type[BaseMultiModalProcessor[Any]]
    info: type[BaseProcessingInfo]
    dummy_inputs: type[BaseDummyInputsBuilder[Any]]


GENERIC = Registered(GenericModel, GenericMultiModalProcessor, GenericProcessingInfo, GenericDummyInputsBuilder)
"""All that is known about the pictures of models that are not registered."""


class MultiModalRegistry:
    """Models by the name of their class in transformers, which is a configuration's `architectures[0]`."""

    def __init__(self) -> None:
        self._known: dict[str, Registered] = {}
        self._loaded = False

    def register_processor(
        self,
        processor: type[BaseMultiModalProcessor[Any]],
        *,
        info: type[BaseProcessingInfo],
        dummy_inputs: type[BaseDummyInputsBuilder[Any]],
    ) -> Callable[[M], M]:
        """Decorates a `SupportsMultiModal` named like the class in transformers that it wraps.

        Raises:
            ValueError: there is one for that model already.
        """

        def register(model: M) -> M:
            if model.__name__ in self._known:
                raise ValueError(f"two classes are registered for {model.__name__}")
            self._known[model.__name__] = Registered(model, processor, info, dummy_inputs)
            return model

        return register

    def about(self, hf_config: Any) -> Registered:
        """What is known of a checkpoint that takes pictures."""
        known = self.find((hf_config.architectures or [""])[0])
        return known if known is not None and known.info.covers(hf_config) else GENERIC

    def find(self, architecture: str) -> Registered | None:
        """What is registered for a model."""
        if not self._loaded:
            self._loaded = True
            for name in _OURS:
                import_module(f"backends.native.multimodal.models.{name}")
            for point in entry_points(group=GROUP):
                point.load()
        return self._known.get(architecture)

    @property
    def names(self) -> list[str]:
        """The registered models."""
        self.find("")
        return sorted(self._known)


MULTIMODAL_REGISTRY = MultiModalRegistry()
