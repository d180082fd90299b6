"""What an engine can be told when it is made. 0 means: choose for me."""

from __future__ import annotations

from typing import Annotated

import msgspec

LoraName = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$", max_length=256)
]
"""What every protocol that has LoRA adapters takes for a name. It is a key of a table, never a path."""


class EngineOptions(msgspec.Struct, frozen=True):
    """How to load and run a model.

    Attributes:
        model: folder of a checkpoint as `save_pretrained` writes it.
        dtype: `auto` (see `weights.pick_dtype`), `float32`, `bfloat16` (or `bf16`), `float16`; `int8` or `int4` for
            weights of so many bits (see `quantised_linear`).
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        threads: CPU threads of torch; 0: the physical cores but one, which is left to the workers.
        context_length: shortens the model's own.
        max_sequences: sequences that run at once.
        max_waiting: sequences that wait; beyond, they are refused.
        step_tokens: the most tokens of one step, which bounds how long running sequences wait for a prefill.
        block_size: tokens of a KV cache block.
        kv_tokens: tokens the KV cache holds.
        prefix_caching: reuse cache blocks of equal prefixes.
        text_only: serve no pictures, of a model that takes them, either.
        tier: `auto` (by the self-check), or `packed` or `cache` to insist.
        lora_adapters: folders of LoRA adapters, as peft's `save_pretrained` writes them, by name.
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 0
    context_length: int = 0
    max_sequences: int = 64
    max_waiting: int = 1024
    step_tokens: int = 512
    block_size: int = 16
    kv_tokens: int = 0
    prefix_caching: bool = True
    text_only: bool = False
    tier: str = "auto"
    lora_adapters: dict[LoraName, str] = {}
