"""The attention kernel is chosen by device, dtype and parameters, layer by layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.native.engine.attention import registry
from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.registry import AttentionKernel, best_kernel, find_kernel
from backends.native.engine.runner.packed import PackedRunner
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.tiny import build, prompt, tiny

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


class Fake:
    """A kernel for layers with a sliding window. It answers with the reference and notes the windows of its layers."""

    def __init__(self) -> None:
        self.windows: list[int | None] = []

    def supports(self, device: torch.device, dtype: torch.dtype, params: AttentionParams) -> bool:
        return device.type == "cpu" and dtype == torch.float32 and params.sliding_window is not None

    def attend(
        self, queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
    ) -> Tensor:
        self.windows.append(params.sliding_window)
        return registry.REFERENCE.attend(queries, cache, block_size, metadata, params)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    kernel = Fake()
    entry = AttentionKernel("fake", kernel.supports, kernel.attend)
    monkeypatch.setattr(registry, "KERNELS", (entry, *registry.KERNELS))
    return kernel


@needs_compiler
@pytest.mark.parametrize(
    ("device", "dtype", "params", "name"),
    [
        ("cpu", torch.float32, {}, "cpu_paged"),
        ("cpu", torch.bfloat16, {"sliding_window": 4}, "cpu_paged"),
        ("cpu", torch.float16, {}, "reference"),
        ("cpu", torch.float32, {"softcap": 5.0}, "reference"),
        ("cpu", torch.float32, {"sinks": torch.zeros(2)}, "reference"),
        ("cuda", torch.bfloat16, {}, "reference"),
    ],
)
def test_the_first_kernel_that_supports_a_layer_is_found(
    device: str, dtype: torch.dtype, params: dict[str, Any], name: str
) -> None:
    assert find_kernel(torch.device(device), dtype, AttentionParams(1.0, **params)).name == name


def test_a_kernel_registered_before_the_others_is_preferred_for_what_it_supports(fake: Fake) -> None:
    assert find_kernel(CPU, torch.float32, AttentionParams(1.0, 8)).name == "fake"
    assert find_kernel(CPU, torch.float32, AttentionParams(1.0)).name != "fake"
    assert find_kernel(CPU, torch.bfloat16, AttentionParams(1.0, 8)).name != "fake"


def test_each_call_goes_to_the_kernel_of_its_parameters(fake: Fake) -> None:
    like = torch.zeros(1, 1, 8)
    layer = KVCache(1, 4).layer(0, like, like)
    layer.keys.zero_()
    layer.values.zero_()
    for window in (None, 3, None, 2):
        metadata = AttentionMetadata(torch.empty(0), [1], [4], torch.zeros(1, 1, dtype=torch.int64))
        assert best_kernel(torch.ones(1, 1, 8), layer, 4, metadata, AttentionParams(1.0, window)).shape == (1, 1, 8)
    assert fake.windows == [3, 2]


def test_a_runner_takes_the_registered_kernel(fake: Fake) -> None:
    asked = [Submit(0, prompt(5, 0), 3), Submit(1, prompt(20, 1), 3)]
    found = tiny(PackedRunner(build("mistral"), KVCache(64, 4))).answers(asked)
    assert fake.windows
    assert set(fake.windows) == {10}
    expected = tiny(PackedRunner(build("mistral"), KVCache(64, 4), registry.REFERENCE.attend)).answers(asked)
    assert [found[seq].ids for seq in found] == [expected[seq].ids for seq in expected]
