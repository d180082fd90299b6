"""The mirror law: what one codec encodes, the other decodes to the same."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Call, Reply
from adapters.fold import fold
from adapters.ollama import ADAPTER
from adapters.ollama.server import OllamaServer
from schemas.catalog import Catalog, ModelCard
from schemas.completion import Completion
from schemas.errors import BackendFailed, ContextLengthExceeded, Incomplete, ModelNotFound, UnsupportedFeature
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
    Relayed,
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
from tests.adapters.laws import asked, batches, canonical, splits, streams, texts

DIALECT = ADAPTER.dialects["ollama"]
SERVER, CLIENT = OllamaServer(DIALECT, now=lambda: 1.5), ADAPTER.client(DIALECT)
ROUTES = {route.path: route for route in SERVER.routes}
CALL = Call("r1", Catalog({"m": ModelCard(name="m")}))
REASONS = (FinishReason.EOS, FinishReason.LENGTH)


def mirrored(request: Generate) -> Generate:
    """The request as the server codec of a remote decodes it."""
    sent = CLIENT.encode(request)
    read = SERVER.decode(ROUTES[sent.path], sent.body, CALL)
    assert isinstance(read, Generate)
    return msgspec.structs.replace(read, origin=None)


def from_client(**fields: object) -> Generate:
    """A request of a client of the protocol."""
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})
    read = SERVER.decode(ROUTES["/api/chat"], body, CALL)
    assert isinstance(read, Generate)
    return read


def decodable(answer: Completion) -> Completion:
    """The answer as a client can decode it: no tokens, the usage's count of tokens."""
    choices = tuple(
        msgspec.structs.replace(choice, tokens=(), generated=answer.usage.completion_tokens)
        for choice in answer.choices
    )
    return msgspec.structs.replace(answer, choices=choices)


@given(data=st.data(), events=streams(reasons=REASONS, model="m", reasoning=True))
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


@given(events=streams(reasons=REASONS, model="m", with_logprobs=True, ids=False, tops=2))
def test_log_probabilities(events: Events) -> None:
    request = from_client(logprobs=True, top_logprobs=2)
    other = msgspec.structs.replace(request, origin=None)
    reader = CLIENT.decoder(other)
    read = fold(reader.feed(SERVER.encoder(request).feed(events)))
    [found], [wanted] = read.choices, fold(events).choices
    assert [(token.text, token.logprob) for token in found.tokens] == [
        (token.text, token.logprob) for token in wanted.tokens
    ]


@given(events=streams(reasons=REASONS, model="m"), data=st.data())
def test_a_truncated_stream_is_never_complete(events: Events, data: st.DataObject) -> None:
    request = asked(stream=True)
    written = SERVER.encoder(request).feed(events)
    reader = CLIENT.decoder(request)
    reader.feed(written[: data.draw(st.integers(0, written.rindex(b'{"model"')))])
    with pytest.raises(Incomplete):
        reader.close()


def test_a_last_line_may_have_no_end() -> None:
    reader = CLIENT.decoder(asked(stream=True))
    assert reader.feed(b'{"model":"m","response":"","done":true,"done_reason":"stop","eval_count":1}') == ()
    assert reader.close()[-1] == Usage(0, 1)


nonempty = texts.filter(bool)
calls = st.just((ToolCall("t1", "f", '{"a":1}'), ToolCall("t2", "f", "{}")))
conversations = st.lists(
    st.builds(Message, st.just("system"), nonempty)
    | st.builds(Message, st.just("user"), nonempty)
    | st.builds(Message, st.just("user"), nonempty.map(lambda text: (ImagePart("QUJD", "data"), TextPart(text))))
    | st.builds(Message, st.just("assistant"), nonempty, tool_calls=calls, reasoning=st.none() | nonempty),
    min_size=1,
    max_size=4,
).map(lambda given: ChatPrompt(tuple(given)))


@given(
    prompt=conversations,
    sampling=st.builds(
        Sampling,
        do_sample=st.just(True),
        temperature=st.floats(0, 2),
        top_k=st.none() | st.integers(1, 100),
        top_p=st.none() | st.floats(0.01, 1),
        min_p=st.none() | st.floats(0.01, 1),
        seed=st.none() | st.integers(0, 2**64 - 2),
    ),
    stopping=st.builds(
        Stopping, max_new_tokens=st.none() | st.integers(1, 999), stop=st.lists(st.just("END"), max_size=2).map(tuple)
    ),
    stream=st.booleans(),
    grammar=st.sampled_from([None, Grammar("json_object"), Grammar("json_schema", {"type": "object"})]),
    effort=st.sampled_from([None, "none", "low", "medium", "high"]),
)
def test_requests(
    prompt: ChatPrompt,
    sampling: Sampling,
    stopping: Stopping,
    stream: bool,
    grammar: Grammar | None,
    effort: str | None,
) -> None:
    request = asked(
        prompts=(prompt,),
        sampling=sampling,
        stopping=stopping,
        stream=stream,
        stream_usage=True,
        raw_prompt=False,
        tools=(Tool("f", "Does.", {"type": "object"}),),
        grammar=grammar,
        hints={"reasoning_effort": effort} if effort else {},
    )
    assert mirrored(request) == request


def test_texts() -> None:
    raw = asked(prompts=(TextPrompt("Hi"),), sampling=Sampling(True), stream_usage=True)
    assert mirrored(raw) == raw
    filled = msgspec.structs.replace(raw, suffix="end")
    assert mirrored(filled) == filled


