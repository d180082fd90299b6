"""Greedy output equals transformers' `generate`, token for token and logit by logit, however the steps are cut.

The weights are wide, and the last tests prove that these comparisons detect a lost or misplaced token or state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from backends.native.engine.runner.stacking import Stacking
from backends.native.engine.state.pool import StatePool
from backends.native.engine.state.step import StateView
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.pretended.engines import WIDE
from tests.backends.native.engine.tiny import (
    ADAPTED,
    FAMILIES,
    MORE_RECURRENT,
    RECURRENT,
    VOCAB,
    Answer,
    Tiny,
    cache_runner,
    packed_runner,
    prompt,
    reference,
    tiny,
)

pytestmark = pytest.mark.torch

LENGTHS = (3, 27, 14, 40, 1, 9)
NEW = 12
STATES = (*RECURRENT, *MORE_RECURRENT) if WIDE else tuple(RECURRENT)
families = pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in (*ADAPTED, *STATES))]
)
# Of a logprob. transformers' own logits of Zamba 2 differ by 4e-5 between a whole pass and one token at a time.
TOLERANCES = {"zamba2": 1e-3}


def requests(lengths: Iterable[int] = LENGTHS, new: int = NEW) -> list[Submit]:
    return [Submit(seq, prompt(length, seq), new, top_logprobs=5) for seq, length in enumerate(lengths)]


def assert_equal(family: str, requests: list[Submit], answers: dict[int, Answer]) -> None:
    tolerance = TOLERANCES.get(family, 1e-4)
    for request in requests:
        expected, answer = reference(family, request.prompt, request.max_new_tokens), answers[request.seq]
        assert answer.ids == expected.ids
        for returned, row, token in zip(answer.logprobs, expected.logprobs, expected.ids, strict=True):
            assert returned.logprob == pytest.approx(float(row[token]), abs=tolerance)
            assert returned.top_logprobs == pytest.approx(row.topk(5).values.tolist(), abs=tolerance)


def packed(family: str, blocks: int = 64, size: int = 4, **options: int) -> Tiny:
    return tiny(packed_runner(family, blocks, size), blocks=blocks, size=size, **options)


@families
def test_a_sequence_alone(family: str) -> None:
    for asked in requests():
        assert_equal(family, [asked], packed(family).answers([asked]))


@families
def test_sequences_in_a_mixed_batch(family: str) -> None:
    asked = requests()
    assert_equal(family, asked, packed(family).answers(asked))
    assert_equal(family, asked, packed(family).answers(asked, apart=3))


@families
def test_chunked_prefill(family: str) -> None:
    asked = requests()
    assert_equal(family, asked, packed(family, step_tokens=7, max_sequences=5).answers(asked, apart=1))


@families
def test_prefix_hits(family: str) -> None:
    engine = packed(family)
    asked = requests()
    engine.answers(asked)
    again = engine.answers(asked)
    assert_equal(family, asked, again)
    assert [again[request.seq].cached_tokens for request in asked] == [0, 24, 12, 36, 0, 8]


@pytest.mark.slow
@pytest.mark.parametrize("family", STATES)
def test_prefix_hits_of_prompts_that_have_a_part_in_common(family: str) -> None:
    """The state is kept where a prompt ends, and, from the second prompt on, where what they have in common ends."""
    engine = packed(family)
    common = prompt(22, 1)
    asked = [Submit(seq, common + prompt(9, 10 + seq), NEW, top_logprobs=5) for seq in range(4)]
    answers = [engine.answers([request])[request.seq] for request in asked]
    assert_equal(family, asked, dict(enumerate(answers)))
    assert [answer.cached_tokens for answer in answers] == [0, 0, 20, 20]


@pytest.mark.slow
@pytest.mark.parametrize("family", STATES)
def test_a_chat_goes_on_from_the_state_within_its_last_answer(family: str) -> None:
    engine = packed(family)
    first = Submit(0, prompt(9, 1), 40)
    answer = engine.answers([first])[0]
    second = Submit(1, first.prompt + tuple(answer.ids) + prompt(5, 2), NEW, top_logprobs=5)
    answers = engine.answers([second])
    assert_equal(family, [second], answers)
    assert answers[1].cached_tokens == 48, "of 49 tokens, in steps of four blocks"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["falcon_h1", "jamba"])
def test_a_step_that_fails_is_run_again_from_states_before_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer raises after others have changed their states in place."""
    engine = packed(family)
    asked = requests((9, 14, 27))
    failures = iter((False,) * 5 + (True, False, False, True) + (False,) * 100)
    layer = engine.runner._model.model.layers[-1]
    own = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if next(failures):
            raise RuntimeError("a layer fails")
        return own(*args, **kwargs)

    monkeypatch.setattr(layer, "forward", forward)
    assert_equal(family, asked, engine.answers(asked, apart=1))
    assert not next(failures)


