"""OpenVINO GenAI's continuous batching over a GGUF file; runs in an environment that has `openvino-genai`.

Its settings are those of the other engines: computation, keys and values in bfloat16 (by default the cache has 8 bits),
no prefix cache, equal tokens per step.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from benchmarks.lines import Job, System, serve_lines


def load(model: str, threads: int, step_tokens: int) -> System:
    """Load the pipeline; return a function that runs jobs in it."""
    scheduler = SchedulerConfig()
    scheduler.max_num_batched_tokens = step_tokens
    scheduler.max_num_seqs = 64
    scheduler.cache_size = 1  # GB
    scheduler.enable_prefix_caching = False
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": openvino.Type.bf16,
        "KV_CACHE_PRECISION": openvino.Type.bf16,
    }
    pipeline = ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        prompts = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt, _ in jobs]
        results = pipeline.generate(prompts, [_greedy(new) for _, new in jobs])
        return [list(result.m_generation_ids[0]) for result in results]

    return run


def _greedy(new: int) -> GenerationConfig:
    config = GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
    return config


if __name__ == "__main__":
    serve_lines(lambda: load(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
