"""Draft tokens by a model's own layer for multi-token prediction (`loading.mtp`).

Strategy: the layer takes the hidden states that the model had at tokens, and the tokens that follow them. Both are kept
from every step. The layer is run over them before drafts are written, with a prompt, at a sequence's end, and when many
have piled up: so it costs little where no drafts pay. Blocks that it was not run over yet are not shared. Its output
predicts what comes behind the newest token. For further drafts it is run on its own output, as if that were the model's
hidden state; what it stores then is overwritten when the model has run those tokens, or others in their places. Drafts
are chosen with the request's sampling and noise, as those of a smaller model are (`draft_model`).

The keys and values at a block's last token depend on the first token of the next block, too: of a prefix that is found
in the cache the last block is computed again (`Scheduler`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from backends.native.engine.attention.interface import text_part
from backends.native.engine.devices import index_tensor
from backends.native.engine.draft_model import Shadow
from backends.native.engine.loading.mtp import MtpLayer
from backends.native.engine.runner.pack import pack_of
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.sampling.sampler import NoDistribution, sample
from backends.native.engine.scheduling.endings import until_end
from backends.native.engine.scheduling.scheduler import MOST_ROWS
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import StepCosts

# Tokens of all sequences that the layer is run over at once where no drafts are written. A pass over more takes hardly
# less time for each, and their hidden states are kept until then.
_MOST_KEPT = 256


@dataclass(slots=True, eq=False)
class _Followed:
    """What is kept of a sequence.

    Attributes:
        shadow: its tokens, and drafts behind them.
        start: how many of its leading tokens the layer was run over.
        ids: the tokens that follow those that it was not run over yet.
        states: the model's hidden states at the latter, [tokens of a step, hidden_size] each.
        output: [hidden_size], what the layer gave last.
    """

    shadow: Shadow
    start: int = 0
    ids: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    output: Tensor | None = None

    @property
    def end(self) -> int:
        """How many of its leading tokens the layer can be run over."""
        return self.start + len(self.ids)

    def fills_block(self, size: int) -> bool:
        """Whether a block of `size` tokens is full that the layer was not run over."""
        return self.end // size > self.start // size

    def take(self, start: int, ids: Seq[int]) -> None:
        """Take over what follows the tokens of a step from position `start` on; their hidden states must follow."""
        if start != self.end:  # it was preempted, and is computed again from there
            kept = max(0, min(start, self.end) - self.start)
            self.ids, self.states = self.ids[:kept], [torch.cat(self.states)[:kept]] if kept else []
            self.start = start - kept
        self.ids += ids


class MtpDrafts:
    """Writes drafts for many sequences at once. Implements `speculation.DraftSource`.

    Args:
        layer: predicts.
        model: whose last hidden states it takes; they are collected by a hook.
        runner: runs the model, and replays no graphs.

    Attributes:
        costs: seconds of a pass: a choice for each sequence, and the layer's run before it.
    """

    def __init__(self, layer: MtpLayer, model: Any, runner: PackedRunner) -> None:
        self.costs = StepCosts()
        self._layer = layer
        self._runner = runner
        self._size = runner.cache.block_size
        self._doubling = model.device.type != "cpu"
        self._states: Tensor | None = None
        self._followed: dict[Sequence, _Followed] = {}
        text_part(model).register_forward_hook(self._keep)

    def follow(self, works: Seq[Work], chosen: Seq[Seq[int]]) -> None:
        """Keep what a step had, and run the layer if its blocks are to be shared or much has piled up."""
        # Released at once: otherwise a step's hidden states would stay in memory until the next step.
        states, self._states = self._states, None
        assert states is not None, "the model was not run"
        first, kept, runs = 0, 0, False
        spans: list[tuple[_Followed, range]] = []  # the rows of a sequence's states
        for work, tokens in zip(works, chosen, strict=True):
            followed = self._followed.get(work.sequence)
            if followed is None:
                followed = self._followed[work.sequence] = _Followed(Shadow.of(work.sequence))
            following = _following(work, tokens)
            followed.take(work.start, following)
            spans.append((followed, range(first, first + len(following))))
            first, kept = first + work.count, kept + len(followed.ids)
            runs |= followed.fills_block(self._size) and _is_shared_soon(work, tokens)
        runs |= kept >= _MOST_KEPT
        if not runs:
            # A copy: the step may have been a long one.
            index = array("q", [row for _, rows in spans for row in rows])
            states = states.index_select(0, index_tensor(index, states.device))
            ends = accumulate((len(rows) for _, rows in spans), initial=0)
            spans = [(followed, range(*ends)) for (followed, _), ends in zip(spans, pairwise(ends), strict=True)]
        for followed, rows in spans:
            followed.states.append(states[rows.start : rows.stop])
        if runs:
            self._catch_up([work.sequence for work in works])
        for work in works:
            work.sequence.stored = self._followed[work.sequence].start

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Up to so many drafts for each sequence, as far as its blocks have room for what is stored with them."""
        found: dict[Sequence, Shadow] = {}
        for sequence, most in wanted.items():
            followed = self._followed.get(sequence)
            if followed is None or followed.end + 1 != len(sequence.tokens) or sequence.request.features:
                continue
            shadow = found[sequence] = followed.shadow
            shadow.follow(sequence.tokens)
            shadow.blocks = sequence.blocks
            # The first needs no room, and no step has run since drafts were written that stand there already.
            room = len(sequence.blocks) * self._size - len(sequence.tokens) + 2
            shadow.most = 0 if shadow.draft_tokens else min(most, room)
        with torch.inference_mode():
            self._write([sequence for sequence, shadow in found.items() if shadow.most])
        return {sequence: shadow.draft_tokens[: wanted[sequence]] for sequence, shadow in found.items()}

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ended."""
        self._followed.pop(sequence, None)

    def sleep(self) -> None:
        """Nothing: the cache is the runner's."""

    def wake(self) -> None:
        """Nothing: the cache is the runner's."""

    def _keep(self, _: Any, __: Any, outputs: Any) -> None:
        self._states = outputs.last_hidden_state[0].detach()

    def _catch_up(self, sequences: Iterable[Sequence]) -> None:
        """Run the layer over what was kept of sequences."""
        behind = [(sequence, followed) for sequence in sequences if (followed := self._followed[sequence]).ids]
        if not behind:
            return
        works = [Work(sequence, followed.start, len(followed.ids), samples=True) for sequence, followed in behind]
        ids = array("q", [token for _, followed in behind for token in followed.ids])
        outputs = self._run(works, ids, torch.cat([states for _, followed in behind for states in followed.states]))
        for (_, followed), output in zip(behind, outputs, strict=True):
            followed.start, followed.ids, followed.states, followed.output = followed.end, [], [], output

    def _write(self, sequences: Seq[Sequence]) -> None:
        """Write drafts, the first of all, then the second, and so on."""
        began = time.perf_counter()
        every = [self._followed[sequence] for sequence in sequences]
        # What has piled up without drafts says nothing of a pass of every step.
        counts = sum(len(followed.ids) for followed in every) <= MOST_ROWS
        self._catch_up(sequences)
        shadows = [followed.shadow for followed in every]
        rows = [followed.output for followed in every if followed.output is not None]
        while shadows:
            outputs = torch.stack(rows)
            if shadows[0].draft_tokens:  # then the others have as many
                works = [Work(each, len(each.tokens) - 2, 1, samples=True) for each in shadows]
                outputs = self._run(works, array("q", [each.tokens[-1] for each in shadows]), outputs)
            try:
                tokens = self._choose(shadows, outputs)
            except NoDistribution:
                return
            now = time.perf_counter()
            if counts:
                self.costs.add(len(shadows), now - began)
            began, counts = now, True
            going = [
                (shadow, row)
                for shadow, token, row in zip(shadows, tokens, outputs, strict=True)
                if shadow.add(token) and len(shadow.draft_tokens) < shadow.most
            ]
            shadows, rows = [shadow for shadow, _ in going], [row for _, row in going]

    def _choose(self, shadows: Seq[Shadow], states: Tensor) -> list[int]:
        """The next draft of each, behind the layer's outputs [shadows, hidden_size].

        Raises:
            NoDistribution: one of them has none.
        """
        works = [Work(each, len(each.tokens) - 1, 1, samples=True) for each in shadows]
        return [sampled.tokens[0] for sampled in sample(works, self._layer.logits(states))]

    def _run(self, works: Seq[Work], ids: array[int], states: Tensor) -> Tensor:
        """The layer's outputs at the last tokens of works, [works, hidden_size].

        Args:
            works: say where the layer is run.
            ids: what follows each of their tokens.
            states: [tokens, hidden_size], at each of their tokens.
        """
        pack = replace(pack_of(works, self._size, doubling=self._doubling), ids=ids)
        rows = array("q", [end - 1 for end in accumulate(pack.counts)])
        return self._layer.run(self._runner, replace(pack, rows=rows), states)


def _is_shared_soon(work: Work, tokens: Seq[int]) -> bool:
    """Whether a work is of a prompt, or its sequence ends with the `tokens` that were chosen behind it."""
    sequence = work.sequence
    if work.start < sequence.prompt_length:
        return True
    return until_end(sequence.request, tuple(tokens), sequence.generated)[1] is not None


def _following(work: Work, tokens: Seq[int]) -> tuple[int, ...]:
    """What follows each token of a work, behind which `tokens` were chosen; nothing for those behind a wrong draft."""
    plain = work.without_drafts
    end = plain.start + plain.count + (not work.samples)
    return (*work.sequence.tokens[plain.start + 1 : end], *tokens)
