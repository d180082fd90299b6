"""The per-sequence runner: a sequence's cache is kept, dropped, and made again where it does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.tiny import build, plain, prompt

pytestmark = pytest.mark.torch

FAMILY = "lfm2"
"""With state beside keys and values."""


def sequence(length: int) -> Sequence:
    return Sequence(0, Submit(length, prompt(length, length), 4), 0)


def whole(found: Sequence) -> Work:
    return Work(found, 0, len(found.tokens), samples=True)


def expected(found: Sequence) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = plain(FAMILY)(input_ids=torch.tensor([found.tokens]), use_cache=False).logits[0, -1:]
    return logits


@pytest.fixture
def runner() -> PerSequenceRunner:
    return PerSequenceRunner(build(FAMILY))


@torch.inference_mode()
def test_each_sequence_goes_on_from_its_own_state(runner: PerSequenceRunner) -> None:
    first, second = sequence(7), sequence(11)
    runner.run([whole(first), whole(second)])
    for found in (first, second):
        found.tokens.append(5)
    logits = runner.run([Work(found, len(found.tokens) - 1, 1, samples=True) for found in (second, first)])
    torch.testing.assert_close(logits[:1], expected(second), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1:], expected(first), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_state_of_another_length_is_made_anew(runner: PerSequenceRunner) -> None:
    """As after a preemption, or a step that failed when some of its sequences had been run."""
    found = sequence(7)
    runner.run([whole(found)])
    assert torch.equal(runner.run([whole(found)]), runner.run([whole(found)]))
    torch.testing.assert_close(runner.run([whole(found)]), expected(found), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_forgotten_sequence_holds_no_memory(runner: PerSequenceRunner) -> None:
    found = sequence(7)
    runner.run([whole(found)])
    assert list(runner._states) == [found]
    runner.forget(found)
    runner.forget(found)
    assert not runner._states


def test_prompts_are_run_whole_and_hold_no_images(runner: PerSequenceRunner) -> None:
    assert (runner.execution_path, runner.chunked, runner.image_tokens) == ("per_sequence", False, 0)
