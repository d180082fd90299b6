"""The engine's step loop: finish reasons, refusals, prompt logprobs, and isolation of faulty sequences."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace
from structlog.testing import capture_logs

from backends.native.engine.lora.table import LoraTable
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.blocks import prompt_keys
from backends.native.protocol.messages import Cancel, Ping, Pong, SamplingParams, Submit
from schemas.ir import FinishReason
from tests.backends.native.engine.tiny import (
    CONTEXT,
    VOCAB,
    Answer,
    Tiny,
    cache_runner,
    packed_runner,
    plain,
    prompt,
    reference,
    tiny,
)

pytestmark = pytest.mark.torch

POISON = 13


def next_token(token: int) -> int:
    """The token that `Scripted` generates after `token`."""
    return (token * 7 + 5) % 90 + 3


class Scripted:
    """A runner whose next token is a function of the last one. `fault` is called with the works of each run."""

    execution_path = "scripted"
    lora_adapters: tuple[str, ...] = ()
    states: None = None
    unchunked = "nothing"
    takes_extra = False

    def __init__(self, fault: Callable[[Seq[Work]], None] = lambda _: None) -> None:
        self.fault = fault
        self.runs: list[int] = []
        self.forgotten: list[int] = []

    def run(self, works: Seq[Work]) -> torch.Tensor:
        self.runs.append(len(works))
        self.fault(works)
        rows = [next_token(token) for work in works for token in work.tokens[work.count - work.wanted :]]
        return torch.nn.functional.one_hot(torch.tensor(rows, dtype=torch.long), VOCAB).float()

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence.request.seq)


def scripted(fault: Callable[[Seq[Work]], None] = lambda _: None, **options: Any) -> Tiny:
    return tiny(Scripted(fault), **options)


def poisoned(error: BaseException) -> Callable[[Seq[Work]], None]:
    def fault(works: Seq[Work]) -> None:
        if any(POISON in work.tokens for work in works):
            raise error

    return fault


def generated(start: int, count: int) -> list[int]:
    tokens = [start]
    for _ in range(count):
        tokens.append(next_token(tokens[-1]))
    return tokens[1:]


def test_a_sequence_ends_at_max_new_tokens() -> None:
    answer = scripted().answers([Submit(4, (9, 8), 3)])[4]
    assert (answer.ids, answer.reason) == (generated(8, 3), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ({"eos_token_ids": (generated(8, 3)[2],)}, FinishReason.EOS),
        ({"stop_token_ids": (generated(8, 3)[2],)}, FinishReason.STOP_TOKEN),
        ({"stop_token_ids": (generated(8, 3)[2],), "eos_token_ids": (generated(8, 3)[2],)}, FinishReason.EOS),
    ],
)
def test_a_sequence_ends_with_an_end_or_stop_token_which_is_returned(
    ends: dict[str, Any], reason: FinishReason
) -> None:
    answer = scripted().answers([Submit(0, (8,), 50, **ends)])[0]
    assert (answer.ids, answer.reason) == (generated(8, 3), reason)


def test_end_tokens_are_banned_before_min_new_tokens() -> None:
    end = generated(8, 1)[0]
    answer = scripted().answers([Submit(0, (8,), 4, min_new_tokens=2, eos_token_ids=(end,))])[0]
    assert answer.ids == [0, 8, end], "the first choice was the banned end token"
    assert answer.reason == FinishReason.EOS


def test_an_end_token_at_max_new_tokens_has_reason_eos() -> None:
    answer = scripted().answers([Submit(0, (8,), 3, min_new_tokens=2, eos_token_ids=(generated(8, 3)[2],))])[0]
    assert (len(answer.ids), answer.reason) == (3, FinishReason.EOS)


def test_a_prompt_may_be_scored_without_generating() -> None:
    answer = scripted().answers([Submit(0, (8, 9, 10), 0, prompt_logprobs=0)])[0]
    assert (answer.ids, answer.reason, len(answer.prompt)) == ([], FinishReason.LENGTH, 3)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Submit(1, (), 5), "the prompt is empty"),
        (Submit(1, (8,) * 100, 29), "prompt and max_new_tokens exceed the context of 128 tokens"),
        (Submit(1, (8, VOCAB), 5), "token ids must be from 0 to 95"),
        (Submit(1, (-1,), 5), "token ids must be from 0 to 95"),
        (Submit(1, (8,), 5, SamplingParams(logit_bias=((VOCAB, 1.0),))), "token ids must be from 0 to 95"),
        (Submit(1, (8,), 5, stop_token_ids=(VOCAB,)), "token ids must be from 0 to 95"),
    ],
)
def test_invalid_requests_are_refused_and_others_continue(request_: Submit, why: str) -> None:
    answers = scripted().answers([Submit(0, (8,), 3), request_, Submit(2, (9,), 3)])
    assert (answers[1].error, answers[1].overloaded) == (why, False)
    assert [answers[seq].ids for seq in (0, 2)] == [generated(8, 3), generated(9, 3)]


def test_a_full_queue_is_reported_as_overloaded() -> None:
    answers = scripted(max_waiting=2).answers([Submit(seq, (8,), 1) for seq in range(4)])
    assert [answers[seq].overloaded for seq in range(4)] == [False, False, True, True]


def test_cancel_frees_the_blocks_at_once_and_stops_the_outputs() -> None:
    t = scripted()
    t.engine.handle(0, Submit(0, (8,) * 9, 50))
    t.engine.handle(0, Submit(1, (9,) * 9, 4))
    t.engine.step()
    t.engine.handle(0, Cancel(0))
    assert t.engine.pong(Ping(0)).free_blocks == 64 - 3
    assert t.runner.forgotten == [0]  # type: ignore[attr-defined]
    answers = {1: Answer()}
    while t.engine.busy:
        t.take(answers)
    assert answers[1].reason == FinishReason.LENGTH
    t.engine.handle(0, Cancel(0))
    t.engine.handle(0, Cancel(77))


def test_a_lost_connection_frees_its_sequences_only() -> None:
    t = scripted()
    for connection in (3, 4):
        for seq in (0, 1):
            t.engine.handle(connection, Submit(seq, (8,), 5))
    t.engine.handle(3, Submit(2, (), 5))
    t.engine.step()
    t.engine.handle(3, Submit(3, (), 5))
    t.engine.disconnect(3)
    steps = []
    while t.engine.busy:
        steps.append(t.engine.step())
    assert {connection for step in steps for connection in step} == {4}
    assert t.scheduler.pool.free == 64


def test_pong_has_the_queue_lengths_blocks_and_counters() -> None:
    t = scripted(max_sequences=1)
    t.engine.handle(0, Submit(0, (8,) * 9, 5))
    t.engine.handle(0, Submit(1, (8,) * 9, 5))
    t.engine.step()
    pong = t.engine.handle(0, Ping(42))
    assert isinstance(pong, Pong)
    assert pong.resident_bytes > 0
    assert replace(pong, resident_bytes=0) == Pong(
        42,
        running=1,
        waiting=1,
        free_blocks=61,
        total_blocks=64,
        preemptions=0,
        prefix_queries=9,
        prefix_hits=0,
        touched_blocks=3,
    )
    t.engine.cancel(0, 0)
    t.engine.step()
    pong = t.engine.handle(0, Ping(43))
    assert isinstance(pong, Pong)
    assert (pong.prefix_queries, pong.prefix_hits) == (18, 8)


def test_connections_may_use_the_same_sequence_number() -> None:
    t = scripted()
    t.engine.submit(1, Submit(0, (8,), 1))
    t.engine.submit(2, Submit(0, (9,), 1))
    steps = t.engine.step()
    assert {connection: step.outputs[0].ids for connection, step in steps.items()} == {
        1: tuple(generated(8, 1)),
        2: tuple(generated(9, 1)),
    }


def test_a_sequence_number_in_use_is_refused() -> None:
    t = scripted()
    t.engine.submit(0, Submit(0, (8,), 2))
    t.engine.submit(0, Submit(0, (8,), 2))
    assert [output.error for output in t.engine.step()[0].outputs] == ["sequence 0 is running already", None]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (IndexError("index 13 is out of range"), "the engine failed on this sequence"),
        (torch.OutOfMemoryError("CUDA out of memory"), "the engine ran out of memory"),
        (MemoryError(), "the engine ran out of memory"),
    ],
)
def test_a_fault_ends_only_the_sequence_that_causes_it(error: Exception, why: str) -> None:
    requests = [Submit(seq, (8 + seq,), 4) for seq in range(7)] + [Submit(7, (POISON,), 4)]
    with capture_logs() as logs:
        answers = scripted(poisoned(error)).answers(requests)
    # 8 + 5 is the poison token itself, and some sequences generate it
    for request in requests:
        tokens = [*request.prompt, *generated(request.prompt[0], 3)]
        if POISON in tokens:
            assert answers[request.seq].error == why
            assert answers[request.seq].ids == tokens[1 : tokens.index(POISON) + 1]
        else:
            assert answers[request.seq].ids == [*tokens[1:], next_token(tokens[-1])]
    assert all("locals" not in entry and "exc_info" not in entry for entry in logs)


def test_a_batch_too_large_for_memory_is_run_in_halves() -> None:
    def fault(works: Seq[Work]) -> None:
        if len(works) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    t = scripted(fault)
    for seq in range(8):
        t.engine.submit(0, Submit(seq, (20 + seq,), 3))
    outputs = t.engine.step()[0].outputs
    assert {output.seq: output.ids for output in outputs} == {seq: tuple(generated(20 + seq, 1)) for seq in range(8)}


def test_a_lost_device_raises_out_of_step() -> None:
    t = scripted(poisoned(torch.AcceleratorError("CUDA error: device-side assert triggered")))
    t.engine.submit(0, Submit(0, (POISON,), 4))
    with pytest.raises(torch.AcceleratorError):
        t.engine.step()


def test_nan_logits_fail_only_their_sequence() -> None:
    class Broken(Scripted):
        def run(self, works: Seq[Work]) -> torch.Tensor:
            logits = super().run(works)
            bad = [row for row, work in enumerate(works) if work.sequence.request.seq == 1]
            logits[bad] = float("nan")
            return logits

    answers = tiny(Broken()).answers([Submit(seq, (8,), 3) for seq in range(3)])
    assert answers[1].error == "the model's output is not a probability distribution"
    assert answers[0].ids == answers[2].ids == generated(8, 3)


@pytest.mark.parametrize("step_tokens", [8, 200])
def test_prompt_logprobs_equal_the_plain_forward(step_tokens: int) -> None:
    tokens = prompt(30, 5)
    with torch.inference_mode():
        expected = plain("llama")(torch.tensor([tokens])).logits[0].log_softmax(-1)
    engine = tiny(packed_runner("llama"), step_tokens=step_tokens)
    engine.answers([Submit(0, tokens, 2)])
    answer = engine.answers([Submit(1, tokens, 2, prompt_logprobs=3)])[1]
    assert answer.cached_tokens == 0
    first, *rest = answer.prompt
    assert first.logprob is None
    assert len(rest) == 29
    for scored, row, token in zip(rest, expected, tokens[1:], strict=False):
        assert scored.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert scored.top_ids == tuple(row.topk(3).indices.tolist())


def test_prompt_logprobs_on_the_per_sequence_path() -> None:
    tokens = prompt(30, 5)
    with torch.inference_mode():
        expected = plain("lfm2")(torch.tensor([tokens])).logits[0].log_softmax(-1)
    answer = tiny(cache_runner("lfm2")).answers([Submit(1, tokens, 2, prompt_logprobs=0)])[1]
    scored = [logprobs.logprob for logprobs in answer.prompt[1:]]
    assert scored == pytest.approx([float(expected[row, tokens[row + 1]]) for row in range(29)], abs=1e-4)


def test_prompt_logprobs_survive_preemption_in_the_prompt() -> None:
    """They are returned once and complete, although the first chunk was run twice."""
    engine = tiny(packed_runner("llama", 16), blocks=16, step_tokens=3, max_sequences=3)
    older = Submit(0, prompt(6, 0), 58)
    answer = engine.answers([older, Submit(9, prompt(40, 5), 2, prompt_logprobs=0)], apart=3)[9]
    assert engine.preemptions == [9]
    assert len(answer.prompt) == 40


def test_caches_are_rebuilt_after_a_failed_step_on_the_per_sequence_path() -> None:
    """The failed batch has advanced some caches, which must be discarded."""
    runner = cache_runner("llama")
    run = runner.run

    def failing(works: Seq[Work]) -> torch.Tensor:
        logits = run(works)
        if any(work.sequence.request.seq == 1 and work.sequence.generated == 2 for work in works):
            raise RuntimeError("broken")
        return logits

    runner.run = failing  # type: ignore[method-assign]
    answers = tiny(runner).answers([Submit(seq, prompt(9, seq), 6) for seq in range(3)])
    assert answers[1].error == "the engine failed on this sequence"
    for seq in (0, 2):
        assert answers[seq].ids == reference("llama", prompt(9, seq), 6).ids


def test_the_context_can_be_filled_to_the_last_token() -> None:
    answer = tiny(packed_runner("llama")).answers([Submit(0, prompt(CONTEXT - 4, 1), 4)])[0]
    assert len(answer.ids) == 4


class Interleavings(RuleBasedStateMachine):
    """Any order of submit, cancel, disconnect and step, with failing sequences: each ends once, rightly."""

    @initialize(blocks=st.integers(6, 16), step_tokens=st.integers(4, 12))
    def start(self, blocks: int, step_tokens: int) -> None:
        runner = Scripted(poisoned(RuntimeError("poison")))
        self.t = tiny(runner, blocks=blocks, size=2, step_tokens=step_tokens, max_sequences=4, max_waiting=4)
        self.requests: dict[tuple[int, int], Submit] = {}
        self.answers: dict[tuple[int, int], Answer] = {}
        self.seqs = 0

    @rule(connection=st.integers(0, 1), start=st.integers(3, 95), length=st.integers(0, 8), new=st.integers(0, 6))
    def submit(self, connection: int, start: int, length: int, new: int) -> None:
        request = Submit(self.seqs, tuple([start, *generated(start, length)][:length]), new)
        self.seqs += 1
        self.requests[connection, request.seq] = request
        self.answers[connection, request.seq] = Answer()
        self.t.engine.submit(connection, request)

    @precondition(lambda self: self.requests)
    @rule(choice=st.integers(0))
    def cancel(self, choice: int) -> None:
        key = sorted(self.requests)[choice % len(self.requests)]
        self.t.engine.cancel(*key)
        if self.answers[key].error is None:
            self.forget(key)

    def forget(self, key: tuple[int, int]) -> None:
        """No more outputs may come, except a refusal that is queued already."""
        refused = any(output.seq == key[1] for output in self.t.engine._outputs.get(key[0], ()))
        if not refused:
            del self.requests[key], self.answers[key]

    @rule(connection=st.integers(0, 1))
    def disconnect(self, connection: int) -> None:
        self.t.engine.disconnect(connection)
        for key in [key for key in self.requests if key[0] == connection]:
            del self.requests[key], self.answers[key]

    @rule()
    def step(self) -> None:
        for connection, step in self.t.engine.step().items():
            for output in step.outputs:
                self.answers[connection, output.seq].add(output)
                if self.answers[connection, output.seq].ended:
                    self.judge(connection, output.seq)
        self.t.scheduler.pool.check()

    def judge(self, connection: int, seq: int) -> None:
        request, answer = self.requests.pop((connection, seq)), self.answers.pop((connection, seq))
        if answer.reason == FinishReason.LENGTH:
            assert answer.ids == (generated(request.prompt[-1], request.max_new_tokens))
        elif answer.error == "the engine failed on this sequence":
            assert POISON in [*request.prompt, *answer.ids]
        else:
            assert answer.ids == []

    def teardown(self) -> None:
        if not hasattr(self, "t"):
            return
        for _ in range(2000):
            if not self.t.engine.busy:
                break
            self.step()
        assert not self.requests
        assert self.t.scheduler.pool.free == self.t.scheduler.pool.count


Interleavings.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestInterleavings = Interleavings.TestCase


def test_a_lora_adapter_that_was_loaded_again_does_not_find_the_blocks_of_the_old_one() -> None:
    """A worker names blocks by the LoRA adapter's name, which both have."""
    loras = LoraTable(("a",))
    t = tiny(Scripted(), loras=loras)
    asked = Submit(0, tuple(prompt(9, 0)), 3, lora_adapter="a")
    asked = replace(asked, block_keys=b"".join(prompt_keys(asked, 4)))
    hits = []
    for seq in range(3):
        if seq == 2:
            loras.keys["a"] = "a@1"
        t.answers([replace(asked, seq=seq)])
        hits.append(t.scheduler.prefix_hits)
    assert hits == [0, 8, 8]
