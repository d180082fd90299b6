"""The fused decoder layer gives what its parts give, in the steps that it takes, and replaces no other layer."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer

from backends.native.engine.attention.interface import AttentionMetadata, Forward, running
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.layers.fuse_model import fuse_decoder_layers, fuse_layers
from backends.native.engine.layers.fused_attention import FusedAttention
from backends.native.engine.layers.fused_decoder_layer import FusedDecoderLayer
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.layers.quantized_linear import BITS, quantize_linears
from backends.native.engine.loading.self_check import why_not_packed
from backends.native.engine.runner.packed import PackedRunner
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.tiny import CONTEXT, VOCAB, prompt, tiny

pytestmark = [pytest.mark.torch, needs_compiler]

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"intermediate_size": 100},  # no multiple of a block's 64 outputs or 16 words of inputs
    "qwen3": {},
    "mistral": {"sliding_window": 10},
}


def build(family: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **(SIZES | FAMILIES.get(family, {}) | more))
    built = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in built.parameters():
        wide = parameter.dim() >= 2
        parameter.data.normal_(0.0 if wide else 1.0, 1.5 / parameter.shape[-1] ** 0.5 if wide else 0.2)
    return built


def fused(model: Any, *, join: bool = True, bits: int = 0) -> Any:
    own = copy.deepcopy(model)
    with torch.inference_mode():
        fuse_layers(own, CONTEXT, join=join)
        if bits:
            quantize_linears(own, bits)
        pack_linears(own, least=1)
        fuse_decoder_layers(own)
    return own


def fused_layers(model: Any) -> list[FusedDecoderLayer]:
    return [part for part in model.modules() if type(part) is FusedDecoderLayer]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_model_answers_as_generate_does(family: str) -> None:
    plain = build(family)
    own = fused(plain)
    assert len(fused_layers(own)) == 2
    asked = [Submit(seq, prompt(length, seq), 12) for seq, length in enumerate((3, 17, 30, 41))]
    for apart in (0, 1):  # 1: with prompts beside sequences in decode; the longest one is computed by the parts
        answers = tiny(PackedRunner(own, KVCache(64, 4))).answers(asked, apart=apart)
        for request in asked:
            ids = torch.tensor([request.prompt])
            expected = plain.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
            assert answers[request.seq].ids == expected[0, len(request.prompt) :].tolist()


def step(rows: int, dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, Tensor], AttentionMetadata]:
    """A decode step of `rows` sequences of 2 to 130 tokens."""
    torch.manual_seed(rows)
    angles = torch.rand(1, rows, 16).mul(6.3).repeat(1, 1, 2)
    contexts = torch.randint(2, 131, (rows,)).tolist()
    tables = torch.randperm(rows * 9).view(rows, 9)
    last = torch.tensor(contexts) - 1
    slots = tables[torch.arange(rows), last // 16] * 16 + last % 16
    hidden = torch.randn(1, rows, 64).to(dtype)
    return (
        hidden,
        (angles.cos().to(dtype), angles.sin().to(dtype)),
        AttentionMetadata(slots, [1] * rows, contexts, tables),
    )


def run(layer: Any, rows: int, dtype: torch.dtype, kernel: Any = best_kernel) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's output, and all keys and values after it."""
    hidden, places, metadata = step(rows, dtype)
    given, cache = hidden.clone(), KVCache(rows * 9, 16)
    pools = cache.layer(0, torch.empty(1, 2, 32, dtype=dtype), torch.empty(1, 2, 32, dtype=dtype))
    for pool in (pools.keys, pools.values):
        pool.normal_(generator=torch.Generator().manual_seed(1))
    with running(Forward(cache, metadata, kernel)):
        output = layer(given, position_embeddings=places)
    assert torch.equal(given, hidden), "the layer must not change its input"
    return output, pools.keys, pools.values


@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 24, 25, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_its_parts(family: str, dtype: torch.dtype, rows: int, threads: int) -> None:
    own = fused(build(family).to(dtype))
    if not fused_layers(own):
        pytest.skip("oneDNN does not multiply this here")
    whole = fused_layers(own)[0]
    torch.set_num_threads(threads)
    try:
        for expected, found in zip(run(whole.layer, rows, dtype), run(whole, rows, dtype), strict=True):
            assert alike(expected, found)
    finally:
        torch.set_num_threads(1)


