"""The sampler: the right distribution, equal tokens for equal seeds, and logprobs of the raw logits."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.sampling import sampler
from backends.native.engine.sampling.logits_processors import process_logits
from backends.native.engine.sampling.logits_warpers import warp_logits
from backends.native.engine.sampling.sampler import NoDistribution, choose, sample
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Logprobs, SamplingParams, Submit
from tests.backends.native.engine.tiny import FAMILIES, Answer, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch

VOCAB = 40


def sequence(sampling: SamplingParams, tokens: tuple[int, ...] = (1, 2, 3), **more: int) -> Sequence:
    return Sequence(0, Submit(0, tokens, 99, sampling, **more), 0)


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def whole(given: Sequence) -> Work:
    return Work(given, 0, len(given.tokens), samples=True)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5, top_k=8),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.1, logit_bias=((3, 1.0),)),
        SamplingParams(temperature=1.0, typical_p=0.7, repetition_penalty=1.5),
    ],
)
def test_frequencies_follow_the_distribution(params: SamplingParams) -> None:
    """Pearson's chi-square over 20,000 seeds; its limit is exceeded by chance once in 10,000 times."""
    draws = 20_000
    raw = logits()
    rows = [
        sequence(SamplingParams(**{f: getattr(params, f) for f in params.__struct_fields__} | {"seed": seed}))
        for seed in range(draws)
    ]
    counts = torch.bincount(torch.tensor(choose(rows, raw.expand(draws, -1))), minlength=VOCAB)
    expected = warp_logits(process_logits(raw, rows[:1]).clone(), [params]).softmax(-1)[0] * draws
    assert not counts[expected == 0].any()
    likely = expected >= 5
    chi_square = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
    freedom = int(likely.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 8


def test_greedy_takes_the_most_likely_token_and_ignores_the_warpers() -> None:
    raw = logits(3)
    odd = SamplingParams(temperature=0.0, top_k=1, typical_p=0.1, seed=5)
    assert choose([sequence(odd)] * 3, raw) == raw.argmax(-1).tolist()


def test_rows_with_different_parameters_choose_as_if_alone() -> None:
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=1.0, top_p=0.5, seed=2),
        SamplingParams(frequency_penalty=2.0),
        SamplingParams(temperature=0.7, top_k=3, watermark=True, seed=4),
        SamplingParams(temperature=1.0, seed=1),
    ]
    raw = logits(len(kinds))
    together = choose([sequence(kind) for kind in kinds], raw)
    assert together == [choose([sequence(kind)], raw[row : row + 1])[0] for row, kind in enumerate(kinds)]


def test_logprobs_are_of_the_raw_logits() -> None:
    raw = logits(2)
    biased = SamplingParams(temperature=3.0, logit_bias=((7, 100.0),), top_k=2)
    works = [whole(sequence(biased, top_logprobs=3)), whole(sequence(SamplingParams(), top_logprobs=0))]
    first, second = sample(works, raw)
    expected = raw.log_softmax(-1)
    assert first.tokens == (7,)
    (of_first,), (of_second,) = first.logprobs, second.logprobs
    assert of_first.logprob == pytest.approx(float(expected[0, 7]))
    assert of_first.top_ids == tuple(raw[0].topk(3).indices.tolist())
    assert of_first.top_logprobs == pytest.approx(expected[0].topk(3).values.tolist())
    assert of_second == Logprobs(pytest.approx(float(expected[1].max())))


def test_prompt_logprobs_come_with_their_work_and_the_last_row_samples() -> None:
    asked = Sequence(0, Submit(0, (1, 2, 3, 4), 9, prompt_logprobs=1), 0)
    raw = logits(4)
    expected = raw.log_softmax(-1)
    early, late = Work(asked, 0, 2, samples=False), Work(asked, 2, 2, samples=True)
    (first,) = sample([early], raw[:2])
    (second,) = sample([late], raw[2:])
    assert first.tokens == ()
    assert [p.logprob for p in first.prompt + second.prompt] == pytest.approx(
        [float(expected[row, row + 2]) for row in range(3)]
    )
    assert [p.top_ids for p in first.prompt] == [(int(row.argmax()),) for row in raw[:2]]
    assert second.tokens == (int(raw[3].argmax()),)


def test_works_without_rows_give_empty_samples() -> None:
    silent = Work(sequence(SamplingParams()), 0, 2, samples=False)
    speaking = whole(sequence(SamplingParams()))
    raw = logits(1)
    assert [found.tokens for found in sample([silent, speaking, silent], raw)] == [(), (int(raw.argmax()),), ()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_an_error(temperature: float) -> None:
    raw = logits(2)
    raw[1, 5] = float("nan")
    with pytest.raises(NoDistribution):
        choose([sequence(SamplingParams(temperature=temperature))] * 2, raw)


SAMPLED = SamplingParams(temperature=3.0, top_p=0.95, repetition_penalty=1.1, seed=2**63 + 11)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_replays_alone_in_a_batch_and_after_preemption(family: str) -> None:
    def run(others: int, blocks: int, **options: int) -> tuple[Answer, list[int]]:
        engine = tiny(packed_runner(family, blocks), blocks=blocks, **options)
        others_first = [
            Submit(seq, prompt(9 + seq, seq), 24, SamplingParams(temperature=1.0, seed=seq)) for seq in range(others)
        ]
        answers = engine.answers([*others_first, Submit(99, prompt(20, 99), 24, SAMPLED)], apart=1)
        return answers[99], engine.preemptions

    alone, _ = run(0, 64)
    beside, _ = run(5, 64)
    chunked, _ = run(5, 64, step_tokens=9)
    preempted, victims = run(3, 24)
    assert 99 in victims
    assert alone.ids == beside.ids == chunked.ids == preempted.ids
    assert len(set(alone.ids)) > 8, "the tokens were sampled, not greedy"


@pytest.mark.parametrize("vocab", [1, 31, 1000, 4096, 50_257, 151_936])
def test_argmax_over_stretches_equals_that_of_torch(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_LARGE", 0)
    scores = torch.randn(40, vocab, generator=torch.Generator().manual_seed(0))
    scores[:3] = float("-inf")
    scores[1, -1] = scores[2, vocab // 2] = 5.0
    scores[3] = 1.0  # all the same: the first
    scores[4, [0, vocab // 3, -1]] = 9.0  # so here
    scores[5, -1] = float("nan")
    assert sampler.argmax(scores).tolist() == scores.argmax(-1).tolist()
