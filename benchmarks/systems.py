"""The systems that `benchmarks.engine` compares: this engine and transformers' two, all over the same weights.

A system takes all jobs (prompt, tokens to generate) at once and returns the tokens; no job ends early. As a program,
`python -m benchmarks.systems NAME SHAPE DTYPE`, the module runs one system that is driven by lines of JSON.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.devices import default_device
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loop import Engine
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.machine import keep_freed_memory
from backends.native.protocol.messages import SamplingParams, Submit
from benchmarks.lines import serve_lines
from benchmarks.shapes import as_served, build
from benchmarks.workloads import EVERY_ROW_ITS_OWN, Job

System = Callable[[Sequence[Job]], list[list[int]]]

KV_TOKENS, BLOCK, STEP_TOKENS = 16_384, 16, 512


def interlingua(
    model: Any, sampling: Sequence[SamplingParams] = (), lora_adapters: Sequence[str] = ("",), *, caching: bool = False
) -> System:
    """This engine, as a worker's messages drive it; `sampling` and `lora_adapters` are given to the jobs in turn.

    With `caching` prompts share cached prefixes, but the cache starts empty in every run.
    """
    runner = PackedRunner(model, KVCache(KV_TOKENS // BLOCK, BLOCK), lora_adapters=tuple(lora_adapters))
    vocab, context = model.config.vocab_size, model.config.max_position_embeddings

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        pool = BlockPool(KV_TOKENS // BLOCK, BLOCK, caching=caching)
        scheduler = Scheduler(pool, step_tokens=STEP_TOKENS, max_sequences=64)
        engine = Engine(runner, scheduler, vocab_size=vocab, context_length=context)
        for seq, (prompt, new) in enumerate(jobs):
            params = sampling[seq % len(sampling)] if sampling else SamplingParams()
            lora = lora_adapters[seq % len(lora_adapters)]
            engine.submit(0, Submit(seq, tuple(prompt), new, params, lora_adapter=lora))
        answers: list[list[int]] = [[] for _ in jobs]
        while engine.busy:
            for output in (output for step in engine.step().values() for output in step.outputs):
                assert output.error is None, output.error
                answers[output.seq] += output.ids
        return answers

    return run


def prepare_process() -> None:
    """Have this process keep freed memory and no longer collect what it has imported, as the engine's process does."""
    keep_freed_memory()
    gc.freeze()
    atexit.register(gc.unfreeze)  # otherwise nanobind reports what is left at the end as leaks


def copying(model: Any) -> System:
    """Copy as many bytes as the weights have for each token: the bound of decoding at batch 1 by memory bandwidth."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    source = torch.ones(weights // 8, dtype=torch.float32, device=model.device)  # half as many
    target = torch.empty_like(source)

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        for _ in range(max(new for _, new in jobs)):
            target.copy_(source)
        return []

    return run


def static(model: Any) -> System:
    """`generate` over all jobs as one batch, left-padded, until the longest job ends."""

    @torch.inference_mode()
    def run(jobs: Sequence[Job]) -> list[list[int]]:
        width = max(len(prompt) for prompt, _ in jobs)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in jobs], device=model.device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in jobs]).to(model.device)
        longest = max(new for _, new in jobs)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, generation_config=_greedy())
        return [row[width : width + new].tolist() for row, (_, new) in zip(out, jobs, strict=True)]

    return run


def continuous(model: Any, *, sharing: bool = False, sizes: ContinuousBatchingConfig | None = None) -> System:
    """The manager of `generate_batch`, with the same cache size and tokens per step as this engine, or other `sizes`.

    It runs in a thread of its own until the process ends. With `sharing` prompts share cached prefixes, also with those
    of earlier runs.
    """
    model.set_attn_implementation("sdpa")
    sizes = sizes or ContinuousBatchingConfig(
        page_size=256,
        num_blocks=KV_TOKENS // 256,
        max_batch_tokens=STEP_TOKENS,
        allow_block_sharing=sharing,
    )
    manager = model.init_continuous_batching(_greedy(), sizes)
    if model.device.type != "cpu":
        manager.warmup()  # elsewhere nothing is gained, and this thread would open a set of OpenMP's
    manager.start()

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        names = [manager.add_request(prompt, max_new_tokens=new) for prompt, new in jobs]
        done: dict[str, list[int]] = {}
        while len(done) < len(jobs):
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise RuntimeError("generate_batch stopped")
            if result is not None and result.is_finished():
                done[result.request_id] = result.generated_tokens
        return [done[name] for name in names]

    return run


def _greedy() -> GenerationConfig:
    return GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)


SYSTEMS: dict[str, Callable[[Any], System]] = {
    "interlingua": lambda model: interlingua(as_served(model)),
    "caching": lambda model: interlingua(as_served(model), caching=True),
    "sampling": lambda model: interlingua(as_served(model), EVERY_ROW_ITS_OWN),
    "int8": lambda model: interlingua(as_served(model, BITS["int8"])),
    "int4": lambda model: interlingua(as_served(model, BITS["int4"])),
    "generate": static,
    "generate_batch": continuous,
    "sharing": lambda model: continuous(model, sharing=True),
    "copying": copying,
}


def load(name: str, shape: str, dtype: str) -> System:
    """Load one of `SYSTEMS` with random weights and as many threads as OMP_NUM_THREADS."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second set of threads, of one that only loads, would slow `generate_batch`'s own down
    model = build(shape, getattr(torch, dtype), default_device())
    torch.set_num_threads(threads)
    system = SYSTEMS[name](model)
    prepare_process()
    return system


if __name__ == "__main__":
    serve_lines(lambda: load(*sys.argv[1:]))
