"""Prompts with a suffix: what stands before and after a gap, and the model is to fill it.

Only for tokenizers that have tokens for it; between them the order is prefix, suffix, middle, as all of these families
were trained (Bavarian et al., arXiv 2207.14255, "PSM").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
)


class Infill(NamedTuple):
    """The ids of a tokenizer's tokens before the prefix, the suffix and the middle."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> Infill | None:
        """Those of a vocabulary; None if it has none."""
        for family in _FAMILIES:
            if all(token in vocabulary for token in family):
                return cls(*(vocabulary[token] for token in family))
        return None

    def around(self, before: tuple[int, ...], after: tuple[int, ...], begin: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The prompt for the gap between two texts; `begin` is what every prompt begins with."""
        return (*begin, self.prefix, *before, self.suffix, *after, self.middle)
