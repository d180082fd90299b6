"""The mirror law: what one codec encodes, the other decodes to the same, up to what `decodable` removes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.completion import Choice, Completion
from schemas.errors import BackendFailed, Incomplete
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)
from tests.adapters.laws import batches, canonical, effective, splits, streams, texts
from tests.adapters.openai.scenes import CALLS, DIALECTS, REASONING, ROUTES, call, client, server

NAMES = tuple(DIALECTS)
OPERATIONS = {"/chat/completions": "chat", "/completions": "completions"}
REASONS = (FinishReason.EOS, FinishReason.LENGTH, FinishReason.STOP_STRING, FinishReason.CONTENT_FILTER)


def mirrored(name: str, request: Generate) -> Generate:
    """The request as the server codec of a remote decodes it."""
    sent = client(name).encode(request)
    seen = server(name).decode(ROUTES[OPERATIONS[sent.path]], sent.body, call(request.id))
    assert isinstance(seen, Generate)
    return seen


def asked(name: str, prompt: Any = None, **fields: Any) -> Generate:
    """A chat, or the completion of a `prompt`, as the remote sees it."""
    chat = prompt is None
    prompts = (ChatPrompt((Message("user", "Hi"),)),) if chat else (prompt,)
    sampling = Sampling(do_sample=True)
    return mirrored(
        name, Generate(id="r1", model="model", prompts=prompts, raw_prompt=not chat, sampling=sampling, **fields)
    )


def decodable(name: str, answer: Completion, *, tokens: bool = False) -> Completion:
    """The answer as a client of this dialect can decode it: the dialect's finish reasons, and no token ids."""
    table = DIALECTS[name]
    choices = tuple(
        msgspec.structs.replace(
            choice,
            reason=ended(table.remote.reasons[table.wording.finish[choice.reason]], choice),
            tokens=tuple(msgspec.structs.replace(token, id=None) for token in choice.tokens) if tokens else (),
            generated=None,
        )
        for choice in answer.choices
    )
    return msgspec.structs.replace(answer, choices=choices)


def ended(reason: FinishReason, choice: Choice) -> FinishReason:
    """The reason as it is read: calls end with that of calls, whatever word the remote has for it."""
    return FinishReason.TOOL_CALL if choice.tool_calls and reason is FinishReason.EOS else reason


def uncounted(events: Events) -> Usage:
    """The usage of a stream without one: its deltas are counted."""
    return Usage(0, sum(isinstance(event, Delta) and bool(event.text) for event in events))


def written(name: str, request: Generate, events: Events, data: st.DataObject) -> bytes:
    encoder = server(name).encoder(request)
    return b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))


def read(name: str, request: Generate, stream: bytes, data: st.DataObject) -> Completion:
    reader = client(name).decoder(request)
    events = tuple(event for piece in data.draw(splits(stream)) for event in reader.feed(piece))
    return canonical((*events, *reader.close()))


@given(data=st.data())
def test_streamed_chats(data: st.DataObject) -> None:
    events = data.draw(streams(choices=3, reasoning=True, tools=True, reasons=(*REASONS, FinishReason.TOOL_CALL)))
    answer = canonical(events)
    request = asked("openai", stream=True, n=len(answer.choices))
    assert read("openai", request, written("openai", request, events, data), data) == decodable("openai", answer)


@given(data=st.data())
def test_streamed_chats_of_mindie(data: st.DataObject) -> None:
    events = data.draw(streams(end_token=True))
    request = asked("mindie-openai", stream=True)
    expected = decodable("mindie-openai", canonical(events))
    answer = read("mindie-openai", request, written("mindie-openai", request, events, data), data)
    assert answer == msgspec.structs.replace(expected, usage=uncounted(events))


@given(data=st.data())
def test_streamed_completions(data: st.DataObject) -> None:
    events = data.draw(streams(choices=3, reasons=REASONS))
    answer = canonical(events)
    request = asked("openai", TextPrompt("Once"), stream=True, n=len(answer.choices))
    assert read("openai", request, written("openai", request, events, data), data) == decodable("openai", answer)


@pytest.mark.parametrize("prompt", [None, TextPrompt("Once")])
@given(data=st.data())
def test_streams_with_log_probabilities(prompt: Any, data: st.DataObject) -> None:
    tops = 2 if prompt is None else 0  # a completion's alternatives are an object, without order or duplicates
    events = data.draw(streams(ids=False, with_logprobs=True, tops=tops, end_token=prompt is not None))
    request = asked("openai", prompt, stream=True, logprobs=True, top_logprobs=tops)
    answer = read("openai", request, written("openai", request, events, data), data)
    assert answer == decodable("openai", canonical(events), tokens=True)


