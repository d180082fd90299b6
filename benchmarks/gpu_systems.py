"""The systems that `benchmarks.gpu` compares, each over a checkpoint folder and with the sizes that it chooses itself.

As a program, `python -m benchmarks.gpu_systems NAME FOLDER DTYPE`, the module runs one system that is driven by lines
of JSON. vLLM's may be in an environment without the others, so each imports what it needs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.lines import Job, System, serve_lines

OURS, TRANSFORMERS, VLLM, BREAKDOWN = "interlingua", "generate_batch", "vllm", "breakdown"
PARTS = ("prepare", "forward", "sample", "commit")
"""Of a step: drafts, masks and the schedule; inputs and the model; the choice of tokens; outputs."""
_SEQUENCES = 256


def interlingua(folder: str, dtype: str) -> System:
    """This engine, as the gateway loads it."""
    engine = _engine(folder, dtype)

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        _submit(engine, jobs)
        answers: list[list[int]] = [[] for _ in jobs]
        while engine.busy:
            for output in (output for step in engine.step().values() for output in step.outputs):
                assert output.error is None, output.error
                answers[output.seq] += output.ids
        return answers

    return run


def breakdown(folder: str, dtype: str) -> System:
    """Of all `PARTS` the microseconds that they take in each decode step of the jobs."""
    from backends.native.engine import loop

    engine = _engine(folder, dtype)
    engine._overlaps = False  # noqa: SLF001 - the parts of a step are measured alone
    ends: list[float] = []

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            ends.append(_now())
            found = call(*given)
            ends.append(_now())
            return found

        return wrapped

    runner, loop.sample = engine._runner, timed(loop.sample)  # type: ignore[attr-defined]  # noqa: SLF001
    runner.run = timed(runner.run)

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        _submit(engine, jobs)
        taken: list[list[int]] = [[] for _ in PARTS]
        heard: set[int] = set()
        while engine.busy:
            whole = len(heard) == len(jobs)
            ends[:] = [_now()]
            heard |= {output.seq for step in engine.step().values() for output in step.outputs}
            ends.append(_now())
            if whole and len(ends) == 6:
                began, launched, run_at, sampling, sampled, end = ends
                parts = (launched - began, run_at - launched, sampled - sampling, end - sampled)
                for each, part in zip(taken, parts, strict=True):
                    each.append(round(part * 1e6))
        return taken

    return run


def transformers(folder: str, dtype: str) -> System:
    """transformers' continuous batching, without shared prefixes, since prompts come twice."""
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

    from backends.native.engine.devices import default_device
    from benchmarks.systems import continuous

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(default_device()).eval()
    return continuous(model, sizes=ContinuousBatchingConfig(allow_block_sharing=False))


def vllm(folder: str, dtype: str) -> System:
    """vLLM, likewise."""
    from vllm import LLM, SamplingParams

    engine = LLM(folder, dtype=dtype, skip_tokenizer_init=True, enable_prefix_caching=False, max_num_seqs=_SEQUENCES)

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in jobs]
        params = [SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False) for _, new in jobs]
        return [list(found.outputs[0].token_ids) for found in engine.generate(prompts, params, use_tqdm=False)]

    return run


def _engine(folder: str, dtype: str) -> Any:
    from backends.native.engine.factory import load_engine
    from backends.native.protocol.engine_options import EngineOptions

    options = EngineOptions(folder, dtype=dtype, max_sequences=_SEQUENCES, prefix_caching=False, text_only=True)
    return load_engine(options, lambda _: None)[0]


def _submit(engine: Any, jobs: Sequence[Job]) -> None:
    from backends.native.protocol.messages import Submit

    for seq, (prompt, new) in enumerate(jobs):
        engine.handle(0, Submit(seq, tuple(prompt), new))


def _now() -> float:
    """The time when the device has done all that it was given."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


SYSTEMS: dict[str, Callable[[str, str], System]] = {
    OURS: interlingua,
    TRANSFORMERS: transformers,
    VLLM: vllm,
    BREAKDOWN: breakdown,
}

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    serve_lines(lambda: SYSTEMS[name](*given))
