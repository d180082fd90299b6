"""Logits processors: watermark, bias, penalties, bans and grammar masks, before greedy choice and sampling alike.

They run in this order: watermark, logit_bias, repetition penalty, presence and frequency penalties, bans of end tokens,
grammar. Rows whose request has none of them cost nothing. Definitions are those of transformers (repetition, watermark)
and of OpenAI (presence and frequency: additive, over generated tokens only).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from backends.native.engine.devices import constant, send, to_device
from backends.native.engine.sampling.mask_scores import mask_of, mask_scores
from backends.native.engine.sampling.rows import DraftRow, Row
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.protocol.messages import SamplingParams

_NEVER = float("-inf")
# The constants of text-generation-inference, so that its detector and that of transformers recognize the watermark.
_WATERMARK_KEY = 15485863
_WATERMARK_SHARE = 0.5
_WATERMARK_BIAS = 2.0


def process_logits(scores: Tensor, sequences: Seq[Row], unread: Tensor | None = None) -> Tensor:
    """Apply the processors that the sequences' requests ask for.

    Args:
        scores: [rows, vocabulary] float32, not changed.
        sequences: one a row, each with the drafts before the row (`rows`).
        unread: last tokens of sequences, which the host has not read (`ExtraArrays`).

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
    _penalize(scores, sequences, rows, unread)
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
            scores[row, to_device(green, scores.device)] += _WATERMARK_BIAS


def _bias(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    entries = [(row, token, bias) for row in rows for token, bias in sequences[row].request.sampling.logit_bias]
    if entries:
        columns = zip("qqf", zip(*entries, strict=True), strict=True)
        where, tokens, biases = (constant(scores.device, code, column) for code, column in columns)
        # Accumulate: a token that is listed twice gets both biases.
        scores.index_put_((where, tokens), biases, accumulate=True)


def _ban(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    """No end or stop token before `min_new_tokens`."""
    entries = [
        (row, token)
        for row in rows
        if _too_early(sequences[row])
        for token in sequences[row].request.eos_token_ids + sequences[row].request.stop_token_ids
    ]
    if entries:
        where, tokens = (constant(scores.device, "q", column) for column in zip(*entries, strict=True))
        scores[where, tokens] = _NEVER


def _constrain(scores: Tensor, sequences: Seq[Row], rows: Seq[int]) -> None:
    constrained = [row for row in rows if sequences[row].constraint is not None]
    mask_scores(scores, constrained, [mask_of(sequences[row]) for row in constrained])


class History:
    """The distinct tokens of a sequence, prompt included, and how often each occurs in its output.

    Kept on the host and updated as the sequence grows: a step sends it to the device in one copy, and nothing of it has
    the size of the vocabulary. Preemption keeps it, as it keeps the tokens.
    """

    __slots__ = ("_known", "_places", "counts", "tokens")

    def __init__(self, prompt: Seq[int]) -> None:
        self.tokens = array("q", dict.fromkeys(prompt))
        self.counts = array("f", bytes(4 * len(self.tokens)))
        self._places = {token: place for place, token in enumerate(self.tokens)}
        # OpenAI's presence and frequency penalties count generated tokens, not the prompt.
        self._known = len(prompt)

    def update(self, tokens: list[int]) -> None:
        """Count the tokens that are new since the last call, but for one that is not read yet."""
        end = len(tokens) - (tokens[-1] < 0)
        self._count(tokens[self._known : end])
        self._known = end

    def after(self, drafts: Seq[int]) -> History:
        """A copy in which `drafts` are counted, too."""
        found = History(())
        found.tokens, found.counts, found._places = self.tokens[:], self.counts[:], dict(self._places)
        found._count(drafts)
        return found

    def _count(self, tokens: Seq[int]) -> None:
        for token in tokens:
            place = self._places.setdefault(token, len(self.tokens))
            if place == len(self.tokens):
                self.tokens.append(token)
                self.counts.append(0)
            self.counts[place] += 1


def _penalize(scores: Tensor, sequences: Seq[Row], rows: Seq[int], unread: Tensor | None) -> None:
    """Repetition, presence and frequency penalties, for the tokens of each sequence only."""
    rows = [row for row in rows if _has_penalty(sequences[row].request.sampling)]
    if not rows:
        return
    # All rows at once: one (row, token) pair for each distinct token held. Repetition looks at prompt and output, as in
    # transformers (CTRL, arXiv 1909.05858). For prompt tokens that were not generated, the count is 0 and the other
    # penalties vanish.
    owners, held, generated = array("q"), array("q"), array("f")
    for index, row in enumerate(rows):
        history = _history(sequences[row])
        owners.extend(array("q", [index]) * len(history.tokens))
        held.extend(history.tokens)
        generated.extend(history.counts)
    owner, token, counts = send(scores.device, owners, held, generated)
    if unread is not None:
        last = [sequences[row].tokens[-1] for row in rows]
        owner, token, counts = _with_unread(owner, token, counts, last, unread)
    params = [sequences[row].request.sampling for row in rows]
    table = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
    repetition, presence, frequency = (
        constant(scores.device, "f", column).index_select(0, owner) for column in zip(*table, strict=True)
    )

    where = (constant(scores.device, "q", tuple(rows)).index_select(0, owner), token)
    penalized = scores[where]
    # Division would raise a negative score: both branches lower it for a penalty above 1.
    penalized = torch.where(penalized < 0, penalized * repetition, penalized / repetition)
    # OpenAI's formula: logit - count * frequency_penalty - (count > 0) * presence_penalty.
    scores[where] = penalized - presence * (counts > 0) - frequency * counts


def _with_unread(
    owner: Tensor, token: Tensor, counts: Tensor, last: Seq[int], unread: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count the last tokens, too, of those sequences of which `unread` has it; `last` are `~row` there."""
    late = [index for index, each in enumerate(last) if each < 0]
    if not late:
        return owner, token, counts
    device = owner.device
    whose = constant(device, "q", tuple(late))
    found = unread.index_select(0, constant(device, "q", tuple(~last[index] for index in late))).clamp_(min=0)
    newest = token.new_full((len(last),), -1).index_copy_(0, whose, found)
    again = (token == newest.index_select(0, owner)).float()  # 1 for a pair whose token has come again
    # A pair for each that is new. Of one that is not, there are then two, with the same count and so the same score.
    total = counts.new_ones(len(last)).index_add_(0, owner, counts * again)
    return (
        torch.cat((owner, whose)),
        torch.cat((token, found)),
        torch.cat((counts + again, total.index_select(0, whose))),
    )


def _history(row: Row) -> History:
    if isinstance(row, DraftRow):
        return _history(row.sequence).after(row.drafts)
    assert isinstance(row, Sequence)
    if row.history is None:
        row.history = History(row.request.prompt)
    history = row.history
    assert isinstance(history, History)
    history.update(row.tokens)
    return history
