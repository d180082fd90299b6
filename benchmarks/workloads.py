"""The workloads: prompts of random tokens, and how many tokens to generate. The same at every call."""

from __future__ import annotations

import random

from backends.native.protocol.messages import SamplingParams

Job = tuple[list[int], int]
"""A prompt, and how many tokens to generate."""

ONE, EIGHT, PREFIX = "decode, batch 1", "decode, batch 8", "prefix, nine tenths shared"
PREFILL = "prefill, 2048 tokens"
SCALE = 4
"""Divisor of the published mixed workload on a CPU: a fourth of its requests with a fourth of their lengths."""
EVERY_ROW_ITS_OWN = (
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1),
    SamplingParams(temperature=1.0, top_p=0.95, seed=2),
    SamplingParams(repetition_penalty=1.1, presence_penalty=0.5),
    SamplingParams(),
)


def decoding(vocab: int, sequences: int, new: int) -> list[Job]:
    """Short random prompts with `new` tokens to generate each."""
    draw = random.Random(sequences)
    return [([draw.randrange(vocab) for _ in range(16)], new) for _ in range(sequences)]


def workloads(vocab: int, *, scale: int) -> dict[str, list[Job]]:
    """The jobs of each workload by its name.

    Args:
        vocab: tokens to draw from.
        scale: divides the mixed workload, which is published as 256 requests of 100 to 1024 tokens in and out.
    """
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(vocab) for _ in range(length)]

    def between() -> int:
        return draw.randint(100, 1024) // scale

    shared = prompt(450)
    return {
        ONE: [(prompt(16), 33)],
        EIGHT: [(prompt(16), 33) for _ in range(8)],
        "decode, batch 32": [(prompt(16), 17) for _ in range(32)],
        PREFILL: [(prompt(2048), 1)],
        "mixed": [(prompt(between()), between()) for _ in range(256 // scale)],
        PREFIX: [(shared + prompt(50), 8) for _ in range(8)],
    }
