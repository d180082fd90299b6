"""The logits processors against those of transformers, and by their definitions."""

from __future__ import annotations

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, WatermarkLogitsProcessor

from backends.native.engine.sampling.logits_processors import process_logits
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.protocol.messages import SamplingParams, Submit

pytestmark = pytest.mark.torch

VOCAB = 50


PLAIN = SamplingParams()


def sequence(prompt: list[int], output: list[int], sampling: SamplingParams = PLAIN, **more: int) -> Sequence:
    made = Sequence(0, Submit(0, tuple(prompt), 99, sampling, eos_token_ids=(2,), stop_token_ids=(3,), **more), 0)
    made.tokens += output
    return made


def scores(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows)) * 3


def test_scores_without_a_processor_are_returned_as_they_are() -> None:
    given = scores(2)
    assert process_logits(given, [sequence([1], []), sequence([2, 3], [4])]) is given


def test_only_rows_with_a_processor_change_and_the_input_does_not() -> None:
    given = scores(3)
    before = given.clone()
    changed = process_logits(
        given, [sequence([5], []), sequence([5], [], SamplingParams(logit_bias=((7, 2.5),))), sequence([5], [])]
    )
    assert torch.equal(given, before)
    assert (changed != before).nonzero().tolist() == [[1, 7]]
    assert float(changed[1, 7]) == pytest.approx(float(before[1, 7]) + 2.5)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty_covers_prompt_and_output(penalty: float) -> None:
    given = scores(1)
    tokens = [5, 6, 6, 7, 9, 9, 30]
    changed = process_logits(given, [sequence(tokens[:3], tokens[3:], SamplingParams(repetition_penalty=penalty))])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens]), given.clone())
    torch.testing.assert_close(changed, expected)


def test_presence_and_frequency_penalties_cover_the_output_only() -> None:
    given = scores(1)
    asked = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    change = process_logits(given, [sequence([5, 6], [6, 7, 7, 7], asked)]) - given
    expected = torch.zeros(1, VOCAB)
    expected[0, 6], expected[0, 7] = -0.75, -1.25
    torch.testing.assert_close(change, expected)


def test_history_counts_the_tokens_of_a_growing_sequence() -> None:
    growing = sequence([5], [], SamplingParams(presence_penalty=1.0, repetition_penalty=1.5))
    given = scores(1)
    for token in (8, 8, 11):
        process_logits(given, [growing])
        growing.tokens.append(token)
    fresh = sequence([5], [8, 8, 11], growing.request.sampling)
    assert torch.equal(process_logits(given, [growing]), process_logits(given, [fresh]))


@pytest.mark.parametrize("generated", [0, 2, 3])
def test_end_and_stop_tokens_are_banned_before_min_new_tokens(generated: int) -> None:
    given = scores(1)
    changed = process_logits(given, [sequence([5], [8] * generated, min_new_tokens=3)])
    banned = changed.isneginf().nonzero()[:, 1].tolist()
    assert banned == ([2, 3] if generated < 3 else [])


def test_a_bias_does_not_lift_a_ban() -> None:
    changed = process_logits(scores(1), [sequence([5], [], SamplingParams(logit_bias=((2, 100.0),)), min_new_tokens=1)])
    assert changed[0, 2].isneginf()


def test_watermark_is_the_one_transformers_detects() -> None:
    given = scores(2)
    marked = process_logits(given, [sequence([5], [8], SamplingParams(watermark=True)), sequence([5], [8])])
    expected = WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=0.5, bias=2.0)(torch.tensor([[5, 8]]), given[:1])
    torch.testing.assert_close(marked, torch.cat([expected, given[1:]]))
