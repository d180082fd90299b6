"""Chooses the next token of every sequence in one batched pass, and tells the logprobs of those that asked.

Rows ask for different things; each stage runs over the rows that ask for it and over no others. Logprobs are the
log-softmax of the model's own logits, before anything here changed them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate
from math import isqrt

import msgspec
import torch
from torch import Tensor

from backends.native.engine.sampling.gumbel import perturb
from backends.native.engine.sampling.logits_processors import process
from backends.native.engine.sampling.logits_warpers import warp_logits
from backends.native.engine.sampling.operations import operations_for
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Logprobs

# On a CPU, a search of more numbers than these goes by the maxima of stretches: torch vectorises `amax`, not `argmax`.
_LARGE = 2**16


class NoDistribution(ArithmeticError):
    """The model's logits for a sequence are not numbers, or no token is left to choose."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """What a step's work gave: the next token if the work reached the sequence's end, and logprobs if asked for.

    `prompt` has one entry for each prompt token whose predecessor was run.
    """

    token: int | None = None
    logprobs: Logprobs | None = None
    prompt: tuple[Logprobs, ...] = ()


def sample(works: Seq[Work], logits: Tensor) -> list[Sample]:
    """Choose tokens.

    Args:
        works: what was run.
        logits: [rows, vocabulary]; for each work in turn, its `wanted`.

    Returns:
        One a work.

    Raises:
        NoDistribution: for at least one sequence no token can be chosen.
    """
    ends = list(accumulate([work.wanted for work in works]))
    sequences = [work.sequence for work in works if work.samples]
    last = [end - 1 for work, end in zip(works, ends, strict=True) if work.samples]
    raw = (logits if len(last) == len(logits) else logits[torch.tensor(last, dtype=torch.long)]).float()

    tokens = choose(sequences, raw) if sequences else []
    told = zip(tokens, chosen_logprobs(sequences, raw, tokens), strict=True)
    if len(last) == len(works) == len(logits):  # decode: no prompt to score
        return [Sample(token, logprobs) for token, logprobs in told]

    samples = []
    for work, end in zip(works, ends, strict=True):
        token, logprobs = next(told) if work.samples else (None, None)
        prompt = prompt_logprobs(work, logits[end - work.wanted : end]) if work.sequence.scores_prompt else ()
        samples.append(Sample(token, logprobs, prompt))
    return samples


def choose(sequences: Seq[Sequence], raw: Tensor) -> list[int]:
    """The next token of each sequence by its own parameters. `raw` is [sequences, vocabulary] float32, left alone."""
    scores = process(raw, sequences)
    tokens = argmax(scores)
    random = [row for row, sequence in enumerate(sequences) if sequence.request.sampling.temperature > 0]
    if random:
        index = torch.tensor(random, device=scores.device)
        params = [sequences[row].request.sampling for row in random]
        positions = [len(sequences[row].tokens) for row in random]
        sampled = scores.index_select(0, index)
        operations = operations_for(sampled)
        warped = warp_logits(sampled, params, operations.mask_top_k_top_p)
        noisy = perturb(warped, [p.seed for p in params], positions, operations.add_gumbel_noise)
        tokens[index] = argmax(noisy)
    # argmax takes NaN for the largest, so the chosen score tells of one anywhere in the row.
    if not bool(scores.gather(1, tokens.unsqueeze(1)).isfinite().all()):
        raise NoDistribution("the model's output is not a probability distribution")
    chosen: list[int] = tokens.tolist()
    return chosen


def argmax(scores: Tensor) -> Tensor:
    """[rows, vocabulary] to [rows], as torch's own: the first of the largest, or a NaN."""
    if scores.numel() < _LARGE or scores.device.type != "cpu":
        return scores.argmax(-1)
    vocab = scores.shape[1]
    width = min(vocab, -(-isqrt(vocab) // 32) * 32)  # what vector units like
    whole = vocab // width
    peaks = scores[:, : whole * width].view(-1, whole, width).amax(-1)
    if whole * width < vocab:  # one more stretch, which overlaps the last
        peaks = torch.cat((peaks, scores[:, -width:].amax(-1, keepdim=True)), dim=1)
    start = (peaks.argmax(-1, keepdim=True) * width).clamp_(max=vocab - width)
    stretch = scores.gather(1, start + torch.arange(width))
    return (start + stretch.argmax(-1, keepdim=True)).squeeze(1)


def chosen_logprobs(sequences: Seq[Sequence], raw: Tensor, tokens: Seq[int]) -> list[Logprobs | None]:
    """Logprobs of the chosen tokens, for the sequences that want them."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.request.top_logprobs >= 0]
    told: list[Logprobs | None] = [None] * len(sequences)
    if rows:
        tops = [sequences[row].request.top_logprobs for row in rows]
        found = logprobs_of(raw[torch.tensor(rows, device=raw.device)], [tokens[row] for row in rows], tops)
        for row, logprobs in zip(rows, found, strict=True):
            told[row] = logprobs
    return told


def prompt_logprobs(work: Work, logits: Tensor) -> tuple[Logprobs, ...]:
    """Logprobs of the prompt tokens that follow those of `work`. `logits` is [rows of the work, vocabulary]."""
    request = work.sequence.request
    following = request.prompt[work.start + 1 : work.start + work.count + 1]
    if not following or request.prompt_logprobs < 0:
        return ()
    tops = [request.prompt_logprobs] * len(following)
    return tuple(logprobs_of(logits[: len(following)].float(), following, tops))


def logprobs_of(raw: Tensor, tokens: Seq[int], tops: Seq[int]) -> list[Logprobs]:
    """Log-softmax of `raw` [rows, vocabulary] at `tokens`, and the `tops` likeliest, one number of each a row."""
    logs = raw.log_softmax(-1)
    own = logs.gather(1, torch.tensor(tokens, device=raw.device).unsqueeze(1)).squeeze(1).tolist()
    most = min(max(tops), raw.shape[1])
    if most <= 0:
        return [Logprobs(logprob) for logprob in own]
    best = logs.topk(most, dim=-1)
    return [
        Logprobs(logprob, tuple(ids[:top]), tuple(values[:top]))
        for logprob, ids, values, top in zip(own, best.indices.tolist(), best.values.tolist(), tops, strict=True)
    ]
