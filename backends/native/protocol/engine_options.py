"""The options of an engine. 0 means: chosen automatically."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, get_origin

import msgspec

from backends.native.rerankers import Reranker

LoraName = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$", max_length=256)
]
"""A LoRA adapter's name, valid in every protocol that can name one. It is a key of a table, never a path."""

MTP = "mtp"
"""The `draft_model` that stands for the model's own layer for multi-token prediction."""


class ModelOptions(msgspec.Struct, frozen=True):
    """How to load and run a model.

    Attributes:
        model: folder of a checkpoint as `save_pretrained` writes it.
        dtype: `auto` (see `weights.pick_dtype`), `float32`, `bfloat16` (or `bf16`), `float16`; `int8` or `int4` for
            quantized weights (see `quantized_linear`, `int8_linear`).
        device: `auto`, `cpu`, or an accelerator as torch names it: `cuda` (also ROCm), `xpu`, `mps`, `cuda:1`.
        threads: CPU threads of torch; 0: all physical cores but one, which is left to the workers.
        context_length: tokens; shortens the model's own context.
        max_sequences: sequences in one batch; 0: 64, and 256 on an accelerator.
        max_waiting: sequences in the queue; more are rejected.
        short_first: let short requests (prompt and `max_tokens`) overtake long ones that wait.
        step_tokens: tokens of one step at most, which bounds how long running sequences wait for a prefill; 0: 512, and
            2,048 on an accelerator.
        block_size: tokens of a KV cache block.
        kv_tokens: tokens in the KV cache; 0: as many as memory allows.
        kv_cache_dtype: `auto`, the model's, or `int8`: keys and values in 8 bits.
        swap_space: GiB of the host's memory for the pages of preempted sequences of an accelerator; 0: none.
        prefix_caching: reuse cache blocks of equal prefixes.
        speculation: verify draft tokens where that is faster; the tokens stay the same.
        draft_model: folder of a smaller model of the same vocabulary that writes drafts, too; `mtp`: the model's own
            layer for multi-token prediction does; empty: none. Implies `speculation`.
        text_only: reject images even if the model takes them.
        execution_path: `auto` (the self-check decides), `packed` (paged cache) or `per_sequence`.
        lora_adapters: folders of LoRA adapters, as peft's `save_pretrained` writes them, by name.
        tensor_parallel: devices that share the model: each has a part of every layer.
        lora_folder: the folder of LoRA adapters that may be loaded while the model is served; empty: none may be.
        reranker: how a language model is asked for scores: "auto" (by its name), "none", a known name, or a table.
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 0
    context_length: int = 0
    max_sequences: int = 0
    max_waiting: int = 1024
    short_first: bool = False
    step_tokens: int = 0
    block_size: int = 16
    kv_tokens: int = 0
    kv_cache_dtype: str = "auto"
    swap_space: Annotated[float, msgspec.Meta(ge=0, le=65_536)] = 4.0
    prefix_caching: bool = True
    speculation: bool = False
    draft_model: str = ""
    text_only: bool = False
    execution_path: str = "auto"
    lora_adapters: dict[LoraName, str] = {}
    lora_folder: str = ""
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    reranker: str | Reranker = "auto"


class EngineOptions(ModelOptions, frozen=True):
    """The options of one engine, which may be one of several on a machine.

    Attributes:
        replica_number: its number, from 0.
        replica_count: how many they are: they share the machine's devices, or its cores and memory.
    """

    replica_number: int = 0
    replica_count: int = 1


def is_json(option: Any) -> bool:
    """Whether a command has the option (a field's type) as JSON."""
    return get_origin(option) in (dict, UnionType)
