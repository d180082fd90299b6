"""Reads peft's `adapter_config.json`: which layers a LoRA adapter changes, and how strongly.

Keys that would change what the LoRA adapter computes and are not implemented are refused by name, as are unknown keys:
a LoRA adapter is applied as it was trained, or not at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backends.native.engine.errors import LoadError

FILE = "adapter_config.json"

# Keys that say how it was trained, or nothing that matters once it is.
_HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",  # of layers that are only in `modules_to_save`
    "eva_config",
    "fan_in_fan_out",  # how the layer keeps its weight, which is of no concern to what is added
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",  # without `use_qalora`
    "revision",
    "runtime_config",
    "task_type",
}
# Ways of starting the training that leave the model's own weights as they are; others have changed them.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
_SHORTHAND = "all-linear"
_Number = TypeVar("_Number", int, float)


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read, by peft's names."""

    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    target_modules: tuple[str, ...] | str
    exclude_modules: tuple[str, ...] | str | None = None
    layers_to_transform: tuple[int, ...] | int | None = None
    layers_pattern: tuple[str, ...] | str | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None

    def rank(self, layer: str) -> int:
        """The rank of a layer's matrices."""
        return _by_pattern(self.rank_pattern, layer, self.r)

    def scaling(self, layer: str) -> float:
        """What a layer's product is multiplied by; rank-stabilised: arXiv 2312.03732."""
        rank = self.rank(layer)
        alpha = _by_pattern(self.alpha_pattern, layer, self.lora_alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def changes(self, layer: str) -> bool:
        """Whether a linear layer of this name, which is not the model's last, is one of those that it changes."""
        if self.exclude_modules and _matches(self.exclude_modules, layer):
            return False
        if isinstance(self.target_modules, str):
            return self.target_modules.lower() == _SHORTHAND or _matches(self.target_modules, layer)
        return layer in self.target_modules or (_matches(self.target_modules, layer) and self._has_index(layer))

    def _has_index(self, layer: str) -> bool:
        """Whether the layer is in one of the blocks that `layers_to_transform` counts, if it does."""
        wanted, patterns = _several(self.layers_to_transform), _several(self.layers_pattern)
        if not wanted:
            return True
        # peft's expressions, so that the same layers are chosen; without a pattern any name before the index counts.
        expressions = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in patterns] or [r".*?\.[^.]*\.(\d+)\."]
        found = next(filter(None, (re.match(expression, layer) for expression in expressions)), None)
        return found is not None and int(found[1]) in wanted


def read_config(folder: Path) -> LoraConfig:
    """The configuration of the LoRA adapter in `folder`.

    Raises:
        LoadError: it is not there, damaged, or asks for what is not done here.
    """
    path = folder / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise LoadError(f"There is no LoRA adapter in '{folder}': {FILE} cannot be read.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LoadError(f"'{path}' is not valid: {error}.") from error
    if found.get("peft_type") != "LORA":
        raise LoadError(f"'{path}': `peft_type` is {found.get('peft_type')!r}; only LORA is applied.")
    for key, value in found.items():
        if not _is_supported(key, value):
            raise LoadError(f"'{path}': `{key}` is {value!r}, which is not supported.")
    try:
        config = msgspec.convert(found, LoraConfig)
        for pattern in _patterns(config):
            re.compile(pattern)
    except (msgspec.ValidationError, re.error) as error:
        raise LoadError(f"'{path}' is not valid: {error}.") from error
    if min((config.r, *(config.rank_pattern or {}).values())) < 1:
        raise LoadError(f"'{path}': a rank is less than 1.")
    return config


def _is_supported(key: str, value: Any) -> bool:
    if key in _HARMLESS or key == "peft_type" or key in LoraConfig.__struct_fields__:
        return True
    if key == "init_lora_weights":
        return value in _STARTS
    # Unknown keys with an empty value (None, False, [], {}) ask for nothing.
    return not value or (key == "bias" and value == "none")


def _patterns(config: LoraConfig) -> list[str]:
    """Its regular expressions."""
    whole = [each for each in (config.target_modules, config.exclude_modules) if isinstance(each, str)]
    return [*whole, *_several(config.layers_pattern), *(config.rank_pattern or ()), *(config.alpha_pattern or ())]


def _matches(names: tuple[str, ...] | str, layer: str) -> bool:
    """A string is a regular expression for the whole name, the names of a list are ends of it."""
    if isinstance(names, str):
        return re.fullmatch(names, layer) is not None
    return any(layer == name or layer.endswith(f".{name}") for name in names)


def _by_pattern(values: Mapping[str, _Number] | None, layer: str, otherwise: _Number) -> _Number:
    """The value of the first pattern that the layer's name ends with."""
    found = (value for pattern, value in (values or {}).items() if re.match(rf"(.*\.)?({pattern})$", layer))
    return next(found, otherwise)


def _several(values: Any) -> tuple[Any, ...]:
    """One or several, or none."""
    if values is None:
        return ()
    return values if isinstance(values, tuple) else (values,)
