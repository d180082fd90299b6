"""Draft tokens by a model's own layer for multi-token prediction (`loading.mtp`).

Strategy: behind every step the layer is run over the tokens of that step, with the hidden states that the model had at
them and the tokens that follow them, which are known by then. So it has keys and values wherever the model has some, in
the same blocks, and predicts what comes after the newest token. For further drafts it is run on its own output, as if
that were the model's hidden state; what it stores then is overwritten when the model has run those tokens, or others in
their places. Drafts are chosen with the request's sampling and noise, as those of a smaller model are (`draft_model`).

The keys and values at a block's last token depend on the first token of the next block, too: of a prefix that is found
in the cache the last block is computed again (`Scheduler`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
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
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import StepCosts


@dataclass(slots=True, eq=False)
class _Followed:
    """What is kept of a sequence.

    Attributes:
        shadow: its tokens, and drafts behind them.
        state: [hidden_size], the layer's output behind its newest token.
        tokens: how many tokens it had then.
    """

    shadow: Shadow
    state: Tensor
    tokens: int


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
        """Run the layer over the tokens of a step, from which the tokens `chosen` came."""
        # Released at once: otherwise a step's hidden states would stay in memory until the next step.
        states, self._states = self._states, None
        assert states is not None, "the model was not run"
        ids, rows, right, first = array("q"), array("q"), [], 0
        for work, tokens in zip(works, chosen, strict=True):
            plain = work.without_drafts
            end = plain.start + plain.count
            # What follows each token of the work, but for those that come after a wrong draft.
            following = (*work.sequence.tokens[plain.start + 1 : end + (not work.samples)], *tokens)
            ids.extend(following)
            rows.extend(range(first, first + len(following)))
            right.append(Work(work.sequence, work.start, len(following), work.samples))
            first += work.count
        if len(rows) < first:
            states = states.index_select(0, index_tensor(rows, states.device))
        found = self._run(right, ids, states)
        sampled = (work for work in right if work.samples)
        for work, state in zip(sampled, found, strict=True):
            self._note(work.sequence, state, work.start + work.count + 1)

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Up to so many drafts for each sequence, as far as its blocks have room for what is stored with them."""
        found: dict[Sequence, Shadow] = {}
        for sequence, most in wanted.items():
            known = self._followed.get(sequence)
            if known is None or known.tokens != len(sequence.tokens) or sequence.request.features:
                continue
            shadow = found[sequence] = known.shadow
            shadow.follow(sequence.tokens)
            shadow.blocks = sequence.blocks
            # The first needs no room, and no step has run since drafts were written that stand there already.
            room = len(sequence.blocks) * self._size - len(sequence.tokens) + 2
            shadow.most = 0 if shadow.draft_tokens else min(most, room)
        with torch.inference_mode():
            self._write({shadow: self._followed[each].state for each, shadow in found.items() if shadow.most})
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

    def _note(self, sequence: Sequence, state: Tensor, tokens: int) -> None:
        known = self._followed.get(sequence)
        if known is None:
            self._followed[sequence] = _Followed(Shadow.of(sequence), state, tokens)
        else:
            known.state, known.tokens = state, tokens

    def _write(self, states: Mapping[Shadow, Tensor]) -> None:
        """Write drafts behind the layer's outputs."""
        shadows, rows = list(states), list(states.values())
        while shadows:
            began = time.perf_counter()
            given = torch.stack(rows)
            if shadows[0].draft_tokens:  # then the others have as many
                works = [Work(each, len(each.tokens) - 2, 1, samples=True) for each in shadows]
                given = self._run(works, array("q", [each.tokens[-1] for each in shadows]), given)
            try:
                tokens = self._choose(shadows, given)
            except NoDistribution:
                return
            self.costs.add(len(shadows), time.perf_counter() - began)
            going = [
                (shadow, row)
                for shadow, token, row in zip(shadows, tokens, given, strict=True)
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
        """The layer's outputs at the last tokens of works that sample, [works, hidden_size].

        Args:
            works: say where the layer is run.
            ids: what follows each of their tokens.
            states: [tokens, hidden_size], at each of their tokens.
        """
        ends = list(accumulate(work.count for work in works))
        rows = array("q", [end - 1 for work, end in zip(works, ends, strict=True) if work.samples])
        pack = replace(pack_of(works, self._size, doubling=self._doubling), ids=ids, rows=rows)
        return self._layer.run(self._runner, pack, states)
