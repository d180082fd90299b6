"""Overlap: on an accelerator a step is launched before the tokens of the step before it are read.

Strategy: the host composes a step, and sends outputs, while the device computes. What a sequence chose in a step that
was launched stands among its tokens as `~row`, a number below zero: so it counts as any other token (for positions,
blocks, noise), and on the device the next step takes it from that row of `Launched.chosen` (`ExtraArrays.fill_in`). A
sequence that turns out to have ended has run one token too many, which nobody reads; its blocks were released once.

At most one step is unread when the next is composed. A step whose rows need numbers of the host in between, and the one
after it, run one after the other. No lock and no second stream: what a step frees, a later one may use, since the
device runs them in order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from backends.native.engine.devices import ExtraArrays
from backends.native.engine.errors import GangLost
from backends.native.engine.runner.packed import Runner
from backends.native.engine.sampling.sampler import choose_on_device, noise_keys
from backends.native.engine.scheduling.sequence import Sequence, Work

log = structlog.get_logger()

VARIABLE = "INTERLINGUA_OVERLAP"
"""0: every step is read before the next is launched."""


@dataclass(slots=True, eq=False)
class Launched:
    """A step that was launched. Its works are advanced already, with tokens that are not read yet.

    Attributes:
        works: what it runs.
        chosen: on the device, the token of each work that samples, in turn; -1: none can be chosen.
        copied: the same on the host, once `event` has happened.
        event: on the device, behind the copy.
    """

    works: Seq[Work]
    chosen: Tensor
    copied: Tensor
    event: torch.Event

    def results(self) -> list[tuple[Work, int | None]]:
        """Wait for the step; of each work the token: -1 if none could be chosen, None if the work does not sample."""
        self.event.synchronize()
        tokens = iter(self.copied.tolist())
        return [(work, next(tokens) if work.samples else None) for work in self.works]


def can_overlap(runner: Runner, device: torch.device) -> bool:
    """Whether steps of `runner`, which is on `device`, can be launched before others are read."""
    if not runner.overlaps or os.environ.get(VARIABLE) == "0":
        return False
    try:
        _copied_late(torch.ones(1, dtype=torch.int64, device=device))[1].synchronize()
    except RuntimeError as error:  # it has no pinned memory, or no events
        log.warning("overlap.not_used", device=str(device), why=str(error))
        return False
    return True


def launch(runner: Runner, works: Seq[Work], before: Launched | None) -> Launched | None:
    """Launch a step, and advance its sequences.

    Args:
        runner: runs the model.
        works: what to run. Tokens of `before` may be among theirs.
        before: the step that was launched and is not read yet.

    Returns:
        The step. None: it must be run when `before` has been read, since its rows need the host, or since it failed;
        nothing has changed then.

    Raises:
        torch.AcceleratorError: the device is lost.
    """
    if not works or any(_needs_host(work.sequence) for work in works):
        return None
    sampling = [work.sequence for work in works if work.samples]
    extra = noise_keys(works) or ExtraArrays(())
    extra.unread = before.chosen if before is not None and len(before.chosen) else None
    try:
        chosen = choose_on_device(sampling, runner.run(works, extra).float(), extra)
        copied, event = _copied_late(chosen)
    except (torch.AcceleratorError, GangLost):
        raise
    except Exception as error:  # whichever sequence it is: the step is run again, and then in halves
        log.warning("step.not_launched", sequences=len(works), error=repr(error))
        return None
    for work in works:
        work.sequence.computed = work.start + work.count
    for row, sequence in enumerate(sampling):
        sequence.tokens.append(~row)
        # It ends with this token, whichever that is.
        sequence.held = len(sequence.tokens) == sequence.longest
    return Launched(works, chosen, copied, event)


def _needs_host(sequence: Sequence) -> bool:
    """Whether a token of the sequence is chosen, or reported, with more than what is on the device."""
    request = sequence.request
    return (
        sequence.constraint is not None
        or sequence.scores_prompt
        or request.top_logprobs >= 0
        or request.max_new_tokens == 0
        or request.sampling.watermark  # drawn on the host from the last token
    )


def _copied_late(numbers: Tensor) -> tuple[Tensor, torch.Event]:
    """A copy on the host that the host does not wait for, and when it is there."""
    # Pinned memory of its own for each step: torch uses it again when the copy is done and the tensor is gone.
    copied = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
    return copied, torch.accelerator.current_stream(numbers.device).record_event()