@torch.inference_mode()
@pytest.mark.parametrize("bits", BITS.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_quantized_layers_short_steps_take_the_blocks(dtype: torch.dtype, bits: int) -> None:
    own = fused(build("llama").to(dtype), bits=bits)
    if not fused_layers(own):
        pytest.skip("oneDNN does not multiply this here")
    whole = fused_layers(own)[0]
    for rows in (1, 6, 7, 25):
        for expected, found in zip(run(whole.layer, rows, dtype), run(whole, rows, dtype), strict=True):
            assert alike(expected, found)
    assert (whole._few.qkv.parts, whole._description.qkv.parts) == (1, 0)


@torch.inference_mode()
def test_layers_of_one_step_may_have_other_rotary_embeddings() -> None:
    whole = fused_layers(fused(build("llama")))[0]
    hidden, places, metadata = step(3, torch.float32)
    others = (places[1], places[0])

    def outputs(*metadatas: AttentionMetadata) -> list[Tensor]:
        found, cache = [], KVCache(27, 16)
        for each, rotary in zip(metadatas, (places, others, places), strict=True):
            layer = cache.layer(0, torch.empty(1, 2, 32), torch.empty(1, 2, 32))
            for pool in (layer.keys, layer.values):
                pool.normal_(generator=torch.Generator().manual_seed(1))
            with running(Forward(cache, each, best_kernel)):
                found.append(whole(hidden, position_embeddings=rotary))
        return found

    together = outputs(metadata, metadata, metadata)
    apart = outputs(*(replace(metadata, plans={}) for _ in range(3)))
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))
    assert not torch.equal(together[0], together[1])


@torch.inference_mode()
def test_only_steps_of_up_to_64_tokens_without_long_prompts_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fused_layers(fused(build("llama")))[0]
    calls = []
    monkeypatch.setattr(whole, "_compute", lambda *_: calls.append(1))
    run(whole, 64, torch.float32)
    assert len(calls) == 1
    run(whole, 65, torch.float32)
    run(whole, 3, torch.float32, reference_kernel)
    hidden, places, metadata = step(3, torch.float32)
    metadata.query_lengths[:] = [2, 1]  # the last two tokens of a long prompt
    metadata.context_lengths[:] = [600, 5]
    metadata.block_tables = torch.zeros(2, 38, dtype=torch.int64)
    with running(Forward(KVCache(27, 16), metadata, best_kernel)):
        whole(hidden, position_embeddings=places)
    assert len(calls) == 1
    metadata.plans.clear()
    metadata.context_lengths[:] = [20, 5]
    with running(Forward(KVCache(27, 16), metadata, best_kernel)):
        whole(hidden, position_embeddings=places)
    assert len(calls) == 2


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_short_prompts_and_drafts_are_taken(dtype: torch.dtype) -> None:
    whole = fused_layers(fused(build("qwen3").to(dtype)))[0]
    hidden, places, _ = step(12, dtype)
    # A prompt of five tokens, a sequence in decode, and another one with five drafts to verify.
    tables = torch.randperm(12).view(3, 4)
    positions = [(0, at) for at in range(5)] + [(1, 40)] + [(2, at) for at in range(20, 26)]
    slots = torch.stack([tables[row, at // 16] * 16 + at % 16 for row, at in positions])
    found = []
    for layer in (whole.layer, whole):
        cache = KVCache(12, 16)
        pools = cache.layer(0, torch.empty(1, 2, 32, dtype=dtype), torch.empty(1, 2, 32, dtype=dtype))
        for pool in (pools.keys, pools.values):
            pool.normal_(generator=torch.Generator().manual_seed(1))
        metadata = AttentionMetadata(slots, [5, 1, 6], [5, 41, 26], tables)
        with running(Forward(cache, metadata, best_kernel if layer is whole else reference_kernel)):
            output = layer(hidden, attention_mask=None, position_ids=None, position_embeddings=places)
        found.append((output, pools.keys, pools.values))
    assert all(alike(expected, own) for expected, own in zip(*found, strict=True))


def layers_of(count: int) -> list[FusedDecoderLayer]:
    return fused_layers(fused(build("llama", num_hidden_layers=count)))


def through(layers: Any, hidden: Tensor, rotaries: list[Any], metadata: AttentionMetadata) -> list[Tensor]:
    """The outputs of all layers, each called with the one before, as model code does."""
    outputs, cache = [hidden], KVCache(27, 16)
    for layer in layers:
        pools = cache.layer(layer.index, torch.empty(1, 2, 32), torch.empty(1, 2, 32))
        for pool in (pools.keys, pools.values):
            pool.normal_(generator=torch.Generator().manual_seed(layer.index))
    with running(Forward(cache, replace(metadata, plans={}), best_kernel)):
        for layer, rotary in zip(layers, rotaries, strict=True):
            outputs.append(layer(outputs[-1], position_embeddings=rotary))
    return outputs[1:]


@torch.inference_mode()
def test_up_to_eight_layers_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_of(11)
    assert [len(layer.following) for layer in layers] == [7, *[0] * 7, 2, 0, 0]
    hidden, places, metadata = step(3, torch.float32)
    calls = []
    for layer in layers:
        counted = lambda *given, own=layer._compute: (calls.append(given[1]), own(*given))  # noqa: E731
        monkeypatch.setattr(layer, "_compute", counted)
    together = through(layers, hidden, [places] * 11, metadata)
    assert calls == [8, 3]
    for layer in layers:
        layer.following = ()
    apart = through(layers, hidden, [places] * 11, metadata)
    assert calls == [8, 3, *[1] * 11]
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))


@torch.inference_mode()
def test_a_layer_that_is_given_something_else_is_computed_again_and_then_alone() -> None:
    layers = layers_of(4)
    hidden, places, metadata = step(3, torch.float32)
    others = (places[1], places[0])
    found = through(layers, hidden, [places, others, places, others], metadata)
    assert [len(layer.following) for layer in layers] == [0, 0, 0, 0]
    expected = through(layers, hidden, [places, others, places, others], metadata)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@torch.inference_mode()
def test_a_layer_whose_input_was_changed_is_computed_again() -> None:
    layers = layers_of(3)
    hidden, places, metadata = step(3, torch.float32)

    class Louder(torch.nn.Identity):
        index = 3

        def forward(self, rows: Tensor, **_: Any) -> Tensor:
            return rows * 2

    between = [layers[0], Louder(), *layers[1:]]
    found = through(between, hidden, [places] * 4, metadata)
    assert [len(layer.following) for layer in layers] == [0, 0, 0]
    assert torch.equal(found[-1], through(between, hidden, [places] * 4, metadata)[-1])


@torch.inference_mode()
def test_layers_of_other_sizes_are_calls_of_their_own() -> None:
    layers = layers_of(4)
    layers[2].kind = "another"
    FusedDecoderLayer.chain([*layers, torch.nn.Identity(), layers[0]])
    assert [len(layer.following) for layer in layers[1:]] == [0, 0, 0]
    FusedDecoderLayer.chain(layers)
    assert [len(layer.following) for layer in layers] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("granite", {"residual_multiplier": 0.5}),
        ("gemma2", {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 32}),
        ("olmo2", {}),  # norms after
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ],
)
def test_layers_of_another_form_stay(family: str, more: dict[str, Any]) -> None:
    assert not fused_layers(fused(build(family, **more)))


