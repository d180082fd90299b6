"""Run by the examples' test: a model registered by an entry point gives transformers' logits."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_llava


def main() -> None:
    checkpoint = Checkpoint(save_llava(Path(sys.argv[1]), "vipllava", [-1, -2]))
    items = [checkpoint.item(1), checkpoint.item(2)]
    inputs = checkpoint.processor.apply([5, IMAGE, 7, IMAGE], items)
    expected = checkpoint.plain(inputs, items)
    (found,) = checkpoint.packed([inputs], 5)
    swapped = checkpoint.plain(inputs, items[::-1])
    assert (swapped - expected).abs().max() > 1e-2 * expected.abs().max()
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    print("equal")


if __name__ == "__main__":
    main()
