"""What both ranks of `test_runner` do alike."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from backends.native.engine.loading.self_check import why_not_packed
from backends.native.engine.loading.splitting import split_model

TIMEOUT = timedelta(minutes=5)  # a rank that ends early fails the test
BLOCKS = 64
BLOCK_SIZE = 4
# One whose output layer is its embedding, and one with experts.
CHECKED = ("gemma2", "mixtral")


def check(model: Any) -> tuple[str | None, str | None]:
    """The self-check's verdict on a split model, and on one whose sums have lost a rank's part."""
    split = partial(split_model, ranks=2)

    def damage(small: Any) -> None:
        split(small)
        for name, parameter in small.named_parameters():
            if name.endswith("o_proj.weight") and parameter.device_mesh.get_local_rank():
                parameter.to_local().zero_()

    return why_not_packed(model, change=split), why_not_packed(model, change=damage)