class NeedsAnotherArgument(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, louder: float, **given: Any) -> Any:
        return super().forward(hidden_states * louder, **given)


def test_a_layer_that_needs_another_argument_stays() -> None:
    model = build("llama")
    model.model.layers[1].__class__ = NeedsAnotherArgument
    assert len(fused_layers(fused(model))) == 1


class OwnRotary(LlamaAttention):
    def forward(self, hidden_states: Tensor, position_ids: Tensor, **given: Any) -> Any:
        given["position_embeddings"] = self.rotary_emb(hidden_states, position_ids)
        return super().forward(hidden_states, **given)


def test_a_layer_that_makes_its_own_rotary_embeddings_stays() -> None:
    model = build("llama")
    attention = model.model.layers[1].self_attn
    attention.__class__, attention.rotary_emb = OwnRotary, model.model.rotary_emb
    own = fused(model)
    assert type(own.model.layers[1].self_attn) is FusedAttention
    assert len(fused_layers(own)) == 1


def test_layers_whose_linears_are_not_joined_stay() -> None:
    assert not fused_layers(fused(build("llama"), join=False))


def test_attributes_are_those_of_the_models_own_layer() -> None:
    layer = fused_layers(fused(build("qwen2")))[0]
    assert layer.hidden_size == 64
    with pytest.raises(AttributeError):
        _ = layer.nothing_like_it


def test_the_self_check_passes_with_fused_layers() -> None:
    def change(small: Any) -> None:
        partial(fuse_layers, longest=CONTEXT)(small)
        pack_linears(small, least=1)
        fuse_decoder_layers(small)

    assert why_not_packed(build("llama"), change=change) is None
