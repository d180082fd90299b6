"""The tokens with speculation are those without: sampled or greedy, with penalties, grammars, preemption and cancels.

Half of the drafts of `Guessing` are wrong at one place, so that every kind of verification occurs. Families that run
packed are compared over ten thousand sampled tokens each; those with adapted attention in `make test-accelerator`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from random import Random

import pytest
import torch
from msgspec.structs import replace

from backends.native.demo import WEIGHTS
from backends.native.engine.factory import load_engine
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loop import Engine
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import Speculation
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Cancel, SamplingParams, Submit
from schemas.ir import Grammar
from tests.backends.native.engine.pretended.engines import WIDE
from tests.backends.native.engine.test_loop import Scripted, generated, poisoned
from tests.backends.native.engine.tiny import ADAPTED, FAMILIES, VOCAB, Answer, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch

KINDS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(temperature=1.3, top_k=20, logit_bias=((5, 2.0),)),
    SamplingParams(temperature=0.9, min_p=0.02, typical_p=0.95, watermark=True),
)
SEQUENCES, NEW = 104, 96


class Guessing(Speculation):
    """Drafts the known tokens, half of the time with a wrong one among them."""

    def __init__(self, known: dict[int, list[int]]) -> None:
        super().__init__()
        self._known, self._random = known, Random(0)

    def _find(self, sequence: Sequence, most: int) -> tuple[list[int], list[float]]:
        start = sequence.generated
        drafts = self._known[sequence.request.seq][start : start + self._random.randint(0, min(most, 6))]
        if drafts and self._random.random() < 0.5:
            drafts[self._random.randrange(len(drafts))] = self._random.randrange(3, VOCAB)
        return drafts, [1.0] * len(drafts)


def requests(count: int, new: int) -> list[Submit]:
    return [
        Submit(
            seq,
            prompt(2 + seq % 29, seq),
            new,
            replace(KINDS[seq % len(KINDS)], seed=seq),
            min_new_tokens=4,
            stop_token_ids=(7,) if seq % 8 == 5 else (),
            top_logprobs=2 if seq % 4 == 0 else -1,
        )
        for seq in range(count)
    ]


def ran(family: str, asked: Seq[Submit], speculation: Speculation | None, blocks: int = 1600, apart: int = 0) -> dict:
    engine = tiny(packed_runner(family, blocks), blocks=blocks, max_sequences=24, speculation=speculation)
    answers = engine.answers(asked, apart=apart)
    if blocks < 1000:
        assert engine.preemptions
    return answers


def assert_same(found: dict[int, Answer], expected: dict[int, Answer]) -> None:
    for seq, answer in expected.items():
        assert (found[seq].ids, found[seq].reason) == (answer.ids, answer.reason)
        assert len(found[seq].logprobs) == len(answer.logprobs)
        for one, other in zip(found[seq].logprobs, answer.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, *(ADAPTED if WIDE else ())])
def test_ten_thousand_sampled_tokens_are_equal(family: str) -> None:
    asked = [replace(one, stop_token_ids=()) for one in requests(SEQUENCES + 1, NEW)]
    expected = ran(family, asked, None)
    assert sum(len(answer.ids) for answer in expected.values()) >= 10_000
    guessing = Guessing({seq: answer.ids for seq, answer in expected.items()})
    assert_same(ran(family, asked, guessing), expected)
    assert 0.3 < guessing.accepted / guessing.drafted < 0.9


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_equal_by_lookup_in_mixed_batches_with_preemption_and_stop_tokens(family: str) -> None:
    asked = requests(16, 60)
    expected = ran(family, asked, None)
    for speculation in (Speculation(), Guessing({seq: answer.ids for seq, answer in expected.items()})):
        assert_same(ran(family, asked, speculation, blocks=72, apart=1), expected)
        assert speculation.accepted


def test_a_chunk_of_a_prompt_beside_drafts_samples_nothing() -> None:
    # As many rows as works: two of one with a draft, one of another, none of a chunk before its prompt's end.
    asked = [replace(one, prompt=prompt(26 + one.seq, one.seq), max_new_tokens=6) for one in requests(10, 6)]
    answers = [
        tiny(packed_runner("llama", 64), step_tokens=12, speculation=speculation).answers(asked, apart=1)
        for speculation in (None, Always([5, 5, 5, 5, 5]))
    ]
    assert_same(answers[1], answers[0])


def test_cancels_between_drafts_harm_nobody() -> None:
    asked = requests(8, 60)
    expected = ran("llama", asked, None)
    guessing = Guessing({seq: answer.ids for seq, answer in expected.items()})
    t = tiny(packed_runner("llama", 400), blocks=400, speculation=guessing)
    answers = {one.seq: Answer() for one in asked}
    for one in asked:
        t.engine.submit(0, one)
    for step in range(12):
        t.take(answers)
        if step % 4 == 3:
            t.engine.handle(0, Cancel(step))
    while t.engine.busy:
        t.take(answers)
    assert t.scheduler.pool.free == t.scheduler.pool.count
    cancelled = {step for step in range(12) if step % 4 == 3}
    kept = {seq: answer for seq, answer in expected.items() if seq not in cancelled}
    assert_same(answers, kept)


def test_blocks_of_accepted_drafts_are_cached_and_those_of_rejected_ones_are_not() -> None:
    asked = requests(6, 40)
    expected = ran("llama", asked, None)
    guessing = Guessing({seq: answer.ids for seq, answer in expected.items()})
    t = tiny(packed_runner("llama", 400), blocks=400, speculation=guessing)
    assert_same(t.answers(asked), expected)
    longer = [replace(one, prompt=(*one.prompt, *expected[one.seq].ids), max_new_tokens=8) for one in asked]
    again = t.answers(longer)
    assert all(again[one.seq].cached_tokens >= len(one.prompt) - 8 for one in longer)
    assert_same(again, ran("llama", longer, None))


class Always(Speculation):
    """Drafts the same tokens for every sequence."""

    def __init__(self, drafts: list[int]) -> None:
        super().__init__()
        self._drafts = drafts

    def _find(self, sequence: Sequence, most: int) -> tuple[list[int], list[float]]:
        return self._drafts[:most], [1.0] * len(self._drafts[:most])


def test_a_draft_at_which_the_model_fails_does_not_fail_the_sequence() -> None:
    t = tiny(Scripted(poisoned(RuntimeError("poison"))), speculation=Always([13, 13]))
    answers = t.answers([Submit(0, (8,), 5), Submit(1, (9,), 5)])
    assert [answers[seq].ids for seq in (0, 1)] == [generated(8, 5), generated(9, 5)]


def test_tokens_behind_an_end_token_among_the_drafts_are_dropped() -> None:
    right = generated(8, 6)
    t = tiny(Scripted(), speculation=Always(right[1:6]))
    answer = t.answers([Submit(0, (8,), 50, eos_token_ids=(right[3],))])[0]
    assert answer.ids == right[:4]


def test_the_last_draft_is_run_for_the_next_choice() -> None:
    runner, right = Scripted(), generated(8, 6)
    answer = tiny(runner, speculation=Always(right[1:])).answers([Submit(0, (8,), 6)])[0]
    assert (answer.ids, len(runner.runs)) == (right, 2)


# --- the bundled model, with grammars ------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "temperature_in_celsius": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["alphabet", "alphanumeric"]},
    },
    "required": ["first_name", "temperature_in_celsius", "kind"],
    "additionalProperties": False,
}


def bundled(asked: Seq[Submit], *, speculation: bool) -> tuple[dict[int, Answer], Engine, int]:
    options = EngineOptions(str(WEIGHTS), device="cpu", threads=1, max_sequences=8, speculation=speculation)
    engine, _ = load_engine(options, lambda _: None)
    assert isinstance(engine, Engine)
    answers = {one.seq: Answer() for one in asked}
    for one in asked:
        engine.handle(0, one)
    steps = 0
    while engine.busy:
        steps += 1
        for step in engine.step().values():
            for output in step.outputs:
                answers[output.seq].add(output)
    return answers, engine, steps


@pytest.mark.slow
def test_sampled_tokens_of_the_bundled_model_are_equal_with_and_without_grammars() -> None:
    grammar = grammar_source(Grammar("json_schema", SCHEMA))
    asked = [
        Submit(
            seq,
            (3, *range(300 + seq, 330), 1, 4),
            120,
            SamplingParams(temperature=0.0 if seq % 4 == 1 else 0.8, seed=seq, frequency_penalty=0.1 * (seq % 3)),
            eos_token_ids=(1,),
            top_logprobs=1 if seq % 3 == 0 else -1,
            grammar=grammar if seq % 2 else None,
        )
        for seq in range(12)
    ]
    expected, _, steps = bundled(asked, speculation=False)
    found, engine, fewer = bundled(asked, speculation=True)
    assert_same(found, expected)
    assert engine._speculation is not None
    assert engine._speculation.accepted > 20 * 6, "the keys of each object at least"
    assert fewer < steps


def test_recurrent_models_do_without() -> None:
    from backends.native.engine.runner.per_sequence import PerSequenceRunner

    assert not PerSequenceRunner.speculates


def test_a_work_without_its_drafts() -> None:
    one = Sequence(0, Submit(0, (1, 2, 3), 9), 0)
    work = Work(one, 2, 3, True, (8, 9))
    assert (list(work.tokens), work.wanted) == ([3, 8, 9], 3)
    assert (work.without_drafts.count, work.without_drafts.wanted) == (1, 1)


@pytest.mark.parametrize("dtype", ["auto", *BITS])
def test_logits_of_a_row_do_not_depend_on_the_other_rows(dtype: str) -> None:
    """Bitwise, for the bundled model on this CPU: what makes its drafts right to the last bit."""
    from array import array

    options = EngineOptions(str(WEIGHTS), dtype=dtype, device="cpu", threads=1, kv_tokens=256, speculation=True)
    engine, _ = load_engine(options, lambda _: None)
    assert isinstance(engine, Engine)
    tokens = [3, *range(40, 90)]

    def at(length: int) -> Sequence:
        made = Sequence(0, Submit(0, tuple(tokens[:length]), 50), 0)
        made.blocks = array("q", range(8))
        return made

    with torch.inference_mode():
        engine._runner.run([Work(at(20), 0, 20, True)])
        alone = torch.cat([engine._runner.run([Work(at(end + 1), end, 1, True)]).clone() for end in range(20, 44)])
        for rows in (2, 3, 8, 24):
            together = engine._runner.run([Work(at(21), 20, rows, True, tuple(tokens[21 : 20 + rows]))])
            assert torch.equal(alone[:rows], together)


def test_a_model_with_recurrent_states_does_without() -> None:
    assert packed_runner("llama").speculates
    assert not packed_runner("lfm2").speculates
