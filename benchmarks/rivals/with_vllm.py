"""vLLM's offline engine over a folder of transformers; runs in an environment that has vLLM built for CPUs.

Its settings are those of the other engines: bfloat16, no prefix cache, equal tokens per step. It compiles the model at
start, which takes minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from benchmarks.lines import Job, System, serve_lines


def load(model: str, step_tokens: int) -> System:
    """Load the engine; return a function that runs jobs in it."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GB
    # As many threads as OMP_NUM_THREADS says, on any core: nobody else's are bound to one either.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM, SamplingParams, TokensPrompt

    engine = LLM(
        model,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=64,
        max_num_batched_tokens=step_tokens,
        enable_prefix_caching=False,
    )

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in jobs]
        greedy = [SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False) for _, new in jobs]
        outputs = engine.generate(prompts, greedy, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run


if __name__ == "__main__":
    serve_lines(lambda: load(sys.argv[1], int(sys.argv[3])))
