"""The sampler: the next token of every sequence in one batched pass, and the logprobs that were requested.

Rows have different sampling parameters; each stage runs over the rows that need it and over no others. A sequence has
a row, and one more for each draft that the step verifies (`rows`). Sampling is the
Gumbel-max trick with noise that is a function of (seed, position, token), so that a seed gives the same tokens in any
batch. Logprobs are the log-softmax of the model's own logits, before processors and warpers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import accumulate
from math import isqrt

import msgspec
import torch
from torch import Tensor

from backends.native.engine.devices import ExtraArrays, constant, index_tensor
from backends.native.engine.sampling.gumbel import row_keys
from backends.native.engine.sampling.logits_processors import process_logits
from backends.native.engine.sampling.logits_warpers import warp_logits
from backends.native.engine.sampling.operations import operations_for
from backends.native.engine.sampling.rows import Row, rows_of
from backends.native.engine.scheduling.sequence import Work
from backends.native.protocol.messages import Logprobs

# From this many scores on, `argmax` on a CPU searches the maxima of stretches: torch vectorizes `amax`, not `argmax`.
_LARGE = 2**16


class NoDistribution(ArithmeticError):
    """The model's logits for a sequence are not numbers, or no token is left to choose."""

    def __init__(self) -> None:
        super().__init__("the model's output is not a probability distribution")


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The result of a step's work.

    Attributes:
        tokens: the next tokens, if the work reached the sequence's end: its drafts as far as they were right, and one
            more.
        logprobs: of these tokens, if requested.
        prompt: logprobs of the prompt tokens whose predecessors were run, if requested.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    prompt: tuple[Logprobs, ...] = ()


def noise_keys(works: Seq[Work]) -> ExtraArrays | None:
    """The keys of the noise of a step, for a runner to take along; None: no token will be drawn."""
    rows = [row for work in works if work.samples for row in rows_of(work)]
    drawn = [row for row in rows if row.request.sampling.temperature > 0]
    return ExtraArrays((_keys_of(drawn),)) if drawn else None


def _keys_of(rows: Seq[Row]) -> array[int]:
    # The index of the token to be chosen: the noise does not depend on the step or on the row.
    return row_keys([row.request.sampling.seed for row in rows], [len(row.tokens) for row in rows])


def sample(works: Seq[Work], logits: Tensor, keys: ExtraArrays | None = None) -> list[Sample]:
    """Choose the next tokens of a step.

    Args:
        works: the works that were run.
        logits: [rows, vocabulary]; `wanted` rows of each work in turn.
        keys: `noise_keys` of the works; None: they are made here.

    Returns:
        One sample a work.

    Raises:
        NoDistribution: no token can be chosen for at least one sequence.
    """
    ends = list(accumulate([work.wanted for work in works]))
    sampling = [(work, end) for work, end in zip(works, ends, strict=True) if work.samples]
    rows: list[Row] = [row for work, _ in sampling for row in rows_of(work)]
    # The row of a work's last token predicts the token after it, and that of each draft the token after the draft.
    last = [row for work, end in sampling for row in range(end - 1 - len(work.drafts), end)]
    # In decode every row samples: without the selection a copy of all logits is saved. `float()` copies only other
    # dtypes.
    raw = (logits if len(last) == len(logits) else logits[index_tensor(last, logits.device)]).float()

    tokens = choose(rows, raw, keys) if rows else []
    if len(sampling) == len(works) == len(tokens) == len(logits):  # decode without drafts: no prompt to score
        found = chosen_logprobs(rows, raw, tokens, range(len(rows)))
        return [Sample((token,), logprobs) for token, logprobs in zip(tokens, found, strict=True)]
    return _by_work(works, ends, logits, rows, raw, tokens)


def _by_work(
    works: Seq[Work], ends: Seq[int], logits: Tensor, rows: Seq[Row], raw: Tensor, tokens: Seq[int]
) -> list[Sample]:
    """One sample a work, of the tokens that were chosen at `rows`."""
    kept: list[list[int]] = []  # for each work, which of `rows` count
    first = 0
    for work in works:
        kept.append(_right(work, first, tokens) if work.samples else [])
        first += 1 + len(work.drafts) if work.samples else 0
    logprobs = chosen_logprobs(rows, raw, tokens, [row for some in kept for row in some])
    samples = []
    for work, end, some in zip(works, ends, kept, strict=True):
        prompt = prompt_logprobs(work, logits[end - work.wanted : end]) if work.sequence.scores_prompt else ()
        found = tuple(logprob for _ in some for logprob in next(logprobs))
        samples.append(Sample(tuple(tokens[row] for row in some), found, prompt))
    return samples


def _right(work: Work, first: int, tokens: Seq[int]) -> list[int]:
    """The rows of a work from `first` on whose tokens count: up to the first that differs from its draft."""
    count = 0
    while count < len(work.drafts) and tokens[first + count] == work.drafts[count]:
        count += 1
    return list(range(first, first + count + 1))


def choose(rows: Seq[Row], raw: Tensor, keys: ExtraArrays | None = None) -> list[int]:
    """Choose the next token of each row, and wait for them; arguments as for `choose_on_device`.

    Raises:
        NoDistribution: no token can be chosen for at least one row.
    """
    chosen: list[int] = choose_on_device(rows, raw, keys).tolist()
    if min(chosen) < 0:
        raise NoDistribution
    return chosen