@families
def test_preemption(family: str) -> None:
    engine = packed(family, blocks=22)
    asked = requests((9, 27, 14, 20), new=24)
    answers = engine.answers(asked, apart=1)
    assert engine.preemptions
    assert_equal(family, asked, answers)


@pytest.mark.slow
@pytest.mark.parametrize("family", MORE_RECURRENT)
def test_chunks_preemption_and_prefix_hits_in_a_mixed_batch(family: str) -> None:
    engine = packed(family, blocks=22, step_tokens=7, max_sequences=5)
    asked = requests((9, 27, 14, 20), new=20)
    assert_equal(family, asked, engine.answers(asked, apart=1))
    assert engine.preemptions
    again = engine.answers(asked[-1:])
    assert_equal(family, asked[-1:], again)
    assert again[asked[-1].seq].cached_tokens


@pytest.mark.parametrize("family", ["mamba", "lfm2", "llama", "gpt2"])
def test_the_per_sequence_path(family: str) -> None:
    asked = requests()
    assert_equal(family, asked, tiny(cache_runner(family)).answers(asked, apart=1))


@pytest.mark.parametrize("family", ["lfm2", "llama"])
def test_preemption_on_the_per_sequence_path(family: str) -> None:
    engine = tiny(cache_runner(family), blocks=22)
    asked = requests((9, 27, 14, 20), new=24)
    assert_equal(family, asked, engine.answers(asked, apart=1))
    assert engine.preemptions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "stacking"),
    [
        *((name, Stacking.EQUAL) for name in ("lfm2", "roformer")),
        *((name, Stacking.PADDED) for name in ("lfm2", "gemma3_text", "rembert")),
    ],
)
def test_stacked_states_on_the_per_sequence_path(family: str, stacking: Stacking) -> None:
    """All at once, in mixed arrivals, with some cancelled, and with preemption."""
    asked = requests((9, 27, 14, 27, 20), new=16)
    assert_equal(family, asked, tiny(cache_runner(family, stacking)).answers(asked))
    engine = tiny(cache_runner(family, stacking), blocks=22)
    assert_equal(family, asked, engine.answers(asked, apart=2))
    assert engine.preemptions
    answers = {request.seq: Answer() for request in asked}
    for request in asked:
        engine.engine.submit(0, request)
        engine.take(answers)
    for seq in (1, 3):
        engine.engine.cancel(0, seq)
        engine.take(answers)
    while engine.engine.busy:
        engine.take(answers)
    assert_equal(family, [request for request in asked if request.seq not in (1, 3)], answers)


@families
def test_the_comparison_detects_a_wrong_token(family: str) -> None:
    tokens = prompt(27, 1)
    changed = (*tokens[:20], (tokens[20] + 1) % VOCAB, *tokens[21:])
    moved = reference(family, tokens, 1).logprobs - reference(family, changed, 1).logprobs
    assert float(moved.abs().max()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", [*RECURRENT, *MORE_RECURRENT])
def test_the_comparison_detects_a_lost_state(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a snapshot that a prefix hit goes on from, and of the chunk before."""
    asked = requests((27,), new=4)
    engine = packed(family)
    engine.answers(asked)
    with monkeypatch.context() as patched:
        patched.setattr(StatePool, "_load_snapshot", lambda pool, sequence, tokens: tokens)
        lost = engine.answers(asked)
    assert lost[0].cached_tokens == 24
    with pytest.raises(AssertionError):
        assert_equal(family, asked, lost)
    kept = StateView._get
    monkeypatch.setattr(
        StateView, "_get", lambda view, name: None if (state := kept(view, name)) is None else state * 0
    )
    with pytest.raises(AssertionError):
        assert_equal(family, asked, packed(family, step_tokens=7, max_sequences=5).answers(asked))
