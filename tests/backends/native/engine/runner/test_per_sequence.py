"""The per-sequence runner: a sequence's cache is kept, stacked, dropped, and made again where it does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.runner.stacking import Stacking
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
    assert list(runner._batches) == [found]
    runner.forget(found)
    runner.forget(found)
    assert not runner._batches


def test_prompts_are_run_whole_and_hold_no_images(runner: PerSequenceRunner) -> None:
    assert (runner.execution_path, runner.unchunked, runner.image_tokens) == ("per_sequence", "prompt", 0)


@torch.inference_mode()
@pytest.mark.parametrize("stacking", [Stacking.PADDED, Stacking.EQUAL])
def test_stacked_sequences_share_a_forward(stacking: Stacking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of equal length and one of a similar one; then one waits, and another has ended."""
    runner = PerSequenceRunner(build(FAMILY), stacking=stacking)
    rows: list[int] = []
    forward = runner._forward

    def counted(ids: Tensor, *rest: Any) -> Any:
        rows.append(len(ids))
        return forward(ids, *rest)

    found = [sequence(length) for length in (17, 17, 19, 23)]
    found[1].tokens[:] = prompt(17, 1)
    runner.run([whole(each) for each in found])
    monkeypatch.setattr(runner, "_forward", counted)
    for members in ((0, 1, 2, 3), (0, 1, 2, 3), (3, 1), (2, 1, 3, 0)):
        works = []
        for each in (found[member] for member in members):
            works.append(Work(each, len(each.tokens), 1, samples=True))
            each.tokens.append(len(each.tokens))
        logits = runner.run(works)
        expect = torch.cat([expected(found[member]) for member in members])
        torch.testing.assert_close(logits, expect, atol=1e-5 * float(expect.abs().max()), rtol=0)
    padded = [4, 4, 2, 4]
    # Of equal length: the first two, until one of them waits.
    assert rows == (padded if stacking is Stacking.PADDED else [2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1])
    for each in found:
        runner.forget(each)
    assert not runner._batches
