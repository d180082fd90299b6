"""The per-sequence execution path: one sequence at a time, over the model's own cache object.

For models that the packed path would run wrongly: with recurrent or convolutional state, without an attention
interface, or with positions of their own. The runner calls the model as `generate` does, so it can run whatever
`generate` can. A prompt is run whole, since recurrent models restart their state when given several tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.attention.progress import watch_layers
from backends.native.engine.lora.layers import adapting
from backends.native.engine.scheduling.sequence import Sequence, Work


@dataclass(slots=True, eq=False)
class _State:
    """The tokens of a sequence that were run, and the model's keyword arguments for the next call."""

    computed: int
    inputs: dict[str, Any]


class PerSequenceRunner:
    """Implements `packed.Runner` for any causal language model that `generate` can run.

    Args:
        model: the model.
        lora_adapters: names of the LoRA adapters in the model.
    """

    execution_path = "per_sequence"
    chunked = False
    speculates = False  # the model's cache object may hold states that cannot go back
    image_tokens = 0
    states: None = None

    def __init__(self, model: Any, lora_adapters: tuple[str, ...] = ()) -> None:
        self._model = model
        self.lora_adapters = lora_adapters
        self._states: dict[Sequence, _State] = {}
        watch_layers(model)
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def run(self, works: Seq[Work]) -> Tensor:
        """See `packed.Runner`."""
        return torch.cat([self._run_one(work) for work in works])

    def forget(self, sequence: Sequence) -> None:
        """Drop the sequence's cache object."""
        self._states.pop(sequence, None)

    def sleep(self) -> None:
        """Do nothing: caches end with their sequences."""

    def wake(self) -> None:
        """Do nothing."""

    def _run_one(self, work: Work) -> Tensor:
        # Removed first: if the model raises, its cache object may be changed in part and must not be used again. The
        # sequence then starts over from its tokens.
        state = self._states.pop(work.sequence, None)
        if state is None or state.computed != work.start:  # new, preempted, or partly run in a step that failed
            state = None
        end = work.start + work.count
        tokens = torch.tensor([work.sequence.tokens[:end]], device=self._model.device)
        # The rows that the model is really given: all tokens after a restart, whatever the scheduler's work says.
        with adapting([Work(work.sequence, 0, end, work.samples) if state is None else work]):
            outputs, state = self._forward(tokens, state, work.wanted)
        self._states[work.sequence] = state
        logits: Tensor = outputs.logits[0]
        # By an index from the start: `logits[-0:]` would be all rows instead of none.
        return logits[len(logits) - work.wanted :]

    def _forward(self, tokens: Tensor, state: _State | None, rows: int) -> tuple[Any, _State]:
        """Run the part of `tokens` [1, length] that `state` lacks; `rows` last logits are wanted."""
        inputs = state.inputs if state else {"attention_mask": torch.ones_like(tokens), "use_cache": True}
        if self._selects_rows:
            # transformers reads 0 as all rows.
            inputs["logits_to_keep"] = max(rows, 1)
        # The two hooks that `generate` calls around each forward. Model classes override them for their own state and
        # positions.
        prepared = self._model.prepare_inputs_for_generation(
            tokens,
            next_sequence_length=None if state is None else tokens.shape[1] - state.computed,
            is_first_iteration=state is None,
            **inputs,
        )
        outputs = self._model(**prepared, return_dict=True)
        inputs = self._model._update_model_kwargs_for_generation(outputs, inputs)  # noqa: SLF001 - generate's own step
        return outputs, _State(tokens.shape[1], inputs)
