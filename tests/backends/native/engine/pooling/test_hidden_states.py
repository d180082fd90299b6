"""Vectors from a model that writes, in the engine: half-read texts whose blocks are taken begin again."""

from __future__ import annotations

import msgspec
import pytest
import torch

from backends.native.demo import WEIGHTS
from backends.native.engine.factory import load_engine
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Submit

pytestmark = pytest.mark.torch

STORIES = 3
OPTIONS = EngineOptions(
    str(WEIGHTS),
    dtype="float32",
    device="cpu",
    threads=1,
    execution_path="packed",
    block_size=4,
    step_tokens=8,
    max_sequences=5,
    prefix_caching=False,
)


def vectors(kv_tokens: int) -> tuple[dict[int, tuple[float, ...]], list[int]]:
    """Texts read beside stories that grow: their vectors, and the sequences that were preempted."""
    engine, _ = load_engine(msgspec.structs.replace(OPTIONS, kv_tokens=kv_tokens), lambda _: None)
    preempted: list[int] = []
    engine._scheduler._on_preempted = lambda sequence: preempted.append(sequence.request.seq)  # type: ignore[attr-defined]
    for seq in range(STORIES):
        engine.handle(0, Submit(seq, (5, 6, 7), 80))
    for seq in range(STORIES, STORIES + 4):
        engine.handle(0, Submit(seq, tuple(range(10 + seq, 100 + seq)), 0, pool=True))
    found: dict[int, tuple[float, ...]] = {}
    while engine.busy:
        for step in engine.step().values():
            found |= {output.seq: output.vector for output in step.outputs if output.vector}
    return found, preempted


def test_preemption_changes_nothing() -> None:
    (roomy, none), (tight, some) = vectors(4096), vectors(200)
    assert none == []
    assert any(seq >= STORIES for seq in some)
    assert sorted(tight) == sorted(roomy) == list(range(STORIES, STORIES + 4))
    for seq, vector in roomy.items():
        torch.testing.assert_close(torch.tensor(tight[seq]), torch.tensor(vector), atol=1e-5, rtol=0)
