"""Whether a model can be split by its attention heads, as its `config.json` says. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEADS = ("num_attention_heads", "num_key_value_heads")


def why_not_split(config: Mapping[str, Any], ranks: int) -> str | None:
    """Why a model cannot be split over `ranks` devices, as the end of a sentence; None if its heads can be.

    Args:
        config: the content of `config.json`.
        ranks: how many devices.
    """
    text = config.get("text_config") or config
    for name in _HEADS:
        found = text.get(name)
        for heads in found if isinstance(found, list) else [found]:
            if isinstance(heads, int) and heads % ranks:
                return f"its {name} of {heads} cannot be divided by {ranks}"
    return None
