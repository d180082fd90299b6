"""The per-sequence execution path: the model's own cache objects, as `generate` uses them.

For models that the packed path would run wrongly: with states that it does not know, without an attention interface, or
with positions of their own. The runner calls the model as `generate` does, so it can run whatever `generate` can. A
prompt is run alone and whole, since recurrent models restart their state when given several tokens. In decode,
sequences whose states can be stacked share a forward (`stacking`); they stay stacked from step to step, and states are
copied only when another set of sequences is to be run.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.attention.progress import watch_layers
from backends.native.engine.devices import ExtraArrays
from backends.native.engine.lora.layers import adapting
from backends.native.engine.runner.stacking import Stacking, select, stack
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Unchunked

# Arguments that are made from the sequences' lengths whenever others are stacked.
_MADE = ("attention_mask", "position_ids")


@dataclass(slots=True, eq=False)
class _Batch:
    """Sequences whose states are stacked.

    Attributes:
        sequences: whose each row is.
        lengths: how many tokens of each were run.
        ids: [rows, width], the tokens that were run; shorter ones are padded at the left.
        inputs: the model's keyword arguments for the next call.
    """

    sequences: list[Sequence]
    lengths: list[int]
    ids: Tensor
    inputs: dict[str, Any]

    def rows(self, wanted: Seq[int]) -> _Batch:
        """A batch of these rows alone."""
        if list(wanted) == list(range(len(self.sequences))):
            return self
        index = torch.tensor(wanted, device=self.ids.device)
        return _Batch(
            [self.sequences[row] for row in wanted],
            [self.lengths[row] for row in wanted],
            self.ids[index],
            select(self.inputs, index, len(self.sequences)),
        )


class PerSequenceRunner:
    """Implements `packed.Runner` for any causal language model that `generate` can run.

    Args:
        model: the model.
        lora_adapters: names of the LoRA adapters in the model.
        stacking: which sequences may share a forward; the default is right for every model.
    """

    execution_path = "per_sequence"
    takes_extra = False
    overlaps = False  # it makes its inputs from tokens on the host
    speculates = False  # the model's cache object may hold states that cannot go back
    image_tokens = 0
    unchunked: Unchunked = "prompt"
    states: None = None
    swap: None = None

    def __init__(self, model: Any, lora_adapters: tuple[str, ...] = (), stacking: Stacking = Stacking.NONE) -> None:
        self._model = model
        self.lora_adapters = lora_adapters
        self._stacking = stacking
        self._batches: dict[Sequence, _Batch] = {}
        watch_layers(model)
        parameters = inspect.signature(model.forward).parameters
        self._selects_rows = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters

    def run(self, works: Seq[Work], extra: ExtraArrays | None = None) -> Tensor:  # noqa: ARG002 - it sends none
        """See `packed.Runner`."""
        logits: dict[Sequence, Tensor] = {}
        groups: dict[object, list[Work]] = {}
        for work in works:
            if self._goes_on(work):
                groups.setdefault(self._group(work), []).append(work)
            else:  # new, preempted, or partly run in a step that failed
                logits[work.sequence] = self._run_whole(work)
        for group in groups.values():
            logits |= self._run_stacked(group)
        return torch.cat([logits[work.sequence] for work in works])

    def forget(self, sequence: Sequence) -> None:
        """Drop the sequence's state; one that is stacked with others is dropped with the next change of its batch."""
        self._batches.pop(sequence, None)

    def sleep(self) -> None:
        """Do nothing: caches end with their sequences."""

    def wake(self) -> None:
        """Do nothing."""

    def lora_adapters_changed(self) -> None:
        """Do nothing."""

    def _goes_on(self, work: Work) -> bool:
        """Whether the work is one token after those that the sequence's state has seen."""
        batch = self._batches.get(work.sequence)
        return (
            batch is not None and work.count == 1 and batch.lengths[batch.sequences.index(work.sequence)] == work.start
        )

    def _group(self, work: Work) -> object:
        """Works of equal groups share a forward."""
        if self._stacking is Stacking.NONE:
            return work.sequence
        # Lengths between two powers of two: at most half of what is read is padding.
        return work.start if self._stacking is Stacking.EQUAL else work.start.bit_length()

    def _run_whole(self, work: Work) -> Tensor:
        """Run all tokens of a sequence up to the work's end; its `wanted` last logits."""
        self._batches.pop(work.sequence, None)
        end = work.start + work.count
        ids = torch.tensor([work.sequence.tokens[:end]], device=self._model.device)
        # The rows that the model is really given, whatever the scheduler's work says.
        with adapting([Work(work.sequence, 0, end, work.samples)]):
            inputs = {"attention_mask": torch.ones_like(ids), "use_cache": True}
            outputs, inputs = self._forward(ids, inputs, None, work.wanted)
        self._batches[work.sequence] = _Batch([work.sequence], [end], ids, inputs)
        logits: Tensor = outputs.logits[0]
        # By an index from the start: `logits[-0:]` would be all rows instead of none.
        return logits[len(logits) - work.wanted :]

    def _run_stacked(self, works: Seq[Work]) -> dict[Sequence, Tensor]:
        """Run one more token of each sequence in one forward; the `wanted` last logits of each."""
        batch = self._stacked([work.sequence for work in works])
        by_sequence = {work.sequence: work for work in works}
        rows = [by_sequence[sequence] for sequence in batch.sequences]
        # Removed first: if the model raises, its cache object may be changed in part and must not be used again. The
        # sequences then start over from their tokens.
        for sequence in batch.sequences:
            del self._batches[sequence]
        new = torch.tensor([work.tokens for work in rows], device=batch.ids.device)
        ids = torch.cat([batch.ids, new], dim=1)
        with adapting(rows):
            outputs, inputs = self._forward(ids, batch.inputs, 1, 1)
        made = _Batch(batch.sequences, [length + 1 for length in batch.lengths], ids, inputs)
        self._batches |= dict.fromkeys(batch.sequences, made)
        logits: Tensor = outputs.logits
        least = logits.shape[1]
        return {work.sequence: logits[row, least - work.wanted :] for row, work in enumerate(rows)}

    def _stacked(self, wanted: Seq[Sequence]) -> _Batch:
        """A batch of exactly these sequences, made of those that they are in; the other sequences keep theirs."""
        parts = []
        for batch in dict.fromkeys(self._batches[sequence] for sequence in wanted):
            alive = [row for row, sequence in enumerate(batch.sequences) if self._batches.get(sequence) is batch]
            others = [row for row in alive if batch.sequences[row] not in wanted]
            if others:
                self._keep(self._fitted(batch.rows(others)))
            part = batch.rows([row for row in alive if batch.sequences[row] in wanted])
            if part is batch and len(part.sequences) == len(wanted):
                return batch
            parts.append(part)
        joined = self._fitted(parts[0] if len(parts) == 1 else self._joined(parts))
        self._keep(joined)
        return joined

    def _keep(self, batch: _Batch) -> None:
        self._batches |= dict.fromkeys(batch.sequences, batch)

    @staticmethod
    def _joined(parts: Seq[_Batch]) -> _Batch:
        """The rows of all parts in one batch."""
        states = [{name: value for name, value in part.inputs.items() if name not in _MADE} for part in parts]
        return _Batch(
            [sequence for part in parts for sequence in part.sequences],
            [length for part in parts for length in part.lengths],
            stack([part.ids for part in parts]),
            stack(states),
        )

    def _fitted(self, batch: _Batch) -> _Batch:
        """The batch with a mask, and positions where there is padding, that fit its lengths."""
        width = batch.ids.shape[1]
        # `generate` gives the mask of all tokens before the call, and extends it by the new one afterwards.
        lengths = torch.tensor(batch.lengths, device=batch.ids.device).unsqueeze(1)
        places = torch.arange(width + 1, device=batch.ids.device) - (width - lengths)
        batch.inputs["attention_mask"] = (places >= 0).to(batch.ids.dtype)
        batch.inputs.pop("position_ids", None)
        if self._takes_positions and min(batch.lengths) < width:
            batch.inputs["position_ids"] = places.clamp(min=0)
        return batch

    def _forward(self, ids: Tensor, inputs: dict[str, Any], new: int | None, rows: int) -> tuple[Any, dict[str, Any]]:
        """Run the last `new` columns of `ids` [rows, width], or all without a state; `rows` last logits are wanted."""
        if self._selects_rows:
            # transformers reads 0 as all rows.
            inputs["logits_to_keep"] = max(rows, 1)
        # The two hooks that `generate` calls around each forward. Model classes override them for their own state and
        # positions.
        prepared = self._model.prepare_inputs_for_generation(
            ids, next_sequence_length=new, is_first_iteration=new is None, **inputs
        )
        outputs = self._model(**prepared, return_dict=True)
        return outputs, self._model._update_model_kwargs_for_generation(outputs, inputs)  # noqa: SLF001 - generate's own step
