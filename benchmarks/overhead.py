"""The overhead of the engine's own Python in a decode step, measured with a model of two small layers.

It is the time of a step without the model's forward pass, plus the metadata that attention prepares in the first layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from backends.native.engine.attention import cpu_decode, reference
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.loop import Engine
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.protocol.messages import Submit

TOY = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONTEXT, STEPS, BLOCK = 128, 40, 16


def print_overhead() -> None:
    """Print the overhead at three batch sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for batch in (1, 32, 256):
        print(f"step overhead, batch {batch:3}  {overhead(batch) * 1e6:5.0f} µs of Python a step")
    torch.set_num_threads(threads)


def overhead(batch: int) -> float:
    """CPU seconds of a decode step of `batch` sequences without the model, on one thread."""
    model = LlamaForCausalLM(LlamaConfig(**TOY)).eval()
    engine = _decoding(model, batch)
    taken = []
    for _ in range(STEPS):
        with (
            _timed(model, "forward") as forward,
            _timed(reference, "plan") as plan,
            _timed(cpu_decode, "find_decode_batch") as find,
        ):
            began = time.process_time()
            engine.step()
            taken.append(time.process_time() - began - sum(forward) + sum(plan) + sum(find))
    return median(taken)


def _decoding(model: Any, batch: int) -> Engine:
    """An engine in which all sequences are decoding."""
    blocks = batch * (CONTEXT + 2 * STEPS) // BLOCK
    scheduler = Scheduler(BlockPool(blocks, BLOCK), step_tokens=2048, max_sequences=batch)
    runner = PackedRunner(model, KVCache(blocks, BLOCK))
    engine = Engine(runner, scheduler, vocab_size=1000, context_length=2048)
    for seq in range(batch):
        prompt = tuple((7 * place + 13 * seq) % 1000 for place in range(CONTEXT - seq % BLOCK))
        engine.submit(0, Submit(seq, prompt, 2 * STEPS))
    while scheduler.waiting or any(sequence.pending > 1 for sequence in scheduler.running) or not scheduler.running:
        engine.step()
    return engine


@contextmanager
def _timed(owner: Any, name: str) -> Iterator[list[float]]:
    """Collect the seconds of each call of a function."""
    times: list[float] = []
    original: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        result = original(*args, **kwargs)
        times.append(time.process_time() - began)
        return result

    setattr(owner, name, timed)
    try:
        yield times
    finally:
        setattr(owner, name, original)


if __name__ == "__main__":
    print_overhead()
