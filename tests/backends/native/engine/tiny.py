"""Tiny models of many families with wide random weights, and engines over them, shared by the engine's tests.

At an ordinary initialization greedy tokens hardly depend on the context, and wrong attention would go unnoticed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.loop import Engine
from backends.native.engine.runner.packed import PackedRunner, Runner
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.runner.stacking import Stacking
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.protocol.messages import Logprobs, Output, Submit
from schemas.ir import FinishReason

VOCAB = 96
CONTEXT = 128

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SLIDING = {"sliding_window": 10, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _SHAPE,
    "qwen2": _SHAPE,
    "qwen3": _SHAPE,
    "mistral": _SHAPE | {"sliding_window": 10},
    "gemma2": _SHAPE | _SLIDING | {"query_pre_attn_scalar": 12, "attn_logit_softcapping": 5.0},
    "gemma3_text": _SHAPE | _SLIDING | {"query_pre_attn_scalar": 12},
    "phi3": _SHAPE | {"sliding_window": 10},
    "gpt2": {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
    | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "gpt_oss": _SHAPE | _SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
ADAPTED: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": VOCAB, "hidden_size": 36, "n_layer": 2, "n_head": 6, "pad_token_id": 0},
    "mpt": {"vocab_size": VOCAB, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT},
    "falcon": {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"new_decoder_architecture": True, "num_kv_heads": 2, "max_position_embeddings": CONTEXT}
    | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "gptj": {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": CONTEXT}
    | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "codegen": {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": CONTEXT}
    | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "llama4_text": _SHAPE
    | {"attention_chunk_size": 10, "floor_scale": 8, "intermediate_size_mlp": 64, "num_local_experts": 2}
    | {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]},
}
"""Families whose attention modules are given another forward (`attention.adapted`)."""
_MAMBA_2 = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "pad_token_id": 0},
    "mamba2": {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0}
    | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "lfm2": _SHAPE | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "qwen3_5_text": _SHAPE | _DELTA_NET,
    "falcon_h1": _SHAPE | _MAMBA_2 | {"mamba_d_ssm": 96},
    "jamba": _SHAPE
    | {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
    | {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "recurrent_gemma": _SHAPE
    | {"lru_width": 48, "attention_window_size": 10, "block_types": ["recurrent", "attention"]},
}
"""Families with recurrent state."""
_NO_LIMIT = 1e-9  # of time steps: transformers heeds it in prompts and not in decode
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MORE_RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_next": _SHAPE | _DELTA_NET | _EXPERTS | {"shared_expert_intermediate_size": 16},
    "olmo_hybrid": _SHAPE | _DELTA_NET,
    "kimi_linear": _SHAPE
    | _EXPERTS
    | {"num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    | {"layer_types": ["linear_attention", "full_attention"], "linear_head_dim": 8, "linear_num_heads": 4}
    | {"mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4},
    "granitemoehybrid": _SHAPE
    | _MAMBA_2
    | {"layer_types": ["mamba", "attention"], "num_local_experts": 4, "shared_intermediate_size": 16},
    "bamba": _SHAPE | _MAMBA_2 | {"attn_layer_indices": [1]},
    "nemotron_h": _SHAPE
    | _EXPERTS
    | {"layers_block_type": ["mamba", "moe", "attention", "mlp"], "n_routed_experts": 4}
    | {"moe_shared_expert_intermediate_size": 16, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 12}
    | {"n_groups": 1, "chunk_size": 8, "time_step_min": _NO_LIMIT},
    "zamba": _SHAPE
    | {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "hybrid"], "mamba_d_state": 4}
    | {"mamba_dt_rank": 4, "attention_hidden_size": 96, "attention_head_dim": 24}
    | {"num_key_value_heads": 4},
    "zamba2": _SHAPE
    | {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "hybrid"], "mamba_d_state": 8}
    | {"n_mamba_heads": 8, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 2}
    | {"use_shared_attention_adapter": True, "adapter_rank": 4, "use_mem_rope": True, "num_key_value_heads": 4}
    | {"head_dim": 24, "time_step_min": _NO_LIMIT},
    "lfm2_moe": _SHAPE
    | _EXPERTS
    | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "num_dense_layers": 1},
    "minimax": _SHAPE
    | {"layer_types": ["linear_attention", "full_attention"], "block_size": 8, "num_local_experts": 4},
    "falcon_mamba": {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 4,
        "pad_token_id": 0,
    },
}
"""The same, which the suite compares in one engine each, and `make test-accelerator` in all of them."""
EXPERTS: dict[str, dict[str, Any]] = {"mixtral": _SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}}
"""Families that transformers stores with a tensor for each expert, and runs with one for all."""
OTHERS: dict[str, dict[str, Any]] = {
    "rembert": {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"input_embedding_size": 24, "output_embedding_size": 24, "intermediate_size": 64, "is_decoder": True}
    | {"max_position_embeddings": CONTEXT, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "deepseek_v32": _SHAPE
    | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
    | {"v_head_dim": 8, "index_topk": 10, "index_n_heads": 2, "index_head_dim": 16, "first_k_dense_replace": 1}
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16},
    "roformer": {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"embedding_size": 48, "intermediate_size": 64, "is_decoder": True, "max_position_embeddings": CONTEXT}
    | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "rwkv": {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "context_length": CONTEXT}
    | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
"""Families that the packed execution path does not run."""


def build(family: str) -> Any:
    """Build a tiny model in float32 with its own attention; the same at every call."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, **(FAMILIES | ADAPTED | RECURRENT | MORE_RECURRENT | EXPERTS | OTHERS)[family]
    )
    built = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in built.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
        else:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return built


