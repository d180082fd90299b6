"""Embeddings from causal language models: the mean of the prompt's last hidden states, normalized to length 1.

The hidden states are taken from the input of the model's output layer by a hook. This needs the packed execution path,
whose single forward a step has its rows in a known order, and an output layer that is really called in the steps of
sequences that want an embedding, not replayed from a graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Seq
from typing import Any

from torch import Tensor
from torch.nn import functional

from backends.native.engine.runner.packed import Runner
from backends.native.engine.scheduling.sequence import Sequence, Work


class HiddenStates:
    """Hooks the output layer of `model`, a causal language model of transformers. `size`: numbers of an embedding."""

    def __init__(self, model: Any) -> None:
        head = model.get_output_embeddings()
        self.size: int = head.in_features
        self._last: Tensor | None = None
        # With `logits_to_keep` the output layer's input holds exactly the wanted rows, in the order of the works.
        head.register_forward_pre_hook(self._keep)

    @classmethod
    def of(cls, model: Any, runner: Runner) -> HiddenStates | None:
        """Hook a model that `runner` runs; None if rows of hidden states could not be assigned to sequences."""
        # Without it the output layer gets every row of the pack, and `collect` would assign them wrongly.
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        linear = hasattr(model.get_output_embeddings(), "in_features")
        return cls(model) if keeps and linear and runner.execution_path == "packed" else None

    def collect(self, works: Seq[Work]) -> None:
        """Add the hidden states of the step that ran `works` to the sums of the sequences that want an embedding."""
        # Released at once: otherwise the step's hidden states would stay in memory until the next step.
        states, self._last = self._last, None
        first = 0
        for work in works:
            rows, sequence = work.wanted, work.sequence
            if sequence.request.pool:
                assert states is not None, "the output layer was not run"
                # Summed chunk by chunk in float32: a sum of thousands of bfloat16 numbers would lose the later ones.
                part = states.reshape(-1, self.size)[first : first + rows].float().sum(0)
                sequence.hidden_sum = part if sequence.hidden_sum is None else _sum_of(sequence) + part
            first += rows

    def _keep(self, _: Any, inputs: tuple[Tensor, ...]) -> None:
        self._last = inputs[0].detach()


def embedding_of(sequence: Sequence) -> tuple[float, ...]:
    """The embedding of a sequence whose prompt was run: the normalized sum, which has the direction of the mean."""
    return tuple(functional.normalize(_sum_of(sequence), dim=0).tolist())


def _sum_of(sequence: Sequence) -> Tensor:
    assert isinstance(sequence.hidden_sum, Tensor)
    return sequence.hidden_sum
