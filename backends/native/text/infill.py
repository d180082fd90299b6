"""Fill-in-the-middle prompts: a prefix and a suffix, between which the model generates.

For tokenizers with fill-in-the-middle tokens. The order is prefix, suffix, middle (PSM in Bavarian et al., arXiv
2207.14255), with which all of these families were trained.
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
    """The ids of the tokens that precede the prefix, the suffix and the middle."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> Infill | None:
        """The tokens of a vocabulary; None if it has none."""
        for family in _FAMILIES:
            if all(token in vocabulary for token in family):
                return cls(*(vocabulary[token] for token in family))
        return None

    def around(self, before: tuple[int, ...], after: tuple[int, ...], bos: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The prompt for the text between `before` and `after`; `bos` precedes everything."""
        return (*bos, self.prefix, *before, self.suffix, *after, self.middle)
