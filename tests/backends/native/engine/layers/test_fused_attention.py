"""Fused attention gives what the model's own does, and replaces only a module that it equals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaAttention

from backends.native.engine.attention.interface import NAME, AttentionMetadata, Forward, running
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.layers.fused_attention import FusedAttention, rotary_tables
from backends.native.engine.layers.fusion import alike
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.tiny import CONTEXT

pytestmark = [pytest.mark.torch, needs_compiler]


def attention(kind: type[LlamaAttention] = LlamaAttention, **given: Any) -> LlamaAttention:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": NAME}
    return kind(LlamaConfig(**(sizes | given)), layer_idx=0)


def is_replaced(module: nn.Module) -> bool:
    return FusedAttention.of(module, CONTEXT) is not None


@torch.inference_mode()
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True])
def test_output_and_cache_are_those_of_the_models_own(normed: bool, dtype: torch.dtype, join: bool) -> None:
    own: Any = attention()
    if normed:
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        own = Qwen3Attention(Qwen3Config(**sizes, attn_implementation=NAME), layer_idx=0)
        own.q_norm.weight.data.normal_()
        own.k_norm.weight.data.normal_()
    own = own.to(dtype)
    fused = FusedAttention.of(own, CONTEXT, join=join)
    assert fused is not None
    hidden, angles = torch.randn(1, 7, 64).to(dtype), torch.rand(1, 7, 8).mul(6.3).repeat(1, 1, 2)
    found = []
    for module in (own, fused):
        cache = KVCache(3, 4)
        metadata = AttentionMetadata(
            torch.tensor([8, 9, 10, 11, 0, 1, 4]), [6, 1], [6, 1], torch.tensor([[2, 0], [1, 0]])
        )
        with running(Forward(cache, metadata, reference_kernel)):
            output, _ = module(
                hidden_states=hidden,
                position_embeddings=(angles.cos().to(dtype), angles.sin().to(dtype)),
                attention_mask=None,
            )
        layer = cache.layer(0, torch.empty(0), torch.empty(0))
        found.append((output, layer.keys[metadata.slots], layer.values[metadata.slots]))
    for expected, given in zip(*found, strict=True):
        assert alike(expected, given)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_that_makes_its_own_rotary_embeddings(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16}
    own: Any = RecurrentGemmaAttention(RecurrentGemmaConfig(**sizes, attn_implementation=NAME), layer_idx=0).to(dtype)
    fused = FusedAttention.of(own, CONTEXT)
    assert fused is not None
    hidden, found = torch.randn(1, 2, 64).to(dtype), []
    for module, first in ((own, 3), (fused, 3), (fused, 4)):
        cache = KVCache(2, 8)
        metadata = AttentionMetadata(torch.tensor([0, 1]), [2], [2], torch.tensor([[0]]))
        with running(Forward(cache, metadata, reference_kernel)):
            positions = torch.tensor([[first, first + 1]])
            output, _ = module(hidden_states=hidden, position_ids=positions, attention_mask=None)
        found.append((output, cache.layer(0, torch.empty(0), torch.empty(0)).keys[:2]))
    expected, given, later = found
    assert all(map(alike, expected, given))
    assert not alike(expected[1], later[1])


def test_rotary_tables_of_another_shape_are_refused() -> None:
    table = torch.zeros(1, 3, 8)
    assert rotary_tables((table, table), 3, 8, table.bfloat16())[0].dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"rotary embeddings of shape \[1, 3, 8\] for 2 tokens of width 8"):
        rotary_tables((table, table), 2, 8, table)
    with pytest.raises(ValueError, match="width 4"):
        rotary_tables((table, table), 3, 4, table)


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
    assert is_replaced(attention())
    assert not is_replaced(attention(kind))


def test_attention_of_other_sizes_stays() -> None:
    assert is_replaced(attention(head_dim=10))
    odd = attention()
    odd.head_dim = 9
    assert not is_replaced(odd)
    assert not is_replaced(attention().half())
    normed = attention()
    normed.q_norm = nn.LayerNorm(16)
    assert not is_replaced(normed)
