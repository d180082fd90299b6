"""The fused gated layer gives what the model's own does, and replaces only one that it equals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import Lfm2Config, LlamaConfig
from transformers.models.lfm2.modeling_lfm2 import Lfm2MLP
from transformers.models.llama.modeling_llama import LlamaMLP

from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fusion import alike
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]


def mlp(width: int = 48, *, act: str = "silu", bias: bool = False) -> LlamaMLP:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=width, intermediate_size=2 * width + 8, hidden_act=act, num_attention_heads=1)
    config.mlp_bias = bias
    return LlamaMLP(config)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("act", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("shape", [(1, 1, 48), (3, 40), (2, 5, 6), (90, 512), (0, 64), (1, 0, 64)])
def test_it_equals_the_models_own(dtype: torch.dtype, act: str, shape: tuple[int, ...]) -> None:
    plain, rows = mlp(shape[-1], act=act, bias=True).to(dtype), torch.randn(shape).to(dtype)
    fused = FusedMLP.of(plain)
    assert fused is not None
    assert alike(plain(rows), fused(rows))


@torch.inference_mode()
@pytest.mark.parametrize("join", [True, False])
def test_other_names_of_the_projections(join: bool) -> None:
    torch.manual_seed(0)
    config = Lfm2Config(hidden_size=48, intermediate_size=96, block_auto_adjust_ff_dim=False)
    plain, rows = Lfm2MLP(config), torch.randn(3, 48)
    fused = FusedMLP.of(plain, join=join)
    assert fused is not None
    assert alike(plain(rows), fused(rows))
    assert {name for name, _ in fused.named_children()} == ({"gate_up_proj", "w2"} if join else {"w1", "w2", "w3"})


@torch.inference_mode()
def test_large_numbers_infinity_and_nan() -> None:
    plain = mlp()
    fused = FusedMLP.of(plain)
    assert fused is not None
    rows = torch.randn(4, 48) * torch.tensor([[1e4], [1e30], [1.0], [1.0]])
    rows[2, 5], rows[3, 5] = float("nan"), float("inf")
    found, expected = fused(rows), plain(rows)
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert alike(expected[:1], found[:1])


class Clamped(LlamaMLP):
    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(rows).clamp(max=7)) * self.up_proj(rows))


class Scaled(LlamaMLP):
    def forward(self, rows: Tensor, scale: float) -> Tensor:
        return super().forward(rows * scale)


def test_linears_that_cannot_be_joined_stay_separate() -> None:
    plain = mlp()
    plain.up_proj = nn.Linear(48, 104)  # has a bias, the gate has none
    fused, rows = FusedMLP.of(plain), torch.randn(3, 48)
    assert fused is not None
    assert alike(plain(rows), fused(rows))


def test_other_gated_layers_stay() -> None:
    config = LlamaConfig(hidden_size=48, intermediate_size=64, num_attention_heads=1)
    assert FusedMLP.of(Clamped(config)) is None
    assert FusedMLP.of(Scaled(config)) is None
    assert FusedMLP.of(mlp(act="relu")) is None
    assert FusedMLP.of(mlp().half()) is None
