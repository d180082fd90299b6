"""Recorded streams of real providers through the client codecs: the same answer wherever the bytes are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from adapters import anthropic, gemini, ollama, openai, tgi
from adapters.fold import Completion, fold
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, Events, FinishReason, Generate, Message, TextPrompt
from tests.recordings.reading import frames, heard
from tests.recordings.streams import ALL, RAW, WHOLE, choices, protocol

ADAPTERS = {
    each.name: each for each in (anthropic.ADAPTER, gemini.ADAPTER, ollama.ADAPTER, openai.ADAPTER, tgi.ADAPTER)
}
ENDS = {
    "stop": {FinishReason.EOS, FinishReason.STOP_STRING, FinishReason.STOP_TOKEN},
    "length": {FinishReason.LENGTH},
    "tool_calls": {FinishReason.TOOL_CALL},
}
SMALL = 2_500  # bytes up to which each cut is tried by itself


def decoded(name: str, cuts: tuple[int, ...]) -> Events:
    adapter = ADAPTERS[protocol(name)]
    prompt = TextPrompt("Hi") if name in RAW else ChatPrompt((Message("user", "Hi"),))
    request = Generate(id="r", model="m", prompts=(prompt,), stream=True, n=choices(name))
    reader, data = adapter.client(adapter.dialects[protocol(name)]).decoder(request), ALL[name]
    events: Events = ()
    for start, stop in pairwise((0, *cuts, len(data))):
        events += reader.feed(data[start:stop])
    return events + reader.close()


def ways_to_cut(data: bytes, seed: str) -> Iterator[tuple[int, ...]]:
    """At every byte at once, at random places, and in small streams at each byte alone."""
    yield tuple(range(1, len(data)))
    places = random.Random(seed)
    for count in (1, 3, 30, 300):
        yield tuple(sorted(places.sample(range(1, len(data)), min(count, len(data) - 1))))
    if len(data) <= SMALL:
        for cut in range(1, len(data)):
            yield (cut,)


def check(name: str, answer: Completion) -> None:
    wanted = [heard(list(frames(ALL[name])), index) for index in range(choices(name))]
    for said, choice in zip(wanted, answer.choices, strict=True):
        calls = tuple((call.name, call.arguments) for call in choice.tool_calls)
        found = said._replace(text=choice.text, reasoning=choice.reasoning, refusal=choice.refusal)
        assert found == said
        assert [name for name, _ in calls] == [name for name, _ in said.calls]
        # OpenAI ends the call of a named tool with "stop".
        assert choice.reason in ENDS["tool_calls" if calls else said.finish]
        if said.usage is not None:
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == said.usage


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_every_cut_says_the_same(name: str) -> None:
    answers = {repr(answer): answer for cuts in ways_to_cut(ALL[name], name) if (answer := fold(decoded(name, cuts)))}
    [answer] = answers.values()
    check(name, answer)


def test_a_failure_within_a_stream_is_the_clients_to_correct_where_the_provider_says_so() -> None:
    with pytest.raises(InvalidRequest, match="Tool call validation failed") as failure:
        decoded("groq-error", ())
    assert failure.value.code == "tool_use_failed"
