"""Vectors from models that write text: the mean of a prompt's last hidden states, as they are given to the model's
output layer, of length 1.

Works beside the packed tier only, whose one forward a step says which rows are whose. The output layer must be run, not
replayed from a graph, in the steps of sequences that want a vector.
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
    """Watches the output layer of `model`, a causal language model of transformers. `size` is the vectors'."""

    def __init__(self, model: Any) -> None:
        head = model.get_output_embeddings()
        self.size: int = head.in_features
        self._last: Tensor | None = None
        head.register_forward_pre_hook(self._keep)

    @classmethod
    def of(cls, model: Any, runner: Runner) -> HiddenStates | None:
        """What watches a model run by `runner`; None if its rows could not be told apart."""
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        linear = hasattr(model.get_output_embeddings(), "in_features")
        return cls(model) if keeps and linear and runner.execution_path == "packed" else None

    def collect(self, works: Seq[Work]) -> None:
        """Add what the step that ran `works` gave to the sums of the sequences that want a vector."""
        states, self._last = self._last, None
        first = 0
        for work in works:
            rows, sequence = work.wanted, work.sequence
            if sequence.request.pool:
                assert states is not None, "the output layer was not run"
                part = states.reshape(-1, self.size)[first : first + rows].float().sum(0)
                sequence.hidden_sum = part if sequence.hidden_sum is None else sequence.hidden_sum + part
            first += rows

    def _keep(self, _: Any, given: tuple[Tensor, ...]) -> None:
        self._last = given[0].detach()


def mean(sequence: Sequence) -> tuple[float, ...]:
    """The vector of a sequence whose prompt was run: a sum's direction is the mean's."""
    return tuple(functional.normalize(sequence.hidden_sum, dim=0).tolist())
