"""The mirror law: what one codec encodes, the other decodes to the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.anthropic import ADAPTER
from adapters.anthropic.messages import CONTINUED
from adapters.base import Call, Reply
from adapters.fold import fold
from schemas.catalog import Catalog
from schemas.completion import Completion
from schemas.errors import (
    BackendFailed,
    BackendUnavailable,
    GatewayError,
    Incomplete,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Events,
    FinishReason,
    Generate,
    ImagePart,
    Message,
    Sampling,
    Stopping,
    TemplateOptions,
    TextPart,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.adapters.laws import asked, batches, canonical, splits, streams, texts

SERVER = ADAPTER.server(ADAPTER.dialects["anthropic"])
CLIENT = ADAPTER.client(ADAPTER.dialects["anthropic"])
MESSAGES = SERVER.routes[0]
REASONS = (FinishReason.EOS, FinishReason.LENGTH, FinishReason.TOOL_CALL)


def mirrored(request: Generate) -> Generate:
    """The request as the server codec of a remote decodes it."""
    sent = CLIENT.encode(request)
    assert sent.path == MESSAGES.path
    read = SERVER.decode(MESSAGES, sent.body, Call("r1", Catalog({})))
    assert isinstance(read, Generate)
    return msgspec.structs.replace(read, origin=None)


def decodable(answer: Completion) -> Completion:
    """The answer as a client can decode it: no tokens, an object for no arguments, the usage's count of tokens."""
    choices = tuple(
        msgspec.structs.replace(
            choice,
            tokens=(),
            generated=answer.usage.completion_tokens,
            tool_calls=tuple(ToolCall(call.id, call.name, call.arguments or "{}") for call in choice.tool_calls),
        )
        for choice in answer.choices
    )
    return msgspec.structs.replace(answer, choices=choices)


@given(data=st.data(), events=streams(reasons=REASONS, model="m", tools=True, reasoning=True))
def test_streams(data: st.DataObject, events: Events) -> None:
    request = asked(stream=True)
    encoder, reader = SERVER.encoder(request), CLIENT.decoder(request)
    written = b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))
    read: Events = ()
    for piece in data.draw(splits(written)):
        read += reader.feed(piece)
    assert canonical(read + reader.close()) == decodable(canonical(events))


@given(events=streams(reasons=REASONS, model="m", reasoning=True))
def test_whole_answers(events: Events) -> None:
    request = asked()
    reply = SERVER.encode(request, fold(events))
    assert canonical(CLIENT.decode(request, reply)) == decodable(canonical(events))


@given(events=streams(reasons=REASONS, model="m"), data=st.data())
def test_a_truncated_stream_is_never_complete(events: Events, data: st.DataObject) -> None:
    request = asked(stream=True)
    written = SERVER.encoder(request).feed(events)
    last_delta = written.index(b"event: message_delta")
    reader = CLIENT.decoder(request)
    reader.feed(written[: data.draw(st.integers(0, last_delta))])
    with pytest.raises(Incomplete):
        reader.close()


nonempty = texts.filter(str.strip)  # the API refuses blocks without any word
blocks = st.lists(
    st.builds(TextPart, nonempty) | st.just(ImagePart("data:image/png;base64,QUJD", "data")), min_size=1, max_size=3
).map(tuple)
replies = st.lists(st.builds(TextPart, nonempty), min_size=1).map(tuple)
calls = st.just((ToolCall("t1", "f", '{"a":1}'), ToolCall("t2", "f", "{}")))
conversations = st.tuples(
    st.lists(st.builds(Message, st.just("system"), nonempty), max_size=1),
    st.lists(
        st.tuples(
            st.builds(Message, st.just("user"), blocks),
            st.builds(Message, st.just("assistant"), replies, tool_calls=calls),
        ),
        max_size=2,
    ),
    st.builds(Message, st.just("user"), blocks),
).map(lambda given: ChatPrompt((*given[0], *(turn for pair in given[1] for turn in pair), given[2])))


@given(
    prompt=conversations,
    sampling=st.builds(
        Sampling,
        do_sample=st.just(True),
        temperature=st.floats(0, 1),
        top_k=st.none() | st.integers(1, 100),
        top_p=st.none() | st.floats(0.01, 1),
    ),
    stopping=st.builds(
        Stopping, max_new_tokens=st.integers(1, 999), stop=st.lists(st.just("END"), max_size=2).map(tuple)
    ),
    stream=st.booleans(),
    choice=st.none() | st.sampled_from([ToolChoice("auto"), ToolChoice("required"), ToolChoice("named", ("f",))]),
    parallel=st.none() | st.booleans(),
    user=st.none() | nonempty,
)
def test_requests(
    prompt: ChatPrompt,
    sampling: Sampling,
    stopping: Stopping,
    stream: bool,
    choice: ToolChoice | None,
    parallel: bool | None,
    user: str | None,
) -> None:
    request = Generate(
        id="r1",
        model="m",
        prompts=(prompt,),
        sampling=sampling,
        stopping=stopping,
        stream=stream,
        stream_usage=True,
        raw_prompt=False,
        tools=(Tool("f", "Does.", {"type": "object"}),),
        tool_choice=choice if choice is not None or parallel is None else ToolChoice("auto"),
        parallel_tool_calls=parallel if choice is not None else None,
        user=user,
    )
    if choice is None:
        request = msgspec.structs.replace(request, tool_choice=None)
    assert mirrored(request) == request


