from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import Feature
from backends.features import check
from backends.scripted import ScriptedBackend
from backends.scripted.script import ERRORS, SCRIPTS
from schemas.completion import Choice, Completion
from schemas.errors import (
    KINDS,
    BackendFailed,
    ContextLengthExceeded,
    GatewayError,
    Incomplete,
    InvalidRequest,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Embed,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Sampling,
    Started,
    Stopping,
    TextPrompt,
    Tokenize,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.backends import laws

PLAIN = "The quick brown fox jumps over the lazy dog."
GREEDY = Sampling(temperature=0.0)


def request(model: str = "scripted", text: str = "Hello world", **fields: Any) -> Generate:
    fields = {"prompts": (TextPrompt(text),), "id": "r1", "sampling": GREEDY} | fields
    return Generate(model=model, **fields)


async def ask(asked: Generate, backend: ScriptedBackend | None = None) -> Completion:
    backend = backend or ScriptedBackend("s")
    answer = laws.check(await laws.collect(backend.generate(asked)), asked)
    assert (backend.active, backend.cancelled) == (0, 0)
    return answer


async def only(asked: Generate) -> Choice:
    (choice,) = (await ask(asked)).choices
    return choice


async def test_any_other_name_gives_the_plain_answer() -> None:
    answer = await ask(request())
    (choice,) = answer.choices
    assert (answer.model, choice.text, choice.reason, choice.generated) == ("scripted", PLAIN, FinishReason.EOS, 11)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 11)
    assert [token.text for token in choice.tokens[:3]] == ["The", " quick", " brown"]
    assert choice.tokens[-1].special


@pytest.mark.parametrize("prompt", [TextPrompt("two"), ChatPrompt((Message("user", "one"), Message("user", "two")))])
async def test_echo_answers_with_the_last_message(prompt: Any) -> None:
    assert (await only(request("echo", prompts=(prompt,)))).text == "two"


async def test_a_token_prompt_equals_its_text() -> None:
    spans = (await ScriptedBackend("s").tokenize(Tokenize(id="1", model="x", prompt=TextPrompt("Grüße 🙂!")))).spans
    choice = await only(request("echo", prompts=(TokensPrompt(tuple(span.id for span in spans)),)))
    assert choice.text == "Grüße 🙂!"


requests = st.builds(
    request,
    st.sampled_from(sorted(set(SCRIPTS) - {"slow", "late", "many"})),
    st.text("Hello wörld🙂", min_size=1, max_size=8),
    n=st.integers(1, 3),
    sampling=st.builds(Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.none() | st.integers(0, 2**64 - 1)),
    stopping=st.builds(
        Stopping,
        max_new_tokens=st.integers(0, 30),
        min_new_tokens=st.integers(0, 3),
        stop=st.lists(st.sampled_from(["fox", " the ", ".", "o", "東", "says: 🙂"]), max_size=2).map(tuple),
        ignore_eos=st.booleans(),
        include_stop=st.booleans(),
    ),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 2),
    echo=st.booleans(),
    prompt_logprobs=st.booleans(),
)


@given(requests)
async def test_answers_follow_the_event_grammar_and_the_limits_and_repeat(asked: Generate) -> None:
    answer = await ask(asked)
    assert answer == await ask(asked)
    for choice in answer.choices:
        assert (choice.generated or 0) <= (asked.stopping.max_new_tokens or 0)
        if choice.reason is FinishReason.STOP_STRING:
            assert choice.stop in asked.stopping.stop
            assert choice.text.endswith(choice.stop or "") == asked.stopping.include_stop or not choice.text
        scored = asked.logprobs or asked.top_logprobs > 0
        assert all((token.logprob is not None) == scored for token in choice.tokens)
        assert all(len(token.top) == asked.top_logprobs for token in choice.tokens)
    assert len(answer.prompts) == (1 if asked.echo or asked.prompt_logprobs else 0)


async def test_token_limits_bound_the_answer() -> None:
    short = await only(request(stopping=Stopping(max_new_tokens=3)))
    assert (short.text, short.reason, short.generated) == ("The quick brown", FinishReason.LENGTH, 3)
    long = await only(request(stopping=Stopping(max_new_tokens=25, ignore_eos=True)))
    assert (long.text[:45], long.reason, long.generated) == (PLAIN + "T", FinishReason.LENGTH, 25)
    least = await only(request(stopping=Stopping(min_new_tokens=15)))
    assert (least.text, least.reason) == (PLAIN * 2, FinishReason.EOS)