plain = functools.lru_cache(build)
"""The model of a family that the reference runs."""
_packed = functools.lru_cache(build)
"""The model of the packed execution path, whose attention is set to the engine's."""


def prompt(length: int, seed: int) -> tuple[int, ...]:
    """Random tokens, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist())


@dataclass(slots=True)
class Answer:
    """All outputs of a sequence."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt: tuple[Logprobs, ...] = ()
    cached_tokens: int = 0
    reason: FinishReason | None = None
    error: str | None = None
    overloaded: bool = False

    def add(self, output: Output) -> None:
        """Add the output of a step."""
        assert self.reason is None, "an output after the end"
        assert self.error is None, "an output after the end"
        self.ids += output.ids
        self.logprobs += output.logprobs
        self.prompt += output.prompt
        self.cached_tokens += output.cached_tokens
        self.reason, self.error, self.overloaded = output.reason, output.error, output.overloaded

    @property
    def ended(self) -> bool:
        """Whether there was a last output."""
        return self.reason is not None or self.error is not None


@dataclass(slots=True)
class Tiny:
    """An engine over a tiny model, with access to its parts."""

    engine: Engine
    scheduler: Scheduler
    runner: Runner
    preemptions: list[int] = field(default_factory=list)

    def answers(self, requests: Iterable[Submit], *, apart: int = 0) -> dict[int, Answer]:
        """Run until all have ended, with `apart` steps after each submit."""
        answers = {request.seq: Answer() for request in requests}
        for request in requests:
            self.engine.submit(0, request)
            for _ in range(apart):
                self.take(answers)
        while self.engine.busy:
            self.take(answers)
        assert all(answer.ended for answer in answers.values())
        assert self.scheduler.pool.free == self.scheduler.pool.count
        return answers

    def take(self, answers: dict[int, Answer]) -> None:
        """Run one step and add its outputs."""
        for step in self.engine.step().values():
            for output in step.outputs:
                answers[output.seq].add(output)


def packed_runner(family: str, blocks: int = 64, size: int = 4) -> PackedRunner:
    """The packed execution path."""
    return PackedRunner(_packed(family), KVCache(blocks, size), snapshots=64)


def tiny(
    runner: Runner,
    *,
    blocks: int = 64,
    size: int = 4,
    caching: bool = True,
    step_tokens: int = CONTEXT + 8,
    max_sequences: int = 8,
    max_waiting: int = 1024,
    **parts: Any,
) -> Tiny:
    """An engine around `runner`, whose cache must have `blocks` blocks of `size` tokens; `parts` are of `Engine`."""
    preemptions: list[int] = []

    def on_preempted(sequence: Any) -> None:
        preemptions.append(sequence.request.seq)
        runner.forget(sequence)

    scheduler = Scheduler(
        BlockPool(blocks, size, caching=caching and runner.unchunked != "prompt"),
        step_tokens=step_tokens,
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        unchunked=runner.unchunked,
        on_preempted=on_preempted,
        snapshots=runner.states,
    )
    engine = Engine(runner, scheduler, vocab_size=VOCAB, context_length=CONTEXT, **parts)
    return Tiny(engine, scheduler, runner, preemptions)


def cache_runner(family: str, stacking: Stacking = Stacking.NONE) -> PerSequenceRunner:
    """The per-sequence execution path, over a model with its own attention."""
    return PerSequenceRunner(plain(family), stacking=stacking)


@dataclass(slots=True, frozen=True)
class Reference:
    """Greedy result of transformers' `generate`."""

    ids: list[int]
    logprobs: torch.Tensor  # [tokens, vocabulary]


@functools.lru_cache(maxsize=512)
def reference(family: str, tokens: tuple[int, ...], new: int) -> Reference:
    """Greedy generation by transformers, past any end token."""
    given = torch.tensor([tokens])
    for module in plain(family).modules():
        if hasattr(module, "conv1d_state"):  # RecurrentGemma would run a prompt of one token from its last state
            module.conv1d_state = None
    out = plain(family).generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ids = out.sequences[0, len(tokens) :].tolist()
    return Reference(ids, torch.stack(out.logits)[:, 0].float().log_softmax(-1))