@given(events=streams(choices=3, reasoning=True, tools=True, reasons=(*REASONS, FinishReason.TOOL_CALL)))
@pytest.mark.parametrize("name", NAMES)
def test_whole_chats(name: str, events: Events) -> None:
    answer = canonical(events)
    if name == "mindie-openai":
        answer = msgspec.structs.replace(answer, choices=answer.choices[:1])
    request = asked(name, n=len(answer.choices))
    reply = server(name).encode(request, answer)
    assert canonical(client(name).decode(request, reply)) == decodable(name, answer)


@given(events=streams(choices=3, reasons=REASONS))
def test_whole_completions(events: Events) -> None:
    answer = canonical(events)
    request = asked("openai", TextPrompt("Once"), n=len(answer.choices))
    reply = server().encode(request, answer)
    assert canonical(client().decode(request, reply)) == decodable("openai", answer)


@pytest.mark.parametrize("prompt", [None, TextPrompt("Once")])
@given(data=st.data())
def test_whole_answers_with_log_probabilities(prompt: Any, data: st.DataObject) -> None:
    tops = 2 if prompt is None else 0
    answer = canonical(data.draw(streams(ids=False, with_logprobs=True, tops=tops)))
    request = asked("openai", prompt, logprobs=True, top_logprobs=tops)
    reply = server().encode(request, answer)
    assert canonical(client().decode(request, reply)) == decodable("openai", answer, tokens=True)


@pytest.mark.parametrize("prompt", [None, TextPrompt("Once")])
@given(data=st.data())
def test_a_truncated_stream_is_never_complete(prompt: Any, data: st.DataObject) -> None:
    events = data.draw(streams())
    request = asked("openai", prompt, stream=True)
    stream = written("openai", request, events, data)
    finish = stream.rindex(b'"finish_reason":"')
    reader = client().decoder(request)
    assert not any(isinstance(event, Usage) for event in reader.feed(stream[: data.draw(st.integers(0, finish))]))
    with pytest.raises(Incomplete):
        reader.close()


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), message=texts)
def test_no_text_contains_a_line_end_of_unicode(name: str, data: st.DataObject, message: str) -> None:
    """httpx's `iter_lines` and others split at every line end of Unicode."""
    events = data.draw(streams(reasoning=True, tools=True, with_logprobs=True))
    request = asked(name, stream=True, logprobs=name == "openai")
    encoder = server(name).encoder(request)
    stream = encoder.feed(events) + encoder.fail(BackendFailed(message))
    for line in stream.decode().splitlines():
        assert line in ("", "data: [DONE]") or json.loads(line.removeprefix("data: "))


positive = st.floats(0.01, 2)
limits = st.integers(1, 1000)
samplings = st.builds(
    Sampling,
    do_sample=st.just(True),
    temperature=st.none() | st.just(0.0) | positive,
    top_k=st.none() | limits,
    top_p=st.none() | st.floats(0.01, 1),
    min_p=st.none() | st.floats(0.01, 1),
    repetition_penalty=st.none() | positive,
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3).map(lambda d: tuple(d.items())),
    seed=st.none() | st.integers(0, 2**64 - 1),
)
stoppings = st.builds(
    Stopping,
    max_new_tokens=limits,
    min_new_tokens=st.integers(0, 10),
    stop=st.lists(texts.filter(bool), max_size=4).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 1000), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    include_stop=st.booleans(),
).map(effective)
images = st.builds(
    ImagePart,
    st.just("https://example.org/a.png"),
    st.just("url"),
    st.sampled_from([None, "low"]),
) | st.just(ImagePart("data:image/png;base64,iVBORw0KGgo=", "data"))
contents = texts | st.lists(st.builds(TextPart, texts) | images, min_size=1, max_size=3).map(tuple)
calls = st.lists(st.builds(ToolCall, st.just("c1"), st.just("f"), texts), min_size=1, max_size=2).map(tuple)
messages = st.lists(
    st.builds(Message, st.sampled_from(["developer", "system", "user"]), contents, st.none() | st.just("Zoë"))
    | st.builds(Message, st.just("assistant"), texts, reasoning=st.none() | texts.filter(bool))
    | st.builds(Message, st.just("assistant"), st.none(), tool_calls=calls)
    | st.builds(Message, st.just("tool"), texts, tool_call_id=st.just("c1")),
    min_size=1,
    max_size=4,
).map(lambda turns: (ChatPrompt(tuple(turns)),))
schema = {"type": "object", "properties": {"a": {}}}
TOOLS = (Tool("f", "d", schema, True), Tool("g"))
choices = (
    None,
    *(ToolChoice(mode) for mode in ("none", "auto", "required")),
    ToolChoice("named", ("g",)),
    ToolChoice("allowed", ("f", "g"), required=True),
)
grammars = st.sampled_from([None, Grammar("json_object"), Grammar("json_schema", schema, "a", strict=False)])


