"""The check at load of the per-sequence path: may the states of its sequences be stacked into one forward?

Strategy: as in `self_check`, a small random copy of the model decides, not a list of types. Sequences that come, wait
and go on are run each in a forward of its own, then stacked; the logits must agree.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import structlog
import torch
from torch import Tensor

from backends.native.engine.devices import OUT_OF_MEMORY
from backends.native.engine.loading.self_check import SENSITIVITY, TOLERANCE, changes_with_length, on_small_copy
from backends.native.engine.loading.tiny_copy import VOCAB
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.runner.stacking import Stacking
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit

log = structlog.get_logger()

# Tokens of each prompt. All lengths are longer than `tiny_copy.WINDOW` and between the same two powers of two.
_PROMPTS = (17, 17, 19, 25)
# The sequences that each step runs; the first step of one runs its prompt. Two are stacked, a third of the same length
# joins them, one waits, and one of another length comes.
_STEPS = ((0, 1), (0, 1), (0, 1, 2), (0, 1, 2), (1, 2), (0, 1, 2, 3), (3, 2, 1, 0), (0, 3), (0, 1, 2, 3))


def find_stacking(model: Any) -> Stacking:
    """How the per-sequence path may run sequences of `model` together."""
    found = Stacking.NONE

    def check(small: Any) -> None:
        nonlocal found
        # Of layers that choose what they attend to (DeepSeek V3.2's indexer), the small copy does not show that padding
        # takes places of tokens.
        found = stacking_of(small, () if changes_with_length(model) else (Stacking.PADDED,))

    why = on_small_copy(model, check)
    log.info("model.stacking_chosen", model_type=model.config.model_type, stacking=found.value, why=why or "checked")
    return found


def stacking_of(small: Any, candidates: Seq[Stacking] = (Stacking.PADDED,)) -> Stacking:
    """The first of `candidates` and `EQUAL` for which stacking changes no logits of a small copy."""
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(3, VOCAB, (length + len(_STEPS),), generator=generator).tolist() for length in _PROMPTS]
    alone = _logits(small, tokens, Stacking.NONE)
    scale = float(alone.abs().max())
    # The last logits of a prompt of which the start is changed: without an effect, agreement would prove nothing.
    changed = [(token + 1) % VOCAB for token in tokens[0][:9]] + tokens[0][9:]
    moved = float((_logits(small, [changed], Stacking.NONE, ((0,),))[0] - alone[0]).abs().max())
    for stacking in (*candidates, Stacking.EQUAL):
        try:
            error = float((_logits(small, tokens, stacking) - alone).abs().max())
        except OUT_OF_MEMORY:
            raise
        except Exception as raised:  # whatever a foreign model class raises if it cannot run stacked states
            log.debug("model.not_stacked", stacking=stacking.value, error=repr(raised))
            continue
        if error <= TOLERANCE * scale and moved >= max(SENSITIVITY * scale, 10 * error):
            return stacking
    return Stacking.NONE


def _logits(model: Any, tokens: Seq[Seq[int]], stacking: Stacking, steps: Seq[Seq[int]] = _STEPS) -> Tensor:
    """[rows, vocabulary], the last logits of each sequence of each of `steps`."""
    runner = PerSequenceRunner(model, stacking=stacking)
    sequences = [Sequence(0, Submit(index, tuple(row), 1), index) for index, row in enumerate(tokens)]
    ends = [0] * len(sequences)
    logits = []
    for step in steps:
        works = []
        for index in step:
            count = 1 if ends[index] else _PROMPTS[index]
            works.append(Work(sequences[index], ends[index], count, samples=True))
            ends[index] += count
        logits.append(runner.run(works))
    return torch.cat(logits)
