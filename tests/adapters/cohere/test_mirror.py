"""The mirror law: what the client codec encodes, a server of the protocol decodes to the same, and the other way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.base import Reply
from adapters.cohere import ADAPTER
from schemas.completion import Completion
from schemas.errors import (
    BackendFailed,
    BackendTimeout,
    ContextLengthExceeded,
    Incomplete,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Embed,
    Embeddings,
    Events,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Origin,
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
from schemas.origin import Relay
from tests.adapters.cohere.server import REASONS, read_request, write_answer, write_stream
from tests.adapters.laws import batches, canonical, splits, streams, texts

CLIENT = ADAPTER.client(ADAPTER.dialects["cohere"])


def asked(**fields: object) -> Generate:
    fields = {"id": "r1", "model": "m", "prompts": (ChatPrompt((Message("user", "x"),)),), "raw_prompt": False} | fields
    return Generate(**fields)  # type: ignore[arg-type]


def decodable(answer: Completion) -> Completion:
    """The answer as a client can decode it: no tokens, the usage's count of tokens."""
    choices = tuple(
        replace(choice, tokens=(), generated=answer.usage.completion_tokens, stop=None) for choice in answer.choices
    )
    return replace(answer, choices=choices)


@given(data=st.data(), events=streams(reasons=tuple(REASONS), model="m", reasoning=True, tools=True))
def test_streams(data: st.DataObject, events: Events) -> None:
    reader = CLIENT.decoder(asked(stream=True))
    # However the events come, they are written alike.
    written = write_stream(tuple(event for batch in data.draw(batches(events)) for event in batch))
    read: Events = ()
    for piece in data.draw(splits(written)):
        read += reader.feed(piece)
    assert canonical(read + reader.close()) == decodable(replace(canonical(events), model="m"))


@given(events=streams(reasons=tuple(REASONS), model="m", reasoning=True, tools=True))
def test_whole_answers(events: Events) -> None:
    reply = Reply(json.dumps(write_answer(events)).encode())
    assert canonical(CLIENT.decode(asked(), reply)) == decodable(canonical(events))


@given(events=streams(reasons=tuple(REASONS), model="m", tools=True), data=st.data())
def test_a_truncated_stream_is_never_complete(events: Events, data: st.DataObject) -> None:
    written = write_stream(events)
    reader = CLIENT.decoder(asked(stream=True))
    end = written.rindex(b"data: {")
    reader.feed(written[: data.draw(st.integers(0, end))])
    with pytest.raises(Incomplete):
        reader.close()


nonempty = texts.filter(bool)
calls = st.just((ToolCall("t1", "f", '{"a":1}'), ToolCall("t2", "f", "{}")))
IMAGE = ImagePart("data:image/png;base64,QUJD", "data", "low")
conversations = st.lists(
    st.builds(Message, st.just("system"), nonempty)
    | st.builds(Message, st.just("user"), nonempty)
    | st.builds(Message, st.just("user"), nonempty.map(lambda text: (IMAGE, TextPart(text))))
    | st.builds(Message, st.just("assistant"), nonempty, reasoning=st.none() | nonempty)
    | st.builds(Message, st.just("assistant"), st.none() | nonempty, tool_calls=calls, reasoning=st.none() | nonempty)
    | st.builds(Message, st.just("tool"), nonempty, tool_call_id=st.just("t1")),
    min_size=1,
    max_size=4,
).map(lambda given: ChatPrompt(tuple(given)))
penalties = st.none() | st.floats(0, 1)


@given(
    prompt=conversations,
    sampling=st.builds(
        Sampling,
        do_sample=st.just(True),
        temperature=st.floats(0, 1),
        top_k=st.none() | st.integers(1, 500),
        top_p=st.none() | st.floats(0.01, 0.99),
        frequency_penalty=penalties,
        presence_penalty=penalties,
        seed=st.none() | st.integers(0, 2**64 - 1),
    ),
    stopping=st.builds(
        Stopping, max_new_tokens=st.none() | st.integers(1, 999), stop=st.lists(st.just("END"), max_size=2).map(tuple)
    ),
    stream=st.booleans(),
    strict=st.sampled_from([None, True]),
    grammar=st.sampled_from([None, Grammar("json_object"), Grammar("json_schema", {"type": "object"})]),
    choice=st.sampled_from([None, ToolChoice("required"), ToolChoice("none")]),
    thinking=st.sampled_from([None, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 7}]),
)
def test_requests(
    prompt: ChatPrompt,
    sampling: Sampling,
    stopping: Stopping,
    stream: bool,
    strict: bool | None,
    grammar: Grammar | None,
    choice: ToolChoice | None,
    thinking: dict[str, object] | None,
) -> None:
    request = asked(
        prompts=(prompt,),
        sampling=sampling,
        stopping=stopping,
        stream=stream,
        tools=(Tool("f", "Does.", {"type": "object"}, strict),),
        grammar=grammar,
        tool_choice=choice,
        hints={"thinking": thinking} if thinking else {},
    )
    assert read_request(json.loads(CLIENT.encode(request).body)) == request


