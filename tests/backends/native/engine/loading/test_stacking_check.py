"""The check at load finds which sequences may share a forward of the per-sequence path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backends.native.engine.loading.stacking_check import find_stacking, stacking_of
from backends.native.engine.loading.tiny_copy import shrunken_copy
from backends.native.engine.runner.stacking import Stacking
from tests.backends.native.engine.tiny import build

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize(
    ("family", "stacking"),
    [
        ("rembert", Stacking.PADDED),
        ("deepseek_v32", Stacking.EQUAL),  # its indexer would choose padding
        ("roformer", Stacking.EQUAL),  # its positions are counted from the start of the cache
        ("rwkv", Stacking.NONE),  # its model code mixes the rows of a batch
    ],
)
def test_what_a_model_can_do(family: str, stacking: Stacking) -> None:
    assert find_stacking(build(family)) is stacking


@torch.inference_mode()
@pytest.mark.parametrize(
    ("spoilt", "stacking"), [("attention_mask", Stacking.EQUAL), ("past_key_values", Stacking.NONE)]
)
def test_a_model_that_reads_others_rows_is_noticed(spoilt: str, stacking: Stacking) -> None:
    """One that ignores the mask reads padding; one whose cache loses its order reads what is another's."""
    model = shrunken_copy(build("rembert"))
    forward = model.forward

    def wrong(*args: Any, **kwargs: Any) -> Any:
        if spoilt == "attention_mask":
            kwargs.pop(spoilt)
        elif kwargs.get(spoilt) is not None and len(kwargs["input_ids"]) == 3:
            for layer in kwargs[spoilt].self_attention_cache.layers:
                layer.keys = layer.keys.flip(0)
        return forward(*args, **kwargs)

    model.forward = wrong
    assert stacking_of(model) is stacking
