"""Constrained sequences: equal to a slow reference, held, preempted, cancelled while compiling, faulty."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import Any

import pytest
import torch
from llguidance import LLMatcher
from torch import Tensor

from backends.native.demo import WEIGHTS
from backends.native.engine.factory import load_engine
from backends.native.engine.loop import Engine
from backends.native.engine.outputs import GRAMMAR_FAILED
from backends.native.engine.sampling import grammar_masks, logits_processors
from backends.native.engine.sampling.grammar_masks import Constraint
from backends.native.engine.sampling.mask_scores import mask_scores
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.grammar.grammar import GrammarError, grammar_source
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import SamplingParams, Submit
from schemas.ir import Grammar
from tests.backends.native.engine.tiny import Answer, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch

WORDS = grammar_source(Grammar("regex", "([a-z]{3} ){20}[a-z]{3}"))
LIST = grammar_source(Grammar("json_schema", {"type": "array", "items": {"enum": ["x", 17, None]}, "minItems": 40}))
ANYTHING = grammar_source(Grammar("json_object", ""))


def engine(kv_tokens: int) -> tuple[Engine, list[int]]:
    """An engine over the bundled model, and the list of the sequences that it preempts."""
    options = EngineOptions(
        str(WEIGHTS), dtype="float32", device="cpu", threads=1, kv_tokens=kv_tokens, execution_path="packed"
    )
    made, _ = load_engine(options, lambda _: None)
    preempted: list[int] = []
    made._scheduler._on_preempted = lambda sequence: preempted.append(sequence.request.seq)
    return made, preempted


def submit(seq: int, grammar: str, **fields: object) -> Submit:
    sampling = SamplingParams(temperature=1.0, seed=seq)
    return Submit(seq, (5, 6, 7, 8 + seq), 100, sampling, eos_token_ids=(1,), grammar=grammar, **fields)  # type: ignore[arg-type]


def answers(made: Engine, requests: list[Submit]) -> dict[int, Answer]:
    answers = {request.seq: Answer() for request in requests}
    for request in requests:
        made.submit(0, request)
    while made.busy:
        for step in made.step().values():
            for output in step.outputs:
                answers[output.seq].add(output)
    return answers


def test_preemption_changes_nothing() -> None:
    requests = [submit(seq, LIST if seq % 2 else WORDS) for seq in range(6)]
    (roomy, none), (tight, some) = engine(4096), engine(256)
    undisturbed, disturbed = answers(roomy, requests), answers(tight, requests)
    assert (none, len(some) > 0) == ([], True)
    assert {seq: answer.ids for seq, answer in disturbed.items()} == {s: a.ids for s, a in undisturbed.items()}
    assert all(answer.error is None for answer in disturbed.values())


def test_a_grammar_that_does_not_compile_fails_only_its_sequence() -> None:
    made, _ = engine(1024)
    results = answers(
        made, [submit(0, WORDS), submit(1, json.dumps({"grammars": [{"lark_grammar": "start: nowhere"}]}))]
    )
    assert results[0].error is None
    assert results[1].error == GRAMMAR_FAILED


def test_a_sequence_can_be_cancelled_while_its_grammar_compiles() -> None:
    made, _ = engine(1024)
    made.submit(0, submit(0, WORDS))
    made.cancel(0, 0)
    assert not made.busy
    made.submit(0, submit(1, WORDS))
    made.disconnect(0)
    assert made.step() == {}


def test_a_model_without_a_tokenizer_refuses() -> None:
    results = tiny(packed_runner("llama")).answers([Submit(0, prompt(4, 0), 5, grammar=WORDS)])
    assert "no tokenizer" in (results[0].error or "")


def test_the_grammar_of_a_cancelled_sequence_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = engine(4096)
    assert made._constraints is not None
    grammars, compiled, go = made._constraints._automata._grammars, list[str](), Event()

    def compile(source: str) -> LLMatcher:
        compiled.append(source)
        assert go.wait(30)
        return type(grammars).compile(grammars, source)

    monkeypatch.setattr(grammars, "compile", compile, raising=False)
    sources = [grammar_source(Grammar("regex", f"{seq} [a-z]{{9}}")) for seq in range(20)]
    for seq, source in enumerate(sources):
        made.submit(0, submit(seq, source))
    made.submit(0, submit(20, sources[19]))
    for seq in range(20):
        made.cancel(0, seq)
    go.set()
    while made.busy:
        made.step()
    assert sources[19] in compiled, "another sequence needs it"
    assert 1 <= len(compiled) <= 3, "and those that the two threads had started"
    assert not made._constraints._automata._users


def reference(made: Engine) -> Callable[[Tensor, list[Sequence], list[int]], None]:
    """A simple, slow implementation of masks: a new automaton for each, read bit by bit."""
    assert made._constraints is not None
    grammars = made._constraints._automata._grammars

    def constrain(scores: Tensor, sequences: list[Sequence], rows: list[int]) -> None:
        for row in rows:
            source, prompt = sequences[row].request.grammar, sequences[row].request.prompt
            if source is not None:
                matcher = grammars.compile(source)
                assert matcher.consume_tokens(sequences[row].tokens[len(prompt) :])
                bits = matcher.compute_bitmask()
                for token in range(scores.shape[1]):
                    if not bits[token // 8] >> token % 8 & 1:
                        scores[row, token] = float("-inf")

    return constrain


def mixed() -> list[Submit]:
    """Sequences with shared grammars, with a grammar of their own and without, sampled and greedy.

    Which of them share a step depends on time. That moves logits by up to 4e-5; the closest choice is won by 1e-2.
    """
    grammars = (WORDS, LIST, None, WORDS, ANYTHING, LIST, None)
    return [
        Submit(
            seq,
            (5, 6, 7, 8 + seq),
            60,
            SamplingParams(temperature=seq % 3 / 2, seed=seq),
            eos_token_ids=(1,),
            grammar=source,
        )
        for seq, source in enumerate(grammars)
    ]


def ids(made: Engine, requests: list[Submit]) -> dict[int, list[int]]:
    results = answers(made, requests)
    assert all(answer.error is None for answer in results.values())
    return {seq: answer.ids for seq, answer in results.items()}


@pytest.fixture(scope="module")
def expected() -> dict[int, list[int]]:
    """The tokens of `mixed` by the reference."""
    made, _ = engine(4096)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logits_processors, "_constrain", reference(made))
        return ids(made, mixed())


@pytest.mark.parametrize(
    "changed",
    [{}, {"_SLOW_MASK_SECONDS": 0.0}, {"_SLOW_MASK_SECONDS": 0.0, "_CACHED_AUTOMATA": 0}, {"_STEP_WAIT_SECONDS": 0.0}],
    ids=["as it is", "all masks slow", "no automaton cached", "no wait for masks"],
)
def test_tokens_are_those_of_the_reference(
    expected: dict[int, list[int]], changed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changed.items():
        monkeypatch.setattr(grammar_masks, name, value)
    made, _ = engine(4096)
    assert ids(made, mixed()) == expected
    assert ids(made, mixed()) == expected  # with automata that have discovered their states


class Ending(Future[Any]):
    """A job that ends just before it is asked for the `look`-th time whether it has ended; it does `work` then."""

    def __init__(self, look: int, work: Callable[[], object]) -> None:
        super().__init__()
        self._looks, self._work = look, work

    def done(self) -> bool:
        self._looks -= 1
        if self._looks == 0:
            self.set_result(self._work())
        return super().done()


@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("compiling", [True, False], ids=["compiling", "following"])
def test_a_job_is_run_once_whenever_it_ends(compiling: bool, look: int) -> None:
    """Run again, it would write the mask while a step reads it, and count a token that it has not followed."""
    made, _ = engine(1024)
    assert made._constraints is not None
    sequence = Sequence(0, submit(0, WORDS), 0)
    sequence.constraint = constraint = made._constraints.begin(WORDS, sequence.prompt_length)
    automaton = constraint.job.result()
    if not compiling:
        assert constraint.ready(sequence.tokens)
        scores = torch.zeros(1, made._vocab_size)
        mask_scores(scores, [0], [constraint.words])
        sequence.tokens.append(int(scores.argmax()))
    job = Ending(look, lambda: automaton if compiling else constraint.follow(sequence.tokens))
    constraint.job = job
    for _ in range(3):
        assert made._constraints.prepare([sequence]) == []
        assert constraint.job is job
    assert not sequence.held


def test_a_failed_automaton_is_removed_from_the_cache(
    expected: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Constraint._compute_mask

    def compute_mask(self: Constraint, tokens: list[int]) -> None:
        if len(tokens) == 9 and not self._private:
            raise GrammarError("too many states")
        real(self, tokens)

    made, _ = engine(4096)
    assert made._constraints is not None
    before = made._constraints.begin(WORDS, 1).job
    monkeypatch.setattr(Constraint, "_compute_mask", compute_mask)
    assert ids(made, mixed()) == expected
    assert made._constraints.begin(WORDS, 1).job is not before


def test_sequences_without_a_grammar_do_not_wait_for_masks(
    expected: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = Event()
    real = Constraint._compute_mask

    def compute_mask(self: Constraint, tokens: list[int]) -> None:
        assert go_on.wait(30)
        real(self, tokens)

    monkeypatch.setattr(Constraint, "_compute_mask", compute_mask)
    made, _ = engine(4096)
    results = {request.seq: Answer() for request in mixed()}
    for request in mixed():
        made.submit(0, request)
    while made.busy:
        for output in (output for step in made.step().values() for output in step.outputs):
            results[output.seq].add(output)
        if results[2].reason and results[6].reason:  # those without a grammar are done
            assert go_on.is_set() or all(len(results[seq].ids) <= 1 for seq in (0, 1, 3, 4, 5))
            go_on.set()
    assert {seq: answer.ids for seq, answer in results.items()} == expected


def test_an_error_in_computing_a_mask_fails_only_sequences_with_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_mask(self: Constraint, tokens: list[int]) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Constraint, "_compute_mask", compute_mask)
    made, _ = engine(4096)
    for _ in range(2):
        results = answers(made, mixed())
        assert {seq for seq, answer in results.items() if answer.error is None} == {2, 6}


def test_a_sequence_ends_when_its_grammar_exceeds_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_masks, "_MAX_SECONDS", 0.0)
    monkeypatch.setattr(grammar_masks, "_MAX_SECONDS_PER_TOKEN", 0.0)
    made, _ = engine(4096)
    results = answers(made, mixed())
    assert {seq for seq, answer in results.items() if answer.error is None} == {2, 6}
    assert results[0].error == GRAMMAR_FAILED


def test_a_grammar_is_compiled_once() -> None:
    made, _ = engine(1024)
    assert made._constraints is not None
    first = made._constraints.begin(WORDS, 1).job
    others = [
        made._constraints.begin(f'{{"grammars": [{{"lark_grammar": "start: \\"{n}\\""}}]}}', 1) for n in range(31)
    ]
    assert made._constraints.begin(WORDS, 1).job is first
    assert len({id(other.job) for other in others}) == 31
    made._constraints.begin(LIST, 1)
    assert others[0].job not in made._constraints._automata._cached.values()  # the least recently used one
    assert made._constraints.begin(WORDS, 1).job is first