def same(seen: Generate, request: Generate) -> bool:
    """Whether both are the same, up to the usage that the client codec asks for and the origin."""
    return msgspec.structs.replace(seen, origin=None, stream_usage=False) == request


@given(
    st.builds(
        Generate,
        id=st.just("r1"),
        model=st.sampled_from(["m", "org/model"]),
        prompts=messages,
        raw_prompt=st.just(False),
        sampling=samplings,
        stopping=stoppings | st.just(Stopping()),
        stream=st.booleans(),
        n=st.integers(1, 128),
        truncate_prompt_tokens=st.none() | limits,
        tools=st.just(TOOLS),
        tool_choice=st.sampled_from(choices),
        parallel_tool_calls=st.none() | st.booleans(),
        grammar=grammars,
        user=st.none() | texts.filter(bool),
        hints=st.fixed_dictionaries(
            {}, optional={"reasoning_effort": st.just("low"), "metadata": st.dictionaries(texts, texts, max_size=2)}
        ),
    ),
    st.integers(-1, 20),
)
def test_chat_requests(request: Generate, top: int) -> None:
    request = msgspec.structs.replace(request, logprobs=top >= 0, top_logprobs=max(0, top))
    assert same(mirrored("openai", request), request)


ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(lambda ids: TokensPrompt(tuple(ids)))


@given(
    st.builds(
        Generate,
        id=st.just("r1"),
        model=st.just("m"),
        prompts=st.lists(st.builds(TextPrompt, texts), min_size=1, max_size=3).map(tuple)
        | st.lists(ids, min_size=1, max_size=3).map(tuple),
        sampling=samplings,
        stopping=stoppings,
        n=st.integers(1, 5),
        best_of=st.none() | st.integers(6, 20),
        truncate_prompt_tokens=st.none() | limits,
        suffix=st.none() | texts.filter(bool),
        grammar=grammars,
        user=st.none() | texts.filter(bool),
    ),
    st.integers(-1, 5),
    st.booleans(),
)
def test_completion_requests(request: Generate, top: int, echo: bool) -> None:
    fields = {"logprobs": top >= 0, "top_logprobs": max(0, top)}
    echoed = {"echo": echo and top >= 0, "prompt_logprobs": echo and top >= 0}
    request = msgspec.structs.replace(request, **fields, **echoed)
    assert same(mirrored("openai", request), request)


mindie_messages = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), texts.filter(bool)), min_size=1, max_size=4
).map(lambda turns: (ChatPrompt(tuple(turns)),))


@given(
    st.builds(
        Generate,
        id=st.just("r1"),
        model=st.just("model"),
        prompts=mindie_messages,
        raw_prompt=st.just(False),
        sampling=st.builds(
            Sampling,
            do_sample=st.just(True),
            temperature=st.none() | positive,
            top_p=st.none() | st.floats(0.01, 1),
            presence_penalty=st.none() | st.floats(-2, 2),
            frequency_penalty=st.none() | st.floats(-2, 2),
            seed=st.none() | st.integers(1, 2**64 - 1),
        ),
        stopping=st.builds(Stopping, max_new_tokens=st.none() | limits),
        stream=st.booleans(),
        overflow=st.just("truncate"),
    )
)
def test_mindie_requests(request: Generate) -> None:
    assert same(mirrored("mindie-openai", request), request)


@pytest.mark.parametrize("events", [REASONING, CALLS], ids=["reasoning", "calls"])
def test_a_completion_omits_reasoning_and_tool_calls(events: Events) -> None:
    """With `use_raw_prompt: false` a model may reason and call tools: the text remains, the finish reason is `stop`."""
    body = b'{"model":"m","prompt":"Hi"}'
    request = server().decode(ROUTES["completions"], body, call())
    assert isinstance(request, Generate)
    whole = json.loads(server().encode(request, fold(events)).body)["choices"][0]
    writer = server().encoder(request)
    data = b"".join(writer.feed((event,)) for event in events).decode()
    chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"] == ("No." if events is REASONING else "")
    assert (
        [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        == [whole["finish_reason"]]
        == ["stop"]
    )
