"""Logits processors: watermark, bias, penalties, bans and grammar masks, before greedy choice and sampling alike.

They run in this order: watermark, logit_bias, repetition penalty, presence and frequency penalties, bans of end tokens,
grammar. Rows whose request has none of them cost nothing. Definitions are those of transformers (repetition, watermark)
and of OpenAI (presence and frequency: additive, over generated tokens only).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from backends.native.engine.attention.interface import index_tensor
from backends.native.engine.sampling.mask_scores import mask_of, mask_scores
from backends.native.engine.sampling.rows import DraftRow, Row
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.protocol.messages import SamplingParams

_NEVER = float("-inf")
# The constants of text-generation-inference, so that its detector and that of transformers recognize the watermark.
_WATERMARK_KEY = 15485863
_WATERMARK_SHARE = 0.5
_WATERMARK_BIAS = 2.0


def process_logits(scores: Tensor, sequences: Seq[Row]) -> Tensor:
    """Apply the processors that the sequences' requests ask for.

    Args:
        scores: [rows, vocabulary] float32, not changed.
        sequences: one a row, each with the drafts before the row (`rows`).

    Returns:
        [rows, vocabulary]: new scores, or `scores` itself if no request has a processor.
    """
    rows = [row for row, sequence in enumerate(sequences) if _needs_processing(sequence)]
    if not rows:
        return scores
    # The raw logits are needed afterwards: logprobs are those of the model, before any processor.
    scores = scores.clone()
    _watermark(scores, sequences, rows)
    _bias(scores, sequences, rows)
    _penalize(scores, sequences, rows)
    _ban(scores, sequences, rows)
    _constrain(scores, sequences, rows)
    return scores


def _needs_processing(sequence: Row) -> bool:
    request = sequence.request
    sampling = request.sampling
    return bool(
        _has_penalty(sampling)
        or sampling.logit_bias
        or sampling.watermark
        or (request.min_new_tokens and _too_early(sequence))
        or sequence.constraint is not None
    )


def _has_penalty(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or bool(sampling.presence_penalty or sampling.frequency_penalty)


def _too_early(sequence: Row) -> bool:
    return sequence.generated < sequence.request.min_new_tokens


def _watermark(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    """Add a bias to the green list that the last token seeds (Kirchenbauer et al., arXiv 2301.10226)."""
    vocab = scores.shape[1]
    # On the CPU whatever the device: a detector must be able to draw the same permutation, and CUDA's generator gives
    # another.
    generator = torch.Generator()
    for row in rows:
        if sequences[row].request.sampling.watermark:
            # The modulus is transformers' (`WatermarkLogitsProcessor`).
            generator.manual_seed(_WATERMARK_KEY * sequences[row].tokens[-1] % (2**64 - 1))
            green = torch.randperm(vocab, generator=generator)[: int(vocab * _WATERMARK_SHARE)]
            scores[row, green.to(scores.device)] += _WATERMARK_BIAS


def _bias(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    entries = [(row, token, bias) for row in rows for token, bias in sequences[row].request.sampling.logit_bias]
    if entries:
        index = [torch.tensor(column, device=scores.device) for column in zip(*entries, strict=True)]
        # Accumulate: a token that is listed twice gets both biases.
        scores.index_put_((index[0], index[1]), index[2].to(scores.dtype), accumulate=True)


def _ban(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    """No end or stop token before `min_new_tokens`."""
    entries = [
        (row, token)
        for row in rows
        if _too_early(sequences[row])
        for token in sequences[row].request.eos_token_ids + sequences[row].request.stop_token_ids
    ]
    if entries:
        banned = torch.tensor(entries, device=scores.device)
        scores[banned[:, 0], banned[:, 1]] = _NEVER


def _constrain(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    constrained = [row for row in rows if sequences[row].constraint is not None]
    mask_scores(scores, constrained, [mask_of(sequences[row]) for row in constrained])


class History:
    """How often each token occurs in a sequence's output: `counts`, [vocabulary], on the device of the logits.

    Updated as the sequence grows, rather than counted anew at each step. Preemption keeps it, as it keeps the tokens.
    """

    __slots__ = ("_counted", "counts")

    def __init__(self, sequence: Sequence, like: Tensor) -> None:
        self.counts = torch.zeros(like.shape[-1], dtype=like.dtype, device=like.device)
        # OpenAI's presence and frequency penalties count generated tokens, not the prompt.
        self._counted = len(sequence.request.prompt)

    def update(self, tokens: list[int]) -> None:
        """Count the tokens that are new since the last call."""
        for token in tokens[self._counted :]:
            self.counts[token] += 1
        self._counted = len(tokens)


def _penalize(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    """Repetition, presence and frequency penalties, for the tokens of each sequence only.

    A token that occurs twice is computed from the same score and written twice with the same value.
    """
    rows = [row for row in rows if _has_penalty(sequences[row].request.sampling)]
    if not rows:
        return
    device = scores.device
    # Repetition looks at prompt and output, as in transformers (CTRL, arXiv 1909.05858). For prompt tokens that were
    # not generated, `counts` is 0 and the other penalties vanish.
    held = [index_tensor(sequences[row].tokens, device) for row in rows]
    counts = torch.cat([_counts(sequences[row], scores)[tokens] for row, tokens in zip(rows, held, strict=True)])
    lengths = torch.tensor([len(tokens) for tokens in held], device=device)
    params = [sequences[row].request.sampling for row in rows]
    table = scores.new_tensor([(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params])
    # All rows at once: one (row, token) pair for each token held, with its row's parameters.
    repetition, presence, frequency = table.repeat_interleave(lengths, dim=0).unbind(1)

    where = (torch.tensor(rows, device=device).repeat_interleave(lengths), torch.cat(held))
    penalized = scores[where]
    # Division would raise a negative score: both branches lower it for a penalty above 1.
    penalized = torch.where(penalized < 0, penalized * repetition, penalized / repetition)
    # OpenAI's formula: logit - count * frequency_penalty - (count > 0) * presence_penalty.
    scores[where] = penalized - presence * (counts > 0) - frequency * counts


def _counts(sequence: Row, like: Tensor) -> Tensor:
    if isinstance(sequence, DraftRow):
        counts = _counts(sequence.sequence, like).clone()
        for token in sequence.drafts:
            counts[token] += 1
        return counts
    assert isinstance(sequence, Sequence)
    if sequence.history is None:
        sequence.history = History(sequence, like)
    history = sequence.history
    assert isinstance(history, History)
    history.update(sequence.tokens)
    return history.counts
