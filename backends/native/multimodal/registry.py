"""The registry of multimodal models: those in `models`, and those of entry points of the group `GROUP`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, TypeVar

from backends.native.multimodal import models
from backends.native.multimodal.interfaces import ModelWrapper, SupportsMultiModal
from backends.native.multimodal.models.generic import (
    GenericDummyInputsBuilder,
    GenericModel,
    GenericMultiModalProcessor,
    GenericProcessingInfo,
)
from backends.native.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

GROUP = "gateway.multimodal_models"
"""Entry points of this group name modules that register models when imported."""

M = TypeVar("M", bound=type[SupportsMultiModal])


@dataclass(frozen=True, slots=True)
class Registered:
    """The four classes of a model."""

    model: type[SupportsMultiModal]
    processor: type[BaseMultiModalProcessor[Any]]
    info: type[BaseProcessingInfo]
    dummy_inputs: type[BaseDummyInputsBuilder[Any]]

    @property
    def is_module(self) -> bool:
        """Whether the model is an `nn.Module` of its own, not a wrapper of a model of transformers."""
        return not issubclass(self.model, ModelWrapper)

    def wrap(self, model: Any) -> ModelWrapper:
        """The wrapper of a loaded model of transformers."""
        assert issubclass(self.model, ModelWrapper)
        return self.model(model)


GENERIC = Registered(GenericModel, GenericMultiModalProcessor, GenericProcessingInfo, GenericDummyInputsBuilder)
"""The classes for models that are not registered."""


class MultiModalRegistry:
    """Registered models by the name of their class in transformers (a configuration's `architectures[0]`)."""

    def __init__(self) -> None:
        self._registered: dict[str, list[Registered]] = {}
        self._loaded = False

    def register_processor(
        self,
        processor: type[BaseMultiModalProcessor[Any]],
        *,
        info: type[BaseProcessingInfo],
        dummy_inputs: type[BaseDummyInputsBuilder[Any]],
    ) -> Callable[[M], M]:
        """Decorate a model's class, which has the name that checkpoints have in `architectures`.

        Several classes may share a name if each says which configurations it covers.

        Raises:
            ValueError: another class is registered for that model.
        """

        def register(model: M) -> M:
            known = self._registered.setdefault(model.__name__, [])
            if known and not all(map(_is_partial, (info, *(each.info for each in known)))):
                raise ValueError(f"two classes are registered for {model.__name__}")
            known.append(Registered(model, processor, info, dummy_inputs))
            return model

        return register

    def lookup(self, hf_config: Any) -> Registered:
        """The classes for a checkpoint that takes images: the registered ones if they support it, else `GENERIC`."""
        self.load()
        known = self._registered.get((hf_config.architectures or [""])[0], ())
        return next((each for each in known if each.info.covers(hf_config)), GENERIC)

    def find(self, architecture: str) -> Registered | None:
        """The first registered classes for a model."""
        self.load()
        return next(iter(self._registered.get(architecture, ())), None)

    def load(self) -> None:
        """Import the modules that register models. Idempotent."""
        if not self._loaded:
            # Set before the imports: a module that looks a model up while it is imported must not start them again.
            self._loaded = True
            for module in iter_modules(models.__path__):
                # Imported here and not above: these modules import this one to register their models.
                import_module(f"{models.__name__}.{module.name}")
            for point in entry_points(group=GROUP):
                point.load()

    @property
    def names(self) -> list[str]:
        """The names of the registered models."""
        self.load()
        return sorted(self._registered)


def _is_partial(info: type[BaseProcessingInfo]) -> bool:
    """Whether a class says itself which configurations it covers."""
    return info.covers.__func__ is not BaseProcessingInfo.covers.__func__  # type: ignore[attr-defined]


MULTIMODAL_REGISTRY = MultiModalRegistry()
