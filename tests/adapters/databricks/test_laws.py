"""The mirror law: what one codec encodes, the other decodes to the same, up to what `decodable` removes."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.completion import Completion
from schemas.errors import BackendFailed, Incomplete
from schemas.ir import (
    ChatPrompt,
    Events,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)
from tests.adapters.databricks.scenes import ROUTES, call, client, server
from tests.adapters.laws import batches, canonical, splits, streams, texts

REASONS = (FinishReason.EOS, FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


def mirrored(request: Generate) -> Generate:
    """The request as the server codec of a workspace decodes it."""
    sent = client().encode(request)
    name = unquote(sent.path.removeprefix("/serving-endpoints/").removesuffix("/invocations"))
    assert "model" not in json.loads(sent.body)
    seen = server().decode(ROUTES["invocations"], sent.body, call(name=name))
    assert isinstance(seen, Generate)
    return seen


def asked(prompt: Any = None, **fields: Any) -> Generate:
    """A chat, or the completion of a raw `prompt`, as the workspace sees it."""
    prompts = (ChatPrompt((Message("user", "Hi"),)) if prompt is None else prompt,)
    sampling = Sampling(do_sample=True)
    return mirrored(
        Generate(id="r1", model="m", prompts=prompts, raw_prompt=prompt is not None, sampling=sampling, **fields)
    )


def decodable(answer: Completion, *, tokens: bool = False) -> Completion:
    """The answer as a client can decode it: without token ids, and without tokens that were not requested."""
    choices = tuple(
        msgspec.structs.replace(
            choice,
            tokens=choice.tokens if tokens else (),
            generated=None,
            reason=FinishReason.TOOL_CALL if choice.tool_calls and choice.reason is FinishReason.EOS else choice.reason,
        )
        for choice in answer.choices
    )
    return msgspec.structs.replace(answer, choices=choices)


def read(request: Generate, stream: bytes, data: st.DataObject) -> Completion:
    reader = client().decoder(request)
    events = tuple(event for piece in data.draw(splits(stream)) for event in reader.feed(piece))
    return canonical((*events, *reader.close()))


def written(request: Generate, events: Events, data: st.DataObject) -> bytes:
    encoder = server().encoder(request)
    return b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))


@given(data=st.data())
def test_streamed_chats(data: st.DataObject) -> None:
    events = data.draw(streams(choices=3, reasoning=True, tools=True, reasons=(*REASONS, FinishReason.TOOL_CALL)))
    answer = canonical(events)
    request = asked(stream=True, n=len(answer.choices))
    assert read(request, written(request, events, data), data) == decodable(answer)


@given(data=st.data())
def test_streamed_completions(data: st.DataObject) -> None:
    events = data.draw(streams(choices=3, reasons=REASONS))
    answer = canonical(events)
    request = asked(TextPrompt("Once"), stream=True, n=len(answer.choices))
    assert read(request, written(request, events, data), data) == decodable(answer)


@pytest.mark.parametrize("stream", [True, False])
@given(data=st.data())
def test_log_probabilities(stream: bool, data: st.DataObject) -> None:
    events = data.draw(streams(ids=False, with_logprobs=True, tops=2, reasons=REASONS))
    request = asked(stream=stream, logprobs=True, top_logprobs=2)
    if stream:
        answer = read(request, written(request, events, data), data)
    else:
        answer = canonical(client().decode(request, server().encode(request, fold(events))))
    assert answer == decodable(canonical(events), tokens=True)


@pytest.mark.parametrize("prompt", [None, TextPrompt("Once")])
@given(data=st.data())
def test_whole_answers(prompt: Any, data: st.DataObject) -> None:
    chat = prompt is None
    answer = canonical(data.draw(streams(choices=3, reasons=REASONS, reasoning=chat, tools=chat)))
    request = asked(prompt, n=len(answer.choices))
    assert canonical(client().decode(request, server().encode(request, answer))) == decodable(answer)


@given(data=st.data())
def test_a_truncated_stream_is_never_complete(data: st.DataObject) -> None:
    events = data.draw(streams())
    request = asked(stream=True)
    stream = written(request, events, data)
    reader = client().decoder(request)
    cut = data.draw(st.integers(0, stream.rindex(b'"finish_reason":"')))
    assert not any(isinstance(event, Usage) for event in reader.feed(stream[:cut]))
    with pytest.raises(Incomplete):
        reader.close()


@given(events=streams(reasoning=True, tools=True, with_logprobs=True), message=texts)
def test_no_text_contains_a_line_end_of_unicode(events: Events, message: str) -> None:
    """mlflow's and httpx's line readers split at every line end of Unicode."""
    encoder = server().encoder(asked(stream=True, logprobs=True))
    stream = encoder.feed(events) + encoder.fail(BackendFailed(message))
    for line in stream.decode().splitlines():
        assert line in ("", "data: [DONE]") or json.loads(line.removeprefix("data: "))


contents = texts | st.lists(st.builds(TextPart, texts), min_size=1, max_size=2).map(tuple)
calls = st.lists(st.builds(ToolCall, st.just("c1"), st.just("f"), texts), min_size=1, max_size=2).map(tuple)
users = st.builds(lambda content: (Message("user", content),), contents)
replies = st.builds(lambda content, user: (Message("assistant", content), *user), texts, users)
results = st.builds(
    lambda calls, content: (Message("assistant", None, tool_calls=calls), Message("tool", content, tool_call_id="c1")),
    calls,
    texts,
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[ChatPrompt]:
    """Conversations with the order of roles that the platform requires."""
    system = draw(st.just(()) | st.builds(lambda content: (Message("system", content),), texts))
    rest = draw(st.lists(replies, max_size=2))
    return (
        ChatPrompt(
            (*system, *draw(users), *(message for turn in rest for message in turn), *draw(results | st.just(())))
        ),
    )


limits = st.integers(1, 1000)
samplings = st.builds(
    Sampling,
    do_sample=st.just(True),
    temperature=st.none() | st.just(0.0) | st.floats(0.01, 2),
    top_k=st.none() | limits,
    top_p=st.none() | st.floats(0.01, 1),
)
stoppings = st.builds(
    Stopping, max_new_tokens=st.none() | limits, stop=st.lists(texts.filter(bool), max_size=6).map(tuple)
)
schema = {"type": "object", "properties": {"a": {}}}
TOOLS = (Tool("f", "d", schema, True), Tool("g", "e"))
CHOICES = (None, ToolChoice("none"), ToolChoice("auto"), ToolChoice("required"), ToolChoice("named", ("g",)))
GRAMMARS = (None, Grammar("json_object"), Grammar("json_schema", schema, "a", strict=True))


def same(seen: Generate, request: Generate) -> bool:
    return msgspec.structs.replace(seen, origin=None, stream_usage=False) == request


@given(
    st.builds(
        Generate,
        id=st.just("r1"),
        model=st.sampled_from(["m", "system.ai.llama", "a b/c?d"]),
        prompts=conversations(),
        raw_prompt=st.just(False),
        sampling=samplings,
        stopping=stoppings,
        stream=st.booleans(),
        n=st.integers(1, 128),
        tools=st.just(TOOLS),
        tool_choice=st.sampled_from(CHOICES),
        grammar=st.sampled_from(GRAMMARS),
        hints=st.fixed_dictionaries({}, optional={"reasoning_effort": st.just("low")}),
    ),
    st.integers(-1, 20),
)
def test_chat_requests(request: Generate, top: int) -> None:
    request = msgspec.structs.replace(request, logprobs=top >= 0, top_logprobs=max(0, top))
    assert same(mirrored(request), request)


@given(
    st.builds(
        Generate,
        id=st.just("r1"),
        model=st.just("m"),
        prompts=st.lists(st.builds(TextPrompt, texts), min_size=1, max_size=3).map(tuple),
        sampling=samplings,
        stopping=stoppings,
        n=st.integers(1, 5),
    )
)
def test_completion_requests(request: Generate) -> None:
    assert same(mirrored(request), request)
