"""How fast an engine decodes, and how often a step waits for the device."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import torch
from msgspec import Struct
from safetensors import safe_open

from backends.native.engine.doctor.machine import synchronize
from backends.native.engine.steps import Steps
from backends.native.protocol.messages import Submit

PROMPT = 32
SPARE = 64
"""Tokens that a sequence may be ahead of the last one to start."""


class Decoding(Struct, frozen=True):
    """Decode of so many sequences at once.

    Attributes:
        sequences: how many.
        step_seconds: of one step.
        tokens_per_second: of all sequences together.
        share_of_floor: the time in which memory could be read once for the weights, as a share of the step's; None: the
            size of the weights is not known.
        waits: how often a step waits for the device; None: the device does not tell.
    """

    sequences: int
    step_seconds: float
    tokens_per_second: float
    share_of_floor: float | None
    waits: int | None


def weight_numbers(folder: Path) -> int:
    """How many numbers the weights of a checkpoint have; 0: they are not in safetensors files."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            total += sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    return total


def decode(
    engine: Steps, device: torch.device, vocab_size: int, sequences: int, steps: int, floor: float | None
) -> Decoding:
    """Measure `steps` decode steps of `sequences` sequences.

    Args:
        engine: has room for them, and no other sequences.
        device: of the engine.
        vocab_size: of the model.
        sequences: how many.
        steps: how many steps are measured.
        floor: seconds in which memory can be read once for the weights.

    Raises:
        RuntimeError: a sequence failed.
    """
    draw = torch.Generator().manual_seed(sequences)
    for seq in range(sequences):
        prompt = tuple(torch.randint(0, vocab_size, (PROMPT,), generator=draw).tolist())
        engine.handle(0, Submit(seq, prompt, steps + SPARE))
    started: set[int] = set()
    while len(started) < sequences:
        started |= _step(engine)
    # A first step of this batch may compile.
    _step(engine)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        _step(engine)
    synchronize(device)
    seconds = (time.perf_counter() - began) / steps
    waits = _waits(engine, device)
    engine.disconnect(0)
    share = None if floor is None else floor / seconds
    return Decoding(sequences, seconds, sequences / seconds, share, waits)


def _step(engine: Steps) -> set[int]:
    """Run a step; the sequences that got tokens."""
    outputs = [output for step in engine.step().values() for output in step.outputs]
    for output in outputs:
        if output.error is not None:
            raise RuntimeError(f"a sequence failed: {output.error}")
    return {output.seq for output in outputs}


def _waits(engine: Steps, device: torch.device) -> int | None:
    """How often a step waits, as torch warns of it on CUDA."""
    if device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _step(engine)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