async def test_a_stop_string_matches_across_tokens() -> None:
    stopping = Stopping(stop=("wn fox",))
    out = await only(request(stopping=stopping))
    assert (out.text, out.reason, out.stop) == ("The quick bro", FinishReason.STOP_STRING, "wn fox")
    kept = await only(request(stopping=msgspec.structs.replace(stopping, include_stop=True)))
    assert kept.text == "The quick brown fox"


async def test_sampling_follows_the_seed_and_returns_it() -> None:
    sampled = [await ask(request(sampling=Sampling(temperature=1.0, seed=seed), n=2)) for seed in (5, 5, 6)]
    assert sampled[0] == sampled[1]
    assert sampled[0].choices[1].text == sampled[2].choices[0].text
    assert [choice.seed for choice in sampled[2].choices] == [6, 7]
    assert len({choice.text for answer in sampled for choice in answer.choices}) > 1


async def test_best_of_returns_the_most_probable_candidate() -> None:
    fields: dict[str, Any] = {"sampling": Sampling(temperature=1.0, seed=1), "logprobs": True}
    every = (await ask(request(n=4, **fields))).choices
    best = (await ask(request(best_of=4, **fields))).choices

    def mean(choice: Choice) -> float:
        return sum(token.logprob or 0.0 for token in choice.tokens) / len(choice.tokens)

    assert len(best) == 1
    assert best[0].text == max(every, key=mean).text


async def test_several_prompts_interleave() -> None:
    asked = request("echo", prompts=(TextPrompt("one"), TextPrompt("two three")), n=2)
    events = await laws.collect(ScriptedBackend("s").generate(asked))
    answer = laws.check(events, asked)
    assert [choice.text for choice in answer.choices] == ["one", "one", "two three", "two three"]
    assert answer.usage.prompt_tokens == 3
    assert [event.choice for event in events[1:5]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({"model": "tool-call"}, [("get_weather", '{"city": "Paris"}')]),
        ({"tools": (Tool("f"), Tool("g")), "tool_choice": ToolChoice("named", ("g",))}, [("g", "{}")]),
        ({"tools": (Tool("f"), Tool("g")), "model": "tool-calls"}, [("f", "{}"), ("g", "{}")]),
    ],
)
async def test_tool_calls(fields: dict[str, Any], calls: list[tuple[str, str]]) -> None:
    choice = await only(request(**fields))
    assert choice.reason is FinishReason.TOOL_CALL
    assert choice.tool_calls == tuple(ToolCall(f"call_{i}", *call) for i, call in enumerate(calls))


async def test_tool_choice_none_forbids_calls() -> None:
    choice = await only(request("tool-call", tools=(Tool("f"),), tool_choice=ToolChoice("none")))
    assert (choice.text, choice.tool_calls) == (PLAIN, ())


async def test_an_answer_matches_its_grammar() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": 3}}}
    assert (await only(request(grammar=Grammar("json_schema", schema)))).text == '{"name": "text", "n": 3}'
    assert msgspec.json.decode((await only(request(grammar=Grammar("json_object")))).text) == {"answer": PLAIN}
    with pytest.raises(UnsupportedFeature):
        await ask(request(grammar=Grammar("regex", "a+")))


async def test_reasoning_and_refusal() -> None:
    answer = await ask(request("reasoning"))
    assert (answer.choices[0].reasoning, answer.choices[0].text) == ("Let me think about that first.", PLAIN)
    assert answer.usage.reasoning_tokens == 7
    assert (await only(request("refusal"))).refusal.startswith("I am sorry")


async def test_prompts_and_answers_are_limited_to_the_context() -> None:
    backend = ScriptedBackend("s", {"context_length": 10})
    with pytest.raises(ContextLengthExceeded):
        await ask(request(stopping=Stopping(max_new_tokens=9)), backend)
    assert (await ask(request(), backend)).choices[0].reason is FinishReason.LENGTH
    cut = await ask(request(text="one two three", truncate_prompt_tokens=2, echo=True), backend)
    assert [token.text for token in cut.prompts[0]] == [" two", " three"]
    with pytest.raises(InvalidRequest):
        await ask(request(text=""), backend)


