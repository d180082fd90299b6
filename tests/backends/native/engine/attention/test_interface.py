"""What `attend` stores and passes to the kernel when a model calls it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.native.engine.attention.interface import (
    AttentionMetadata,
    AttentionParams,
    Forward,
    attend,
    current,
    running,
    text_part,
)
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.progress import on_progress

pytestmark = pytest.mark.torch


class Layer:
    layer_idx = 3


class Recording:
    """A kernel that gives zeros and keeps its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, LayerCache, AttentionParams]] = []

    def __call__(
        self, queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
    ) -> Tensor:
        self.calls.append((queries, cache, params))
        return torch.zeros(*queries.shape[:2], cache.values.shape[2])


def call(**options: Any) -> tuple[Tensor, Recording, KVCache, tuple[Tensor, Tensor, Tensor]]:
    """`attend` for two tokens of two key heads and four query heads, at the slots 5 and 2."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 2, 8), torch.randn(1, 2, 2, 6)
    kernel, cache = Recording(), KVCache(2, 4)
    metadata = AttentionMetadata(torch.tensor([5, 2]), [1, 1], [2, 3], torch.tensor([[1], [0]]))
    with running(Forward(cache, metadata, kernel)):
        output, weights = attend(Layer(), query, key, value, None, **options)
    assert weights is None
    return output, kernel, cache, (query, key, value)


def test_keys_and_values_are_stored_at_their_slots_before_the_kernel_runs() -> None:
    output, kernel, cache, (query, key, value) = call()
    [(queries, layer, _)] = kernel.calls
    assert output.shape == (1, 2, 4, 6)
    assert torch.equal(queries, query[0].transpose(0, 1))
    assert layer is cache.layer(3, torch.empty(0), torch.empty(0))
    assert torch.equal(layer.keys[[5, 2]], key[0].transpose(0, 1))
    assert torch.equal(layer.values[[5, 2]], value[0].transpose(0, 1))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, AttentionParams(8**-0.5)),
        ({"scaling": 0.25, "sliding_window": 7, "softcap": 30.0}, AttentionParams(0.25, 7, 30.0)),
        ({"sliding_window": 0}, AttentionParams(8**-0.5, None)),
    ],
)
def test_the_layers_options_reach_the_kernel(options: dict[str, Any], expected: AttentionParams) -> None:
    [(_, _, params)] = call(**options)[1].calls
    assert params == expected


def test_softcap_and_sinks_are_not_plain() -> None:
    assert AttentionParams(1.0, 5).is_plain
    assert not AttentionParams(1.0, softcap=1.0).is_plain
    assert not AttentionParams(1.0, sinks=torch.zeros(2)).is_plain


def test_every_layer_reports_progress() -> None:
    reports: list[int] = []
    on_progress(lambda: reports.append(1))
    try:
        call()
    finally:
        on_progress(lambda: None)
    assert len(reports) == 1


def test_a_forward_ends_with_its_context() -> None:
    forward = Forward(KVCache(1, 1), AttentionMetadata(torch.empty(0), [1], [1], torch.zeros(1, 1)), Recording())
    with running(forward), running(forward):
        assert current() is forward
    with pytest.raises(LookupError):
        current()


def test_sequences_start_where_the_one_before_ends() -> None:
    assert AttentionMetadata(torch.empty(0), [3, 1, 5], [3, 9, 5], torch.empty(0)).starts == [0, 3, 4]


def test_the_text_part_is_the_decoder_or_the_model_itself() -> None:
    class Decoder:
        def set_attn_implementation(self, name: str) -> None:
            raise NotImplementedError

    class Model:
        def __init__(self, decoder: Any) -> None:
            self.get_decoder = lambda: decoder

    decoder, model = Decoder(), Model(object())
    assert text_part(Model(decoder)) is decoder
    assert text_part(model) is model