def test_bytes_of_a_request() -> None:
    request = asked(
        prompts=(ChatPrompt((Message("developer", "Be brief."), Message("user", "Hi"))),),
        sampling=Sampling(True, temperature=0.5, top_p=1.0, top_k=3),
        stopping=Stopping(9, stop=("END",)),
        tools=(Tool("f"),),
        tool_choice=ToolChoice("required"),
        hints={"reasoning_effort": "none"},
        stream=True,
    )
    sent = CLIENT.encode(request)
    assert (sent.method, sent.path) == ("POST", "/v2/chat")
    assert sent.body == (
        b'{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],'
        b'"stream":true,"max_tokens":9,"stop_sequences":["END"],"temperature":0.5,"p":0.99,"k":3,'
        b'"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],'
        b'"tool_choice":"REQUIRED","thinking":{"type":"disabled"}}'
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"echo": True},
        {"logprobs": True},
        {"sampling": Sampling(min_p=0.1)},
        {"sampling": Sampling(True, temperature=1.5)},
        {"sampling": Sampling(True, top_k=501)},
        {"sampling": Sampling(True, frequency_penalty=-0.5)},
        {"stopping": Stopping(ignore_eos=True)},
        {"stopping": Stopping(stop=("x",), include_stop=True)},
        {"prompts": (TokensPrompt((1,)),)},
        {"prompts": (TextPrompt("x"),), "raw_prompt": True},
        {"tools": (Tool("f"),), "tool_choice": ToolChoice("named", ("f",))},
        {"parallel_tool_calls": False},
        {"grammar": Grammar("regex", "a")},
    ],
)
def test_requests_that_the_protocol_cannot_express_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode(asked(**fields))


@pytest.mark.parametrize(
    ("hints", "ignored"),
    [
        ({"reasoning_effort": "high"}, ()),
        ({"reasoning_effort": "low"}, ("reasoning_effort",)),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, ()),
        ({"verbosity": "low"}, ("verbosity",)),
    ],
)
def test_what_has_no_field_is_named(hints: dict[str, object], ignored: tuple[str, ...]) -> None:
    assert CLIENT.ignored(asked(hints=hints)) == ignored


# --- answers --------------------------------------------------------------------------------------------------------

START = b'data: {"type":"message-start","id":"i","delta":{"message":{"role":"assistant"}}}\n\n'


def test_a_plan_is_reasoning_and_unknown_events_are_skipped() -> None:
    reader = CLIENT.decoder(asked(stream=True))
    events = reader.feed(
        START + b'data: {"type":"debug","prompt":"x"}\n\n'
        b'data: {"type":"tool-plan-delta","delta":{"message":{"tool_plan":"I will"}}}\n\n'
        b'data: {"type":"citation-start","index":0,"delta":{"message":{"citations":{"start":0}}}}\n\n'
        b'data: {"type":"tool-call-start","index":1,"delta":{"message":{"tool_calls":{"id":"a","type":"function",'
        b'"function":{"name":"f","arguments":""}}}}}\n\n'
        b'data: {"type":"tool-call-delta","index":1,"delta":{"message":{"tool_calls":{"function":'
        b'{"arguments":"{}"}}}}}\n\n'
        b'data: {"type":"tool-call-end","index":1}\n\n'
        b'data: {"type":"message-end","delta":{"finish_reason":"TOOL_CALL","usage":{"cached_tokens":2,'
        b'"billed_units":{"input_tokens":3,"output_tokens":4}}}}\n\ndata: [DONE]\n\n'
    )
    answer = canonical(events + reader.close())
    [choice] = answer.choices
    assert (choice.reasoning, choice.tool_calls) == ("I will", (ToolCall("a", "f", "{}"),))
    assert (choice.reason, answer.usage) == (FinishReason.TOOL_CALL, Usage(3, 4, 2))


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (b"[]", BackendFailed),
        (b'{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":1}}}}', BackendFailed),
        (b'{"type":"tool-call-delta","index":0,"delta":{"message":{"tool_calls":{"id":"a"}}}}', BackendFailed),
        (b'{"type":"message-end","delta":{"finish_reason":"MELTED"}}', BackendFailed),
        (b'{"type":"message-end","delta":{"finish_reason":"ERROR","error":"no"}}', BackendFailed),
        (b'{"type":"message-end","delta":{"finish_reason":"TIMEOUT"}}', BackendTimeout),
    ],
)
def test_faulty_frames(frame: bytes, error: type[Exception]) -> None:
    reader = CLIENT.decoder(asked(stream=True))
    with pytest.raises(error):
        reader.feed(START + b"data: " + frame + b"\n\n")
    assert len(reader.before) == 1


