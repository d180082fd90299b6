"""Whole engines on an accelerator and on the CPU, over the same folder and the same requests.

The accelerator is the machine's own if it has one, else the pretended one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.native.engine.factory import load_engine
from backends.native.engine.loop import Engine
from backends.native.engine.steps import Steps
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Ready, SamplingParams, Submit
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.trace import Trace
from tests.backends.native.engine.tiny import build, prompt

BATCH = 4
OWN = torch.accelerator.is_available()
"""Whether this machine has an accelerator of its own."""
WIDE = bool(os.environ.get("INTERLINGUA_WIDE"))
"""Set by `make test-accelerator`. Every operation takes a hundred times as long on the pretended device."""

counted = pytest.mark.skipif(OWN, reason="waits, copies and kernels are counted on the pretended accelerator")
wide = pytest.mark.skipif(not WIDE, reason="part of `make test-accelerator`")


@dataclass(slots=True, eq=False)
class Heard:
    """All outputs of one sequence."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    vector: tuple[float, ...] = ()
    error: str | None = None
    ended: bool = False


SAMPLING: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.8, seed=3),
    "top_k and top_p": SamplingParams(temperature=0.8, seed=3, top_k=40, top_p=0.9),
    "top_p": SamplingParams(temperature=1.0, seed=4, top_p=0.9),
    "min_p and typical_p": SamplingParams(temperature=1.0, seed=5, min_p=0.02, typical_p=0.9),
    "penalties": SamplingParams(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    "bias and watermark": SamplingParams(logit_bias=((7, 2.0),), watermark=True),
}


def requests(new: int = 6) -> list[Submit]:
    """Every kind of request that needs no more than a language model."""
    lengths = (17, 5, 23, 9, 30, 12, 40)
    found = [
        Submit(seq, prompt(length, seq), new, params, top_logprobs=seq % 4 - 1)
        for seq, (length, params) in enumerate(zip(lengths, SAMPLING.values(), strict=True))
    ]
    found.append(Submit(len(found), prompt(12, 7), new, eos_token_ids=(2,), min_new_tokens=3))
    found.append(Submit(len(found), prompt(40, 8), new, prompt_logprobs=2))
    found.append(Submit(len(found), prompt(21, 9), 0, pool=True))
    return found


def save(family: str, folder: Path) -> Path:
    """A tiny model of a family on disk."""
    build(family).save_pretrained(folder)
    return folder


@contextmanager
def accelerator() -> Iterator[PretendedDevice | None]:
    """The machine's own accelerator, on which nothing is counted (None), or the pretended one."""
    if OWN:
        yield None
        return
    with PretendedDevice() as device:
        yield device


def load(folder: Path, device: str, **options: Any) -> tuple[Steps, Ready]:
    """An engine over a folder."""
    given = {"step_tokens": 64, "max_sequences": 16, "kv_tokens": 2048, "threads": 1, **options}
    return load_engine(EngineOptions(str(folder), device=device, **given), lambda _: None)


def spoil_pages(engine: Steps) -> None:
    """Fill a packed engine's cache with NaN: what no sequence has written must not count."""
    assert isinstance(engine, Engine)
    for layer in engine._runner.cache._layers.values():  # type: ignore[attr-defined]
        for pool in (layer.keys, layer.values):
            with torch.inference_mode():
                pool.fill_(float("nan"))


def drive(
    engine: Steps, asked: Iterable[Submit], after_step: Callable[[dict[int, Heard]], None] = lambda _: None
) -> dict[int, Heard]:
    """Run requests to their ends; `after_step` is called after each step with what was heard so far."""
    heard: dict[int, Heard] = {}
    for request in asked:
        heard[request.seq] = Heard()
        engine.handle(0, request)
    for _ in range(1000):
        if not engine.busy:
            return heard
        for step in engine.step().values():
            for output in step.outputs:
                each = heard[output.seq]
                each.ids += output.ids
                each.logprobs += [found.logprob for found in output.logprobs if found.logprob is not None]
                each.prompt += [found.logprob for found in output.prompt if found.logprob is not None]
                each.vector = each.vector or tuple(output.vector)
                each.error, each.ended = output.error, output.reason is not None
        after_step(heard)
    raise AssertionError("it never ended")


def assert_same(found: dict[int, Heard], expected: dict[int, Heard]) -> None:
    """Tokens and errors are equal; logprobs and vectors but for roundings."""
    assert found.keys() == expected.keys()
    for seq, each in expected.items():
        mine = found[seq]
        assert (mine.ids, mine.error, mine.ended) == (each.ids, each.error, each.ended), f"sequence {seq}"
        for name in ("logprobs", "prompt", "vector"):
            left, right = torch.tensor(getattr(mine, name)), torch.tensor(getattr(each, name))
            torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4, msg=f"{name} of sequence {seq}")


def decode_steps(
    device: PretendedDevice, folder: Path, kinds: Mapping[str, SamplingParams], batch: int = BATCH
) -> Iterator[tuple[str, Trace]]:
    """What a decode step of `batch` sequences of unlike lengths does, for each way of choosing tokens."""
    engine, _ = load(folder, device.device.type, step_tokens=512, execution_path="packed", prefix_caching=False)
    for kind, params in kinds.items():
        for seq in range(batch):
            engine.handle(0, Submit(seq, prompt(8 + 3 * seq, seq), 8, params))
        for _ in range(3):  # prompts, and two to settle
            engine.step()
        device.trace.clear()
        engine.step()
        yield kind, device.trace
        engine.disconnect(0)
