"""Joined parts give what the model's own do, and only take the place of those that they equal."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from backends.native.engine.attention.interface import NAME
from backends.native.engine.kernels import jit
from backends.native.engine.layers.fuse_model import fuse_layers
from backends.native.engine.layers.fused_attention import FusedAttention
from backends.native.engine.layers.fused_mlp import FusedMLP
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.fusion import join as join_linears
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.layers.quantized_linear import QuantizedLinear, quantize_linears
from backends.native.engine.loading.self_check import why_not_packed
from tests.backends.native.engine.test_equality_with_generate import assert_equal, requests
from tests.backends.native.engine.tiny import CONTEXT, FAMILIES, build, packed_runner, tiny

pytestmark = pytest.mark.torch
WHOLE = {"llama", "qwen2", "qwen3", "mistral"}
"""Families all of whose layers' parts are joined."""


def mlp(width: int = 48, *, act: str = "silu", bias: bool = False) -> LlamaMLP:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=width, intermediate_size=2 * width + 8, hidden_act=act, num_attention_heads=1)
    config.mlp_bias = bias
    return LlamaMLP(config)


def attention(kind: type[LlamaAttention] = LlamaAttention, **given: Any) -> LlamaAttention:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": NAME}
    return kind(LlamaConfig(**(sizes | given)), layer_idx=0)


def joined(module: nn.Module) -> bool:
    return FusedAttention.of(module, CONTEXT) is not None


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", lambda _: None)


@pytest.fixture(autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    if "no_compiler" not in request.fixturenames and jit.find_compiler() is None:
        pytest.skip("missing tool: g++")


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("act", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("shape", [(1, 1, 48), (3, 40), (2, 5, 6), (90, 512), (0, 64), (1, 0, 64)])
def test_a_gated_layer(dtype: torch.dtype, act: str, shape: tuple[int, ...]) -> None:
    plain, rows = mlp(shape[-1], act=act, bias=True).to(dtype), torch.randn(shape).to(dtype)
    fused = FusedMLP.of(plain)
    assert fused is not None
    assert alike(plain(rows), fused(rows))


@torch.inference_mode()
def test_great_numbers_and_none_in_a_gated_layer() -> None:
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


def test_what_cannot_be_joined_stays_apart() -> None:
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


class Interleaved(LlamaAttention):
    """Turns neighbours, as some do, instead of halves."""

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **given: Any) -> Any:
        cosines, sines = (part.repeat_interleave(2, dim=-1)[..., : part.shape[-1]] for part in position_embeddings)
        return super().forward(hidden_states, position_embeddings=(cosines, sines), **given)


class Clipped(LlamaAttention):
    def forward(self, hidden_states: Tensor, **given: Any) -> Any:
        return super().forward(hidden_states.clamp(-8, 8), **given)


class FarTokensLouder(LlamaAttention):
    def forward(self, hidden_states: Tensor, position_ids: Tensor, **given: Any) -> Any:
        louder = torch.where(position_ids >= CONTEXT - 1, 1.1, 1.0).unsqueeze(-1)
        return super().forward(hidden_states * louder, **given)


class Gated(LlamaAttention):
    def forward(self, hidden_states: Tensor, **given: Any) -> Any:
        output, weights = super().forward(hidden_states, **given)
        return output * hidden_states.sigmoid(), weights


class Strict(LlamaAttention):
    def forward(self, hidden_states: Tensor) -> Any:
        raise AssertionError(hidden_states)


@pytest.mark.parametrize("kind", [Interleaved, Clipped, FarTokensLouder, Gated, Strict])
def test_other_attention_stays(kind: type[LlamaAttention]) -> None:
    assert joined(attention())
    assert not joined(attention(kind))


def test_attention_of_other_sizes_stays() -> None:
    assert joined(attention(head_dim=10))
    odd = attention()
    odd.head_dim = 9
    assert not joined(odd)
    assert not joined(attention().half())
    normed = attention()
    normed.q_norm = nn.LayerNorm(16)
    assert not joined(normed)


def kinds(model: nn.Module) -> set[str]:
    return {type(part).__name__ for part in model.modules() if type(part).__module__.startswith("backends.")}


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_them_answers_as_generate_does(family: str, join: bool) -> None:
    runner = packed_runner(family)
    runner._model = copy.deepcopy(runner._model)
    fuse_layers(runner._model, CONTEXT, join=join)
    assert ("FusedAttention" in kinds(runner._model)) == (family in WHOLE | {"gemma2"})
    asked = requests()
    assert_equal(family, asked, tiny(runner).answers(asked, apart=1))


@pytest.mark.parametrize("family", sorted(WHOLE))
def test_all_of_a_layer_is_joined(family: str) -> None:
    model = build(family)
    fuse_layers(model, CONTEXT)
    pack_linears(model, least=1)
    assert kinds(model) == {"FusedAttention", "FusedMLP", "FusedNorm", "PackedLinear"}


def test_joined_linears_are_rounded_like_others() -> None:
    model = build("llama")
    fuse_layers(model, CONTEXT)
    assert quantize_linears(model, 8) == 4 * len(model.model.layers)
    assert type(model.model.layers[0].self_attn.qkv_proj) is QuantizedLinear


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_all_stay() -> None:
    model = build("qwen3")
    fuse_layers(model, CONTEXT)
    assert not kinds(model)


def test_the_self_check_notices_a_wrong_one() -> None:
    fuse = partial(fuse_layers, longest=CONTEXT)

    def wrong(model: Any) -> None:
        fuse(model)
        model.model.layers[0].self_attn.heads = 0

    def shifted(model: Any) -> None:
        fuse(model)
        weight = model.model.layers[1].mlp.gate_up_proj.weight
        weight.data = weight.roll(1, 0)

    model = build("llama")
    assert why_not_packed(model, change=fuse) is None
    assert why_not_packed(model, change=wrong) is not None
    assert "other logits" in (why_not_packed(model, change=shifted) or "")


def test_only_layers_of_a_kind_are_joined() -> None:
    both = join_linears(nn.Linear(4, 2), nn.Linear(4, 3))
    assert both is not None
    assert (both.in_features, both.out_features, both.weight.shape) == (4, 5, (5, 4))
    assert join_linears(nn.Linear(4, 2), nn.Linear(5, 2)) is None
    assert join_linears(nn.Linear(4, 2), nn.Linear(4, 2, bias=False)) is None
    assert join_linears(nn.Linear(4, 2), nn.Linear(4, 2).half()) is None


def test_apart_they_keep_their_names_for_lora_adapters() -> None:
    model = build("llama")
    names = {name for name, part in model.named_modules() if type(part) is nn.Linear}
    fuse_layers(model, CONTEXT, join=False)
    assert {name for name, part in model.named_modules() if type(part) is nn.Linear} == names
    assert "FusedMLP" in kinds(model)
