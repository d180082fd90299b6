"""Constrained sequences in the engine: preempted, cancelled while compiling, and at fault."""

from __future__ import annotations

import json
from concurrent.futures import Future
from threading import Event

import pytest
from llguidance import LLMatcher

from backends.native.demo import WEIGHTS
from backends.native.engine.grammar import Constraint
from backends.native.engine.loop import Engine
from backends.native.engine.options import EngineOptions
from backends.native.engine.startup import load_engine
from backends.native.grammar import GrammarError, grammar_source
from backends.native.messages import SamplingParams, Submit
from schemas.ir import Grammar
from tests.engine.tiny import Answer, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch

WORDS = grammar_source(Grammar("regex", "([a-z]{3} ){20}[a-z]{3}"))
LIST = grammar_source(Grammar("json_schema", {"type": "array", "items": {"enum": ["x", 17, None]}, "minItems": 20}))


def engine(kv_tokens: int) -> tuple[Engine, list[int]]:
    """The bundled model's, and the sequences that it preempted."""
    options = EngineOptions(str(WEIGHTS), dtype="float32", device="cpu", threads=1, kv_tokens=kv_tokens, tier="packed")
    made, _ = load_engine(options, lambda _: None)
    preempted: list[int] = []
    made._scheduler._on_preempted = lambda sequence: preempted.append(sequence.request.seq)
    return made, preempted


def submit(seq: int, grammar: str, **fields: object) -> Submit:
    sampling = SamplingParams(temperature=1.0, seed=seq)
    return Submit(seq, (5, 6, 7, 8 + seq), 100, sampling, eos_token_ids=(1,), grammar=grammar, **fields)  # type: ignore[arg-type]


def answers(made: Engine, requests: list[Submit]) -> dict[int, Answer]:
    told = {request.seq: Answer() for request in requests}
    for request in requests:
        made.submit(0, request)
    while made.busy:
        for step in made.step().values():
            for output in step.outputs:
                told[output.seq].add(output)
    return told


def test_preemption_changes_nothing() -> None:
    requests = [submit(seq, LIST if seq % 2 else WORDS) for seq in range(6)]
    (roomy, none), (tight, some) = engine(4096), engine(256)
    undisturbed, disturbed = answers(roomy, requests), answers(tight, requests)
    assert (none, len(some) > 0) == ([], True)
    assert {seq: answer.ids for seq, answer in disturbed.items()} == {s: a.ids for s, a in undisturbed.items()}
    assert all(answer.error is None for answer in disturbed.values())


def test_a_grammar_that_does_not_compile_is_its_own_sequences_fault() -> None:
    made, _ = engine(1024)
    told = answers(made, [submit(0, WORDS), submit(1, json.dumps({"grammars": [{"lark_grammar": "start: nowhere"}]}))])
    assert told[0].error is None
    assert "nowhere" in (told[1].error or "")


def test_cancelled_while_it_compiles() -> None:
    made, _ = engine(1024)
    made.submit(0, submit(0, WORDS))
    made.cancel(0, 0)
    assert not made.busy
    made.submit(0, submit(1, WORDS))
    made.disconnect(0)
    assert made.step() == {}


def test_a_model_without_a_tokenizer_refuses() -> None:
    told = tiny(packed_runner("llama")).answers([Submit(0, prompt(4, 0), 5, grammar=WORDS)])
    assert "no tokenizer" in (told[0].error or "")


def test_what_is_cancelled_before_it_compiles_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = engine(4096)
    assert made._compiler is not None
    grammars, compiled, go = made._compiler._grammars, list[str](), Event()

    def compile(source: str) -> LLMatcher:
        compiled.append(source)
        go.wait()
        return type(grammars).compile(grammars, source)

    monkeypatch.setattr(grammars, "compile", compile, raising=False)
    for seq in range(20):
        made.submit(0, submit(seq, LIST))
    for seq in range(1, 20):
        made.cancel(0, seq)
    go.set()
    while made.busy:
        made.step()
    assert 1 <= len(compiled) <= 2, "those that two threads had begun with"


def test_a_constraint_tells_what_its_compilation_ran_into() -> None:
    compiling: Future[LLMatcher] = Future()
    constraint = Constraint(compiling, 0, 8)
    constraint.wait(0.001)
    assert not constraint.compiled
    compiling.set_exception(GrammarError("too large"))
    assert constraint.compiled
    with pytest.raises(GrammarError, match="too large"):
        constraint.follow([])