def test_penalties_look_at_all_tokens() -> None:
    sent = json.loads(CLIENT.encode(asked(sampling=Sampling(True, repetition_penalty=1.2))).body)
    assert sent["options"] == {"repeat_penalty": 1.2, "repeat_last_n": -1}
    greedy = json.loads(CLIENT.encode(asked()).body)
    assert greedy["options"] == {"temperature": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"echo": True},
        {"prompt_logprobs": True},
        {"sampling": Sampling(logit_bias=((1, 2.0),))},
        {"stopping": Stopping(ignore_eos=True)},
        {"stopping": Stopping(stop=("x",), include_stop=True)},
        {"prompts": (TokensPrompt((1,)),)},
        {"tools": (Tool("f"),), "tool_choice": ToolChoice("required")},
        {"tools": (Tool("f"),), "parallel_tool_calls": False},
        {"grammar": Grammar("regex", "a")},
        {"prompts": (ChatPrompt((Message("user", (ImagePart("https://a.example/b.png", "url"),)),)),)},
    ],
)
def test_requests_that_the_protocol_cannot_express_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode(asked(**fields))


def test_no_tools_are_sent_if_none_may_be_called() -> None:
    sent = json.loads(CLIENT.encode(asked(tools=(Tool("f"),), tool_choice=ToolChoice("none"))).body)
    assert "tools" not in sent


def test_each_call_gets_an_id() -> None:
    """Older servers give none, and clients of other protocols answer a call by its id."""
    called = [{"function": {"name": name, "arguments": {}}} for name in "fg"]
    lines = [{"message": {"tool_calls": [call]}, "done": False} for call in called]
    reader = CLIENT.decoder(asked(stream=True))
    data = b"".join(json.dumps(line).encode() + b"\n" for line in (*lines, {"done": True}))
    answer = fold((*reader.feed(data), *reader.close()))
    assert [call.id for call in answer.choices[0].tool_calls] == ["call_r1_0", "call_r1_1"]


def test_embeddings() -> None:
    request = Embed(id="r1", model="m", inputs=(TextPrompt("a"), TextPrompt("b")), dimensions=2)
    sent = CLIENT.encode_embed(request)
    read = SERVER.decode(ROUTES[sent.path], sent.body, CALL)
    assert isinstance(read, Embed)
    assert msgspec.structs.replace(read, origin=None) == request
    answer = Embeddings("m", ((0.5, 1.0), (0.0, 2.0)), Usage(4, 0))
    assert CLIENT.decode_embeddings(request, SERVER.encode_embeddings(read, answer)) == answer
    with pytest.raises(BackendFailed):
        CLIENT.decode_embeddings(request, Reply(b'{"embeddings": [[1]]}'))
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode_embed(msgspec.structs.replace(request, inputs=(TokensPrompt((1,)),)))


# --- relaying -------------------------------------------------------------------------------------------------------


def test_a_client_of_the_protocol_gets_the_remotes_own_lines() -> None:
    request = from_client(_debug=1, options={"mirostat": 1}, stream=True)
    sent = json.loads(CLIENT.encode(msgspec.structs.replace(request, model="far")).body)
    assert sent == {
        "model": "far",
        "messages": [{"role": "user", "content": "x"}],
        "_debug": 1,
        "options": {"mirostat": 1},
        "stream": True,
    }
    assert CLIENT.ignored(request) == ()
    lines = b'{"model":"far","message":{"content":"Hi"},"done":false,"new":1}\n{"model":"far","done":true,"x":2}\n'
    events = CLIENT.decoder(request).feed(lines)
    assert [event.data for event in events if isinstance(event, Relayed)] == lines.splitlines()
    assert SERVER.encoder(request).feed(events) == lines


def test_older_embeddings_are_relayed() -> None:
    request = SERVER.decode(ROUTES["/api/embeddings"], b'{"model": "m", "prompt": "a"}', CALL)
    assert isinstance(request, Embed)
    assert CLIENT.encode_embed(request).path == "/api/embeddings"
    answer = CLIENT.decode_embeddings(request, Reply(b'{"embedding": [1.0]}'))
    assert SERVER.encode_embeddings(request, answer).body == b'{"embedding": [1.0]}'


# --- errors of remotes ----------------------------------------------------------------------------------------------


def test_an_error_within_a_stream() -> None:
    reader = CLIENT.decoder(asked(stream=True))
    with pytest.raises(BackendFailed):
        reader.feed(b'{"message":{"content":"Hi"},"done":false}\n{"error":"an error was encountered"}\n')
    assert reader.before[-1].text == "Hi"  # type: ignore[union-attr]


@pytest.mark.parametrize("line", [b"[]\n", b"x\n", b'{"done":true,"done_reason":"melted"}\n', b"{" * (2 << 20)])
def test_malformed_streams(line: bytes) -> None:
    with pytest.raises(BackendFailed):
        CLIENT.decoder(asked(stream=True)).feed(line)


def test_error_statuses() -> None:
    missing = CLIENT.error(Reply(b'{"error":"model \'x\' not found"}', 404))
    assert isinstance(missing, ModelNotFound)
    assert missing.message == "model 'x' not found"
    long = CLIENT.error(Reply(b'{"error":"the input length exceeds the context length"}', 400))
    assert isinstance(long, ContextLengthExceeded)