@pytest.mark.parametrize("arguments", ["{", "[]", '{"a":' * 5000], ids=["cut", "an array", "no end of members"])
def test_a_tool_call_whose_arguments_are_no_object_is_refused(arguments: str) -> None:
    called = Message("assistant", tool_calls=(ToolCall("t", "f", arguments),))
    with pytest.raises(InvalidRequest):
        CLIENT.encode(asked(prompts=(ChatPrompt((Message("user", "x"), called)),)))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"echo": True},
        {"sampling": Sampling(seed=3)},
        {"sampling": Sampling(temperature=1.5)},
        {"stopping": Stopping(ignore_eos=True)},
        {"prompts": (TokensPrompt((1,)),)},
        {"tools": (Tool("f"),), "tool_choice": ToolChoice("allowed", ("f",))},
        {"prompts": (ChatPrompt((Message("user", "x"),), CONTINUED),)},
        {"prompts": (ChatPrompt((Message("user", "x"),), TemplateOptions(False)),)},
        {"prompts": (ChatPrompt((Message("user", "x"),), TemplateOptions(variables={"x": 1})),)},
    ],
)
def test_requests_that_the_protocol_cannot_express_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode(asked(**fields))


def test_an_answer_that_goes_on_in_the_last_turn() -> None:
    prompt = ChatPrompt((Message("user", (TextPart("x"),)), Message("assistant", (TextPart("Hello,"),))), CONTINUED)
    assert mirrored(asked(prompts=(prompt,))).prompts == (prompt,)


def test_bare_base64_is_sent_with_the_media_type_of_its_format() -> None:
    images = (ImagePart("/9j/4AAQ", "data"), ImagePart("iVBORw0KGgo=", "data"))
    request = asked(prompts=(ChatPrompt((Message("user", images),)),))
    turns = json.loads(CLIENT.encode(request).body)["messages"]
    assert [block["source"] for block in turns[0]["content"]] == [
        {"type": "base64", "media_type": "image/jpeg", "data": "/9j/4AAQ"},
        {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    ]


@pytest.mark.parametrize("empty", ["", "\n\n", (TextPart(" "),)])
def test_texts_without_a_word_are_left_out(empty: Any) -> None:
    """The API refuses blocks of whitespace, and turns without blocks."""
    call = ToolCall("functions.f:0", "f", "{}")
    messages = (
        Message("user", "x"),
        Message("assistant", empty),
        Message("user", "y"),
        Message("assistant", empty, tool_calls=(call,)),
        Message("tool", empty, tool_call_id=call.id),
    )
    sent = json.loads(CLIENT.encode(asked(prompts=(ChatPrompt(messages),))).body)
    id = "functions_f_0"  # of the characters that the API takes
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": []}]},
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tool_choice": ToolChoice("none")}, None),
        ({"parallel_tool_calls": False}, None),
        ({"tools": (Tool("f"),), "tool_choice": ToolChoice("none"), "parallel_tool_calls": True}, {"type": "none"}),
        ({"tools": (Tool("f"),), "parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_a_choice_is_sent_where_the_api_takes_one(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert json.loads(CLIENT.encode(asked(**fields)).body).get("tool_choice") == expected


def test_a_drawn_seed_is_not_sent() -> None:
    assert b"seed" not in CLIENT.encode(asked(sampling=Sampling(seed=3, seed_drawn=True))).body


@pytest.mark.parametrize(
    "data",
    [
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b'event: x\ndata: {"type":"content_block_delta","index":0,"delta":{"text":"x"}}\n\n',
        b"data: <html>\n\n",
        b"data: [[[\n\n",
        b'data: {"type":"error","error":{"type":"api_error","message":"secret"}}\n\n',
        b'data: {"type":"message_start","message":{}}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"odd"}}\n\n',
    ],
)
def test_malformed_answers_are_failures(data: bytes) -> None:
    reader = CLIENT.decoder(asked(stream=True))
    with pytest.raises((BackendFailed, Incomplete)) as raised:
        _ = (reader.feed(data), reader.close())
    assert "secret" not in raised.value.message


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error"])
def test_an_overload_within_a_stream_is_one(kind: str) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "secret"}}
    with pytest.raises(Overloaded) as raised:
        CLIENT.decoder(asked(stream=True)).feed(b"data: %b\n\n" % json.dumps(error).encode())
    assert "secret" not in raised.value.message


def test_a_second_message_start_is_a_failure() -> None:
    reader = CLIENT.decoder(asked(stream=True))
    start = b'data: {"type":"message_start","message":{}}\n\n'
    assert len(reader.feed(start + start)) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, BackendFailed),
        (403, BackendFailed),
        (404, ModelNotFound),
        (429, Overloaded),
        (500, BackendFailed),
        (529, BackendUnavailable),
    ],
)
def test_statuses(status: int, kind: type[GatewayError]) -> None:
    body = b'{"type":"error","error":{"type":"x","message":"nonempty"}}'
    error = CLIENT.error(Reply(body, status, headers=(("Retry-After", "7"),)))
    assert isinstance(error, kind)
    assert ("nonempty" in error.message) == (status in (400, 404))
    assert error.retry_after == (7 if status in (429, 529) else None)