async def test_every_kind_of_error_has_a_model_name() -> None:
    kinds = set()
    for name in ERRORS:
        with pytest.raises(RuntimeError if name == "crash" else GatewayError) as raised:
            await laws.collect(ScriptedBackend("s").generate(request(name)))
        kinds.add(getattr(raised.value, "kind", None))
    assert kinds >= set(KINDS)


@pytest.mark.parametrize("name", ["overloaded", "overloaded-before"])
async def test_a_fault_before_the_first_event(name: str) -> None:
    with pytest.raises(Overloaded) as raised:
        await laws.take(ScriptedBackend("s").generate(request(name)), 1)
    assert raised.value.retry_after == 1.0


@pytest.mark.parametrize("after", [0, 3])
async def test_a_fault_after_some_tokens(after: int) -> None:
    backend = ScriptedBackend("s")
    stream = backend.generate(request(f"error-after-{after}"))
    events = [event for _ in range(1 + after) for event in await anext(stream)]
    assert isinstance(events[0], Started)
    assert len(events) == 1 + after
    with pytest.raises(BackendFailed):
        await anext(stream)
    assert (backend.active, backend.cancelled) == (0, 0)


async def test_a_truncated_stream_has_no_finished_and_no_usage() -> None:
    asked = request("truncate-after-2")
    events = await laws.collect(ScriptedBackend("s").generate(asked))
    assert len(events) == 3
    assert not any(isinstance(event, Finished) for event in events)
    assert await laws.collect(ScriptedBackend("s").generate(request("truncate"))) == ()


@pytest.mark.parametrize(("name", "batches"), [("hang", 0), ("hang-after-2", 3)])
async def test_a_hanging_answer_can_be_cancelled(name: str, batches: int) -> None:
    backend = ScriptedBackend("s")
    seen = []

    async def consume() -> None:
        async for batch in backend.generate(request(name)):
            seen.append(batch)  # noqa: PERF401 - the batches before it hangs are compared

    task = asyncio.create_task(consume())
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(seen), backend.active) == (batches, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (backend.active, backend.cancelled) == (0, 1)


@pytest.mark.parametrize("count", range(14))
async def test_a_stream_can_be_closed_at_any_point(count: int) -> None:
    backend = ScriptedBackend("s")
    await laws.take(backend.generate(request()), count)
    complete = count > 12  # started, ten words, the end, usage
    assert (backend.active, backend.cancelled) == (0, 0 if complete or not count else 1)


async def test_scripts_and_features_are_configurable() -> None:
    fixed = [{"id": 5, "text": "Hi", "logprob": -0.5}, {"id": 6, "text": "", "special": True}]
    backend = ScriptedBackend("s", {"scripts": {"mine": {"tokens": fixed, "reason": "length"}}, "features": ["chat"]})
    choice = (await ask(request("mine"), backend)).choices[0]
    assert [(token.id, token.text, token.logprob, token.special) for token in choice.tokens] == [
        (5, "Hi", -0.5, False),
        (6, "", None, True),
    ]
    assert (choice.text, choice.reason) == ("Hi", FinishReason.LENGTH)
    with pytest.raises(UnsupportedFeature, match="tools"):
        check(request(tools=(Tool("f"),)), backend.capabilities, "mine")
    assert ScriptedBackend("s").capabilities.features == frozenset(Feature)


@pytest.mark.parametrize("options", [{"script": {}}, {"scripts": {"a": {"fault": {"what": "nonsense"}}}}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        ScriptedBackend("s", options)


async def test_embeddings_are_unit_vectors_equal_for_equal_inputs() -> None:
    asked = Embed(id="1", model="x", inputs=(TextPrompt("one"), TextPrompt("two"), TextPrompt("one")), dimensions=4)
    answer = await ScriptedBackend("s").embed(asked)
    first, second, third = answer.vectors
    assert first == third != second
    assert sum(value**2 for value in first) == pytest.approx(1.0)
    assert (len(first), answer.usage.prompt_tokens) == (4, 3)
    with pytest.raises(BackendFailed):
        await ScriptedBackend("s").embed(msgspec.structs.replace(asked, model="error"))


async def test_an_incomplete_answer_raises() -> None:
    async with aclosing(ScriptedBackend("s").generate(request("incomplete-after-1"))) as stream:
        with pytest.raises(Incomplete):
            [batch async for batch in stream]
