"""Scores of texts by a language model: how much it would rather answer one token than another."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class AnswerScores(nn.Module):
    """A causal language model that is called as one with a classification head of one label.

    Args:
        model: of transformers.
        answers: token ids; the score is the logit of the first, less that of the second if there is one.
    """

    def __init__(self, model: Any, answers: Sequence[int]) -> None:
        super().__init__()
        self._model = model
        self._answers = answers
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def config(self) -> Any:
        """The model's."""
        return self._model.config

    @property
    def device(self) -> torch.device:
        """The model's."""
        device: torch.device = self._model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        """The scores [texts, 1] of a batch that is padded at the right, [texts, tokens] each."""
        last = attention_mask.sum(1) - 1
        # The output layer is run for the places where a text ends; texts of a batch are of similar lengths.
        places, own = torch.unique(last, return_inverse=True)
        kept = {"logits_to_keep": places} if self._selects_rows else {}
        # Causal: what follows a text's last token has no effect on its logits.
        logits = self._model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **kept).logits
        rows = logits[torch.arange(len(last), device=last.device), own if self._selects_rows else last].float()
        scores = [rows[:, id] for id in self._answers]
        return ((scores[0] - scores[1] if len(scores) > 1 else scores[0]).unsqueeze(1),)