def choose_on_device(rows: Seq[Row], raw: Tensor, keys: ExtraArrays | None = None) -> Tensor:
    """Choose the next token of each row.

    Args:
        rows: what each row belongs to.
        raw: [rows, vocabulary] float32, not changed.
        keys: those of the rows that have a temperature, and what the host has not read; None: they are made here.

    Returns:
        [rows] int64 tokens; -1 where the chosen score is not finite.
    """
    scores = process_logits(raw, rows, keys.unread if keys is not None else None)
    # Greedy for all rows; rows with a temperature are overwritten below. The finiteness check at the end needs
    # `scores`, so warping works on a copy (`index_select`).
    tokens = argmax(scores)
    random = [row for row, each in enumerate(rows) if each.request.sampling.temperature > 0]
    if random:
        index = constant(scores.device, "q", tuple(random))
        params = [rows[row].request.sampling for row in random]
        sampled = scores.index_select(0, index)
        operations = operations_for(sampled)
        warped = warp_logits(sampled, params, operations.mask_top_k_top_p)
        (found,) = (keys or ExtraArrays((_keys_of([rows[row] for row in random]),))).on(scores.device)
        operations.add_gumbel_noise(warped, found.view(-1, 2))
        tokens.index_copy_(0, index, argmax(warped))
    # `argmax` prefers NaN to any number, so a NaN anywhere in a row is the chosen score. Marked by -1, so that one copy
    # from the device tells the tokens and whether there are any.
    finite = scores.gather(1, tokens.unsqueeze(1)).squeeze(1).isfinite()
    return torch.where(finite, tokens, -1)


def argmax(scores: Tensor) -> Tensor:
    """The column of each row's maximum, [rows, vocabulary] to [rows]: as torch's own, the first one, or a NaN."""
    if scores.numel() < _LARGE or scores.device.type != "cpu":
        return scores.argmax(-1)
    vocab = scores.shape[1]
    width = min(vocab, -(-isqrt(vocab) // 32) * 32)  # a multiple of the vector units' width
    whole = vocab // width
    # Two passes: the maximum of each stretch of about sqrt(vocabulary) scores, then the place of the maximum in one
    # stretch. `amax` passes NaN on, so a NaN is found, too.
    peaks = scores[:, : whole * width].view(-1, whole, width).amax(-1)
    if whole * width < vocab:  # one more stretch for the rest, which overlaps the last one
        peaks = torch.cat((peaks, scores[:, -width:].amax(-1, keepdim=True)), dim=1)
    start = (peaks.argmax(-1, keepdim=True) * width).clamp_(max=vocab - width)
    stretch = scores.gather(1, start + torch.arange(width))
    return (start + stretch.argmax(-1, keepdim=True)).squeeze(1)


def chosen_logprobs(rows: Seq[Row], raw: Tensor, tokens: Seq[int], kept: Seq[int]) -> Iterator[tuple[Logprobs, ...]]:
    """Of each row in `kept` the logprobs of the chosen token: one if the sequence requested them, else none."""
    wanted = [row for row in kept if rows[row].request.top_logprobs >= 0]
    found: dict[int, Logprobs] = {}
    if wanted:
        tops = [rows[row].request.top_logprobs for row in wanted]
        scores = raw[constant(raw.device, "q", tuple(wanted))]
        found = dict(zip(wanted, logprobs_of(scores, [tokens[row] for row in wanted], tops), strict=True))
    return ((found[row],) if row in found else () for row in kept)


def prompt_logprobs(work: Work, logits: Tensor) -> tuple[Logprobs, ...]:
    """Logprobs of the prompt tokens that follow those of `work`. `logits` is [rows of the work, vocabulary]."""
    request = work.sequence.request
    # Logits at position i are those of token i + 1. The prompt's last row belongs to the first generated token, so the
    # last chunk has a row more than tokens.
    following = request.prompt[work.start + 1 : work.start + work.count + 1]
    if not following or request.prompt_logprobs < 0:
        return ()
    tops = [request.prompt_logprobs] * len(following)
    return tuple(logprobs_of(logits[: len(following)].float(), following, tops))


def logprobs_of(raw: Tensor, tokens: Seq[int], tops: Seq[int]) -> list[Logprobs]:
    """Log-softmax of `raw` [rows, vocabulary] at `tokens`, and at the `tops` most likely tokens of each row."""
    # In one copy from the device.
    return read_logprobs(logprob_numbers(raw, index_tensor(tokens, raw.device), max(tops)).cpu(), tops)


def logprob_numbers(raw: Tensor, tokens: Tensor, top: int) -> Tensor:
    """The same on the device, for `read_logprobs`.

    Returns:
        [rows, 1 + 2 * top] float32: of the token, of the most likely tokens, and their ids as the bits of floats.
    """
    logs = raw.log_softmax(-1)
    own = logs.gather(1, tokens.unsqueeze(1))
    if top <= 0:
        return own
    best = logs.topk(min(top, raw.shape[1]), dim=-1)
    return torch.cat((own, best.values, best.indices.int().view(torch.float32)), dim=1)


def read_logprobs(found: Tensor, tops: Seq[int]) -> list[Logprobs]:
    """The logprobs of each row of `logprob_numbers`, on the host; of the most likely tokens each row has its `tops`."""
    most = found.shape[1] // 2
    values, ids = found[:, : 1 + most].tolist(), found[:, 1 + most :].view(torch.int32).tolist()
    return [
        Logprobs(row[0], tuple(tokens[:top]), tuple(row[1 : 1 + top]))
        for row, tokens, top in zip(values, ids, tops, strict=True)
    ]
