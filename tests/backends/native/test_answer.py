"""From a request to sequences and from outputs to events, with one token per character."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.detokenization.detokenizer import Detokenizer, Piece, piece
from backends.native.answer import Answer
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.protocol.messages import Logprobs, Output, Ready
from backends.native.text.codec import TextCodec
from backends.native.tools.families.hermes import HERMES
from backends.native.tools.reader import answer_reader
from schemas.errors import BackendFailed, InvalidRequest, Overloaded
from schemas.ir import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Generate,
    Sampling,
    Started,
    Stopping,
    TextPrompt,
    Token,
    Tool,
    TopToken,
    Usage,
)

READY = Ready(100, 128, (1,), "float32", "cpu", "packed", 64)
LENGTH = FinishReason.LENGTH


class Characters:
    """A text codec whose token ids are code points."""

    @property
    def vocabulary(self) -> Characters:
        return self

    def piece(self, id: int) -> Piece:
        return piece(id, chr(id).encode(), special=id == 1)

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        return Detokenizer(self)

    def scores(self, found: Logprobs) -> tuple[float | None, tuple[TopToken, ...]]:
        return found.logprob, ()

    def prompt_tokens(self, ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> tuple[Token, ...]:
        scores = [found.logprob for found in logprobs] or [None] * len(ids)
        return tuple(Token(id, chr(id), logprob) for id, logprob in zip(ids, scores, strict=True))


def answering(*prompts: str, first_seq: int = 0, grammar: str | None = None, **fields: Any) -> Answer:
    request = Generate(
        **{"id": "r", "model": "m", "prompts": (TextPrompt(""),) * len(prompts), "stream": True} | fields
    )
    inputs = [MultiModalInputs(tuple(map(ord, prompt))) for prompt in prompts]
    text = cast(TextCodec, Characters())
    reader = partial(answer_reader, request, replace(HERMES, reasoning=None))
    return Answer(request, inputs, seed=5, first_seq=first_seq, text=text, ready=READY, reader=reader, grammar=grammar)


def output(seq: int, text: str, reason: FinishReason | None = None, **fields: Any) -> Output:
    return Output(seq, tuple(map(ord, text)), reason, **fields)


def fed(answer: Answer, *outputs: Output) -> list[Event]:
    return list(answer.feed(outputs)[0])


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Delta)]


def test_a_stream_has_one_delta_per_batch_and_candidate() -> None:
    answer = answering("hi", n=2, first_seq=10)
    started, first = fed(answer, output(10, "a"), output(10, "b"))
    assert (started, texts([first])) == (Started("m", 2, ()), ["ab"])
    assert texts(fed(answer, output(10, "c"), output(11, "x"))) == ["c", "x"]
    *ends, usage = fed(answer, output(11, "y", LENGTH), output(10, "d", LENGTH))
    assert [type(event) for event in ends] == [Finished, Finished]
    assert usage == Usage(2, 6, cached_tokens=0)
    assert answer.done


def test_non_streamed_requests_emit_every_event_after_started_at_completion() -> None:
    answer = answering("hi", n=2, stream=False)
    assert fed(answer, output(0, "a"), output(1, "x", LENGTH)) == [Started("m", 2, ())]
    assert fed(answer, output(0, "b")) == []
    events = fed(answer, output(0, "c", LENGTH))
    assert texts(events) == ["x", "abc"]
    assert isinstance(events[-1], Usage)


def test_best_of_emits_the_most_probable_candidates_at_completion() -> None:
    answer = answering("hi", n=1, best_of=2)
    assert [submit.top_logprobs for submit in answer.submits] == [0, 0], "they are ranked by their log-probabilities"
    fed(answer, output(0, "a", LENGTH, logprobs=(Logprobs(-2.0),)))
    (best, usage) = fed(answer, output(1, "b", LENGTH, logprobs=(Logprobs(-1.0),)))
    assert (texts([best]), cast(Finished, best).choice, cast(Usage, usage).completion_tokens) == (["b"], 0, 2)


def test_a_stop_string_ends_the_candidate_and_names_its_sequence() -> None:
    answer = answering("hi", n=2, stopping=Stopping(stop=("cd",)))
    events, stopped = answer.feed([output(0, "abcde"), output(1, "x")])
    assert (texts(events), stopped) == (["ab", "x"], [0])
    assert answer.feed([output(0, "f"), output(1, "y", LENGTH)])[1] == []
    assert answer.done


def test_a_sequence_that_ends_with_the_stop_string_need_not_be_cancelled() -> None:
    events, stopped = answering("hi", stopping=Stopping(stop=("b",))).feed([output(0, "ab", LENGTH)])
    assert (texts(events), stopped) == (["a"], [])
    assert cast(Finished, events[1]).reason is FinishReason.STOP_STRING


def test_started_waits_until_all_prompts_are_scored() -> None:
    answer = answering("h", "i", prompt_logprobs=True)
    assert fed(answer, output(0, "a", prompt=(Logprobs(None),))) == []
    started, *_ = fed(answer, output(1, "x", prompt=(Logprobs(None),)))
    assert [token.id for prompt in cast(Started, started).prompts for token in prompt] == [ord("h"), ord("i")]


def test_cached_tokens_count_once_per_prompt() -> None:
    answer = answering("hi", "hi", n=2)
    ends = [output(seq, "a", LENGTH, cached_tokens=1) for seq in range(4)]
    assert fed(answer, *ends)[-1] == Usage(4, 4, cached_tokens=2)


def test_candidates_have_consecutive_seeds_and_the_first_scores_the_prompt() -> None:
    submits = answering("a", "b", n=2, prompt_logprobs=True, sampling=Sampling(do_sample=True)).submits
    assert [submit.seq for submit in submits] == [0, 1, 2, 3]
    assert [submit.sampling.seed for submit in submits] == [5, 6, 5, 6]
    assert [submit.prompt_logprobs for submit in submits] == [0, -1, 0, -1]


def test_a_grammar_decides_where_the_text_ends() -> None:
    stopping = Stopping(min_new_tokens=3, ignore_eos=True)
    (free,), (bound,) = (
        answering("a", stopping=stopping).submits,
        answering("a", stopping=stopping, grammar="g").submits,
    )
    assert (free.min_new_tokens, free.eos_token_ids) == (3, ())
    assert (bound.min_new_tokens, bound.eos_token_ids, bound.grammar) == (0, (1,), "g")


def test_tool_calls_are_parsed_if_tools_are_offered() -> None:
    written = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    (_, plain, _) = fed(answering("a"), output(0, written, LENGTH))
    (_, parsed, _) = fed(answering("a", tools=(Tool("f"),)), output(0, written, LENGTH))
    assert (cast(Delta, plain).text, cast(Delta, plain).tool_calls) == (written, ())
    assert cast(Delta, parsed).text == ""
    assert [call.name for call in cast(Delta, parsed).tool_calls if call.name] == ["f"]


@pytest.mark.parametrize(
    ("failed", "error"),
    [(Output(0, error="full", overloaded=True), Overloaded), (Output(0, error="no"), BackendFailed)],
)
def test_a_failed_sequence_fails_the_request(failed: Output, error: type[Exception]) -> None:
    with pytest.raises(error):
        answering("hi").feed([failed])


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("\x80", {}, "prompt"),
        ("a", {"sampling": Sampling(logit_bias=((128, 1.0),))}, "logit_bias"),
        ("a", {"stopping": Stopping(stop_token_ids=(-1,))}, "stop_token_ids"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_rejected(prompt: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        answering(prompt, **fields)
    assert raised.value.param == param


def test_the_ids_of_all_tokens_are_returned() -> None:
    written = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    answer = answering("hi", tools=(Tool("f"),), returns_ids=True, prompt_scores=0)
    assert fed(answer, output(0, "a" + written[:9])) == []
    scored = output(0, written[9:], LENGTH, prompt=(Logprobs(None), Logprobs(-1.0)))
    started, *deltas, _ = fed(answer, scored)
    assert [token.id for token in cast(Started, started).prompts[0]] == [ord("h"), ord("i")]
    ids = [id for delta in deltas if isinstance(delta, Delta) for id in delta.ids]
    assert "".join(map(chr, ids)) == "a" + written
