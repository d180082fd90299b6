"""A sequence that another engine began goes on with the tokens that it would have had there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from backends.native.demo import WEIGHTS
from backends.native.engine.factory import load_engine
from backends.native.engine.loop import Engine
from backends.native.engine.runner.packed import Runner
from backends.native.engine.sampling import grammar_masks
from backends.native.engine.scheduling.speculation import Speculation
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import SamplingParams, Submit
from schemas.ir import FinishReason, Grammar
from tests.backends.native.engine.tiny import Answer, cache_runner, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch

KINDS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(temperature=1.3, top_k=20, logit_bias=((5, 2.0),)),
    SamplingParams(temperature=0.9, min_p=0.02, watermark=True),
)
NEW = 40
CUTS = (1, 17, NEW - 1)
PACKED = ("llama", "gemma3_text", "gpt2", "lfm2", "falcon_h1")
PER_SEQUENCE = ("gpt2", "lfm2")


def run(engine: Engine, requests: list[Submit]) -> tuple[dict[int, Answer], int]:
    """The answers, and the number of steps."""
    answers = {request.seq: Answer() for request in requests}
    for request in requests:
        engine.handle(0, request)
    steps = 0
    while engine.busy:
        steps += 1
        for step in engine.step().values():
            for output in step.outputs:
                answers[output.seq].add(output)
    return answers, steps


def begun(requests: list[Submit], whole: dict[int, Answer], cut: int) -> list[Submit]:
    """The requests as another engine gets them when one has died after so many tokens."""
    return [replace(each, again=True, received=tuple(whole[each.seq].ids[:cut])) for each in requests]


def assert_rest(found: dict[int, Answer], whole: dict[int, Answer], cut: int) -> None:
    for seq, answer in found.items():
        expected = whole[seq]
        assert (answer.error, answer.reason) == (None, expected.reason)
        assert (answer.prompt, answer.cached_tokens) == ((), 0), "the first engine has sent them"
        assert answer.ids == expected.ids[cut:], seq
        assert [each.top_ids for each in answer.logprobs] == [each.top_ids for each in expected.logprobs[cut:]]
        for mine, theirs in zip(answer.logprobs, expected.logprobs[cut:], strict=True):
            assert mine.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "family"),
    [*((packed_runner, family) for family in PACKED), *((cache_runner, family) for family in PER_SEQUENCE)],
)
def test_a_sequence_goes_on_behind_the_tokens_that_were_received(make: Callable[[str], Runner], family: str) -> None:
    requests = [
        Submit(
            seq,
            prompt(5 + 3 * seq, seq),
            NEW,
            replace(sampling, seed=seq),
            min_new_tokens=30,
            eos_token_ids=(2, 7, 9),
            top_logprobs=2,
            prompt_logprobs=1,
        )
        for seq, sampling in enumerate(KINDS)
    ]

    whole = tiny(make(family)).answers(requests)
    assert all(len(answer.prompt) == 5 + 3 * seq for seq, answer in whole.items())
    for cut in CUTS:
        rest = [each for each in begun(requests, whole, cut) if len(whole[each.seq].ids) > cut]
        found, steps = run(tiny(make(family)).engine, rest)
        assert_rest(found, whole, cut)
        longest = max((len(each.ids) for each in found.values()), default=0)
        assert steps <= longest + 4, "what was received is computed as a prompt is"


def test_drafts_of_what_was_received_are_verified() -> None:
    requests = [Submit(seq, prompt(6, seq) * 2, NEW, replace(KINDS[seq % 2], seed=seq)) for seq in range(4)]
    whole = tiny(packed_runner("llama")).answers(requests)
    found, _ = run(tiny(packed_runner("llama"), speculation=Speculation()).engine, begun(requests, whole, 17))
    assert_rest(found, whole, 17)


def test_grammars_are_followed_from_the_prompt_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Steps wait for every mask: on a busy machine a sequence would else be passed over in many of them.
    monkeypatch.setattr(grammar_masks, "_STEP_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(grammar_masks, "_SLOW_MASK_SECONDS", 60.0)
    options = EngineOptions(str(WEIGHTS), dtype="float32", device="cpu", threads=1, kv_tokens=2048)
    grammars = (
        Grammar("regex", "([a-z]{3} ){20}[a-z]{3}"),
        Grammar("json_schema", {"type": "array", "items": {"enum": ["x", 17, None]}, "minItems": 20}),
    )
    requests = [
        Submit(
            seq,
            (5, 6, 7, 8 + seq),
            100,
            SamplingParams(temperature=float(seq % 2), seed=seq, frequency_penalty=0.1),
            eos_token_ids=(1,),
            grammar=grammar_source(grammars[seq // 2]),
        )
        for seq in range(4)
    ]
    engine, _ = load_engine(options, lambda _: None)
    assert isinstance(engine, Engine)
    whole, _ = run(engine, requests)
    for cut in (1, 18):
        found, steps = run(engine, begun(requests, whole, cut))
        assert_rest(found, whole, cut)
        assert steps <= max(len(each.ids) for each in found.values()) + 4


def test_more_than_is_wanted_cannot_have_been_received() -> None:
    requests = [
        Submit(0, (8, 9), 3, received=(5, 5, 5)),
        Submit(1, (8, 9), 3, received=(5, 96)),
        Submit(2, (8, 9), 3, received=(5, 5)),
    ]
    answers = tiny(packed_runner("llama")).answers(requests)
    assert answers[0].error == "max_new_tokens have been received already"
    assert answers[1].error == "token ids must be from 0 to 95"
    assert (len(answers[2].ids), answers[2].reason) == (1, FinishReason.LENGTH)