def test_a_stream_begins_with_its_start() -> None:
    with pytest.raises(BackendFailed):
        CLIENT.decoder(asked(stream=True)).feed(b'data: {"type":"message-end","delta":{}}\n\n')


def test_error_statuses() -> None:
    missing = CLIENT.error(Reply(b'{"id":"i","message":"model \'x\' not found"}', 404))
    assert isinstance(missing, ModelNotFound)
    assert missing.message == "model 'x' not found"
    long = CLIENT.error(Reply(b'{"message":"too many tokens: the limit for this model is 9"}', 400))
    assert isinstance(long, ContextLengthExceeded)
    busy = CLIENT.error(Reply(b'{"message":"slow down"}', 429, headers=(("retry-after", "3"),)))
    assert isinstance(busy, Overloaded)
    assert busy.retry_after == 3
    assert isinstance(CLIENT.error(Reply(b'{"message":"bad"}', 422)), InvalidRequest)
    assert isinstance(CLIENT.error(Reply(b'{"message":"invalid token"}', 498)), BackendFailed)


# --- embeddings and ranks -------------------------------------------------------------------------------------------


def test_embeddings() -> None:
    request = Embed(id="r1", model="m", inputs=(TextPrompt("a"), TextPrompt("b")), dimensions=256)
    sent = CLIENT.encode_embed(request)
    assert sent.path == "/v2/embed"
    assert sent.body == (
        b'{"model":"m","texts":["a","b"],"input_type":"search_document","embedding_types":["float"],'
        b'"output_dimension":256,"truncate":"NONE"}'
    )
    reply = Reply(b'{"embeddings":{"float":[[0.5,1],[0,2]]},"meta":{"billed_units":{"input_tokens":4.0}}}')
    assert CLIENT.decode_embeddings(request, reply) == Embeddings("m", ((0.5, 1.0), (0.0, 2.0)), Usage(4, 0))
    for body in (b'{"embeddings":{"float":[[1]]}}', b'{"embeddings":{"int8":[[1],[2]]}}', b"x"):
        with pytest.raises(BackendFailed):
            CLIENT.decode_embeddings(request, Reply(body))
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode_embed(replace(request, inputs=(TokensPrompt((1,)),)))


def test_a_client_may_say_what_embeddings_are_for() -> None:
    request = Embed(
        id="r1",
        model="m",
        inputs=(TextPrompt("a"),),
        extra={"input_type": "search_query", "x": 1},
        unknown=("input_type", "x"),
    )
    assert json.loads(CLIENT.encode_embed(request).body)["input_type"] == "search_query"
    assert CLIENT.ignored(request) == ("x",)
    with pytest.raises(InvalidRequest, match="input_type"):
        CLIENT.encode_embed(replace(request, extra={"input_type": "else"}))


def test_ranks_are_relayed() -> None:
    origin = Origin("openai", "openai", "rerank", b'{"model":"a","query":"q","documents":["x"],"new":1}')
    assert (origin.dialect, origin.operation) in CLIENT.relayed
    sent = CLIENT.encode_relay(Relay(id="r1", model="rerank-v3.5", origin=origin))
    assert sent.path == "/v2/rerank"
    assert sent.body == b'{"model":"rerank-v3.5","query":"q","documents":["x"],"new":1}'
