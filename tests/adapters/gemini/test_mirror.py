"""The mirror law: what one codec encodes, the other decodes to the same."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Call, Reply
from adapters.fold import fold
from adapters.gemini import ADAPTER
from adapters.gemini.decode import THOUGHTS
from schemas.catalog import Catalog
from schemas.completion import Completion
from schemas.errors import BackendFailed, ContextLengthExceeded, Incomplete, ModelNotFound, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Embed,
    Embeddings,
    Events,
    Finished,
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

DIALECT = ADAPTER.dialects["gemini"]
SERVER, CLIENT = ADAPTER.server(DIALECT), ADAPTER.client(DIALECT)
ROUTES = {route.name: route for route in SERVER.routes}
METHODS = {"generateContent": "generate", "streamGenerateContent?alt=sse": "stream"}
REASONS = (FinishReason.EOS, FinishReason.LENGTH)


def call(model: str = "m") -> Call:
    return Call("r1", Catalog({}), {"model": model}, query={"alt": "sse"})


def mirrored(request: Generate) -> Generate:
    """The request as the server codec of a remote decodes it."""
    sent = CLIENT.encode(request)
    model, _, method = sent.path.removeprefix("/models/").partition(":")
    read = SERVER.decode(ROUTES[METHODS[method]], sent.body, call(model))
    assert isinstance(read, Generate)
    return msgspec.structs.replace(read, origin=None)


def from_client(**fields: object) -> Generate:
    """A request of a client of the protocol."""
    body = msgspec.json.encode({"contents": [{"parts": [{"text": "x"}]}], **fields})
    read = SERVER.decode(ROUTES["stream"], body, call())
    assert isinstance(read, Generate)
    return read


def decodable(answer: Completion) -> Completion:
    """The answer as a client can decode it: no tokens, counts of one candidate alone."""
    one = len(answer.choices) == 1
    choices = tuple(
        msgspec.structs.replace(choice, tokens=(), generated=answer.usage.completion_tokens if one else None)
        for choice in answer.choices
    )
    return msgspec.structs.replace(answer, choices=choices)


@given(data=st.data(), events=streams(choices=3, reasons=REASONS, model="m", reasoning=True))
def test_streams(data: st.DataObject, events: Events) -> None:
    request = asked(stream=True, n=3, outputs=(THOUGHTS,))
    encoder, reader = SERVER.encoder(request), CLIENT.decoder(request)
    written = b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))
    read: Events = ()
    for piece in data.draw(splits(written)):
        read += reader.feed(piece)
    assert canonical(read + reader.close()) == decodable(canonical(events))


@given(events=streams(choices=3, reasons=REASONS, model="m", reasoning=True))
def test_whole_answers(events: Events) -> None:
    request = asked(n=3, outputs=(THOUGHTS,))
    reply = SERVER.encode(request, fold(events))
    assert canonical(CLIENT.decode(request, reply)) == decodable(canonical(events))


@given(events=streams(reasons=REASONS, model="m", with_logprobs=True, ids=False, tops=2))
def test_log_probabilities(events: Events) -> None:
    request = asked(logprobs=True, top_logprobs=2)
    reader = CLIENT.decoder(request)
    read = fold((*reader.feed(SERVER.encoder(request).feed(events)), *reader.close()))
    [found], [wanted] = read.choices, fold(events).choices
    assert [(token.text, token.logprob) for token in found.tokens] == [
        (token.text, token.logprob) for token in wanted.tokens
    ]


@given(events=streams(reasons=REASONS, model="m"), data=st.data())
def test_a_truncated_stream_is_never_complete(events: Events, data: st.DataObject) -> None:
    request = asked(stream=True)
    written = SERVER.encoder(request).feed(events)
    reader = CLIENT.decoder(request)
    reader.feed(written[: data.draw(st.integers(0, written.rindex(b"data:")))])
    with pytest.raises(Incomplete):
        reader.close()


nonempty = texts.filter(bool)
images = st.just((ImagePart("data:image/png;base64,QUJD", "data"),))
calls = st.just((ToolCall("t1", "f", '{"a":1}'), ToolCall("t2", "f", "{}")))
results = (Message("tool", "one", "f", tool_call_id="t1"), Message("tool", '{"b":2}', "f", tool_call_id="t2"))
conversations = st.tuples(
    st.lists(st.builds(Message, st.just("system"), nonempty), max_size=1),
    st.lists(
        st.tuples(
            st.builds(Message, st.just("user"), nonempty),
            st.builds(Message, st.just("assistant"), nonempty, tool_calls=calls, reasoning=st.none() | nonempty),
            st.just(results[0]),
            st.just(results[1]),
        ),
        max_size=2,
    ),
    st.builds(Message, st.just("user"), nonempty | st.tuples(images, nonempty).map(lambda g: (*g[0], TextPart(g[1])))),
).map(lambda given: ChatPrompt((*given[0], *(turn for turns in given[1] for turn in turns), given[2])))


@given(
    prompt=conversations,
    sampling=st.builds(
        Sampling,
        do_sample=st.just(True),
        temperature=st.floats(0, 2),
        top_k=st.none() | st.integers(1, 100),
        top_p=st.none() | st.floats(0.01, 1),
        seed=st.none() | st.integers(0, 2**31 - 1),
    ),
    stopping=st.builds(
        Stopping, max_new_tokens=st.none() | st.integers(1, 999), stop=st.lists(st.just("END"), max_size=2).map(tuple)
    ),
    stream=st.booleans(),
    n=st.integers(1, 3),
    grammar=st.sampled_from([None, Grammar("json_object"), Grammar("json_schema", {"type": "object"})]),
    choice=st.sampled_from(
        [
            None,
            ToolChoice("auto"),
            ToolChoice("none"),
            ToolChoice("required"),
            ToolChoice("named", ("f",)),
            ToolChoice("allowed", ("f", "g"), required=True),
            ToolChoice("allowed", ("f",)),
        ]
    ),
    effort=st.sampled_from([None, "none", "low", "high"]),
)
def test_requests(
    prompt: ChatPrompt,
    sampling: Sampling,
    stopping: Stopping,
    stream: bool,
    n: int,
    grammar: Grammar | None,
    choice: ToolChoice | None,
    effort: str | None,
) -> None:
    request = asked(
        prompts=(prompt,),
        sampling=sampling,
        stopping=stopping,
        stream=stream,
        n=n,
        stream_usage=True,
        raw_prompt=False,
        tools=(Tool("f", "Does.", {"type": "object"}), Tool("g")),
        tool_choice=choice,
        grammar=grammar,
        hints={"reasoning_effort": effort} if effort else {},
        outputs=(THOUGHTS,) if effort not in (None, "none") else (),
    )
    assert mirrored(request) == request


@pytest.mark.parametrize(
    "fields",
    [
        {"prompts": (TextPrompt("x"),)},
        {"prompts": (TokensPrompt((1,)),)},
        {"echo": True},
        {"prompt_logprobs": True},
        {"sampling": Sampling(min_p=0.1)},
        {"sampling": Sampling(True, temperature=2.5)},
        {"stopping": Stopping(ignore_eos=True)},
        {"stopping": Stopping(stop=("x",), include_stop=True)},
        {"tools": (Tool("f"),), "parallel_tool_calls": False},
        {"grammar": Grammar("regex", "a")},
    ],
)
def test_requests_that_the_protocol_cannot_express_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode(asked(**fields))


def test_a_text_that_needs_the_chat_template_is_a_users_message() -> None:
    sent = json.loads(CLIENT.encode(asked(prompts=(TextPrompt("x"),), raw_prompt=False)).body)
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "x"}]}]


def test_calls_of_other_models_are_sent_with_the_signature_for_that() -> None:
    called = Message("assistant", tool_calls=(ToolCall("t", "f", "{}"),))
    sent = json.loads(CLIENT.encode(asked(prompts=(ChatPrompt((Message("user", "x"), called)),))).body)
    assert sent["contents"][1]["parts"] == [
        {"functionCall": {"id": "t", "name": "f", "args": {}}, "thoughtSignature": "skip_thought_signature_validator"}
    ]


def test_the_path_names_the_model() -> None:
    assert CLIENT.encode(asked(model="gemini 3")).path == "/models/gemini%203:generateContent"
    assert CLIENT.encode(asked(model="tunedModels/x")).path == "/tunedModels/x:generateContent"


def test_embeddings() -> None:
    request = Embed(id="r1", model="m", inputs=(TextPrompt("a"), TextPrompt("b")), dimensions=2)
    sent = CLIENT.encode_embed(request)
    assert sent.path == "/models/m:batchEmbedContents"
    read = SERVER.decode(ROUTES["batch_embed"], sent.body, call())
    assert isinstance(read, Embed)
    assert msgspec.structs.replace(read, origin=None) == request
    answer = Embeddings("m", ((0.5, 1.0), (0.0, 2.0)), Usage(0, 0))
    assert CLIENT.decode_embeddings(request, SERVER.encode_embeddings(read, answer)) == answer
    with pytest.raises(BackendFailed):
        CLIENT.decode_embeddings(request, Reply(b'{"embeddings": [{"values": [1]}]}'))
    with pytest.raises(UnsupportedFeature):
        CLIENT.encode_embed(msgspec.structs.replace(request, inputs=(TokensPrompt((1,)),)))
    one = SERVER.decode(ROUTES["embed"], b'{"content": {"parts": [{"text": "a"}]}, "new": 1}', call())
    assert isinstance(one, Embed)
    sent = CLIENT.encode_embed(one)
    assert (sent.path, json.loads(sent.body)["new"]) == ("/models/m:embedContent", 1)
    reply = Reply(b'{"embedding": {"values": [1.0]}, "more": 2}')
    assert SERVER.encode_embeddings(one, CLIENT.decode_embeddings(one, reply)).body == reply.body


# --- relaying -------------------------------------------------------------------------------------------------------


def test_a_client_of_the_protocol_gets_the_remotes_own_objects() -> None:
    request = from_client(safetySettings=[{"category": "X"}], tools=[{"googleSearch": {}}], new=1)
    sent = json.loads(CLIENT.encode(msgspec.structs.replace(request, model="far")).body)
    assert sent["tools"] == [{"googleSearch": {}}]
    assert sent["new"] == 1
    assert CLIENT.ignored(request) == ()
    frames = (
        b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"}]},"groundingMetadata":{}}]}\n\n'
        b'data: {"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":1}}\n\n'
    )
    reader = CLIENT.decoder(request)
    events = (*reader.feed(frames), *reader.close())
    assert len([event for event in events if isinstance(event, Relayed)]) == 2
    assert SERVER.encoder(request).feed(events) == frames


# --- answers and errors of remotes ----------------------------------------------------------------------------------


def test_a_refused_prompt_is_a_filtered_answer() -> None:
    blocked = Reply(b'{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":3}}')
    events = CLIENT.decode(asked(), blocked)
    assert [event.reason for event in events if isinstance(event, Finished)] == [FinishReason.CONTENT_FILTER]


def test_an_answer_with_calls_ends_with_calls() -> None:
    said = {"content": {"parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]}, "finishReason": "STOP"}
    answer = fold(CLIENT.decode(asked(), Reply(json.dumps({"candidates": [said]}).encode())))
    assert answer.choices[0].reason is FinishReason.TOOL_CALL
    assert [(call.name, call.arguments) for call in answer.choices[0].tool_calls] == [("f", '{"a":1}')]


def test_each_call_gets_an_id() -> None:
    """Gemini gives none, and clients of other protocols answer a call by its id."""
    parts = [{"functionCall": {"name": name, "args": {}}} for name in "fg"]
    said = {"content": {"parts": parts}, "finishReason": "STOP"}
    answer = fold(CLIENT.decode(asked(), Reply(json.dumps({"candidates": [said]}).encode())))
    assert [call.id for call in answer.choices[0].tool_calls] == ["call_r1_0_0", "call_r1_0_1"]


def test_images_of_a_result_follow_it() -> None:
    result = Message("tool", (TextPart("seen"), ImagePart("data:image/png;base64,QUJD", "data")), tool_call_id="t")
    called = Message("assistant", tool_calls=(ToolCall("t", "f", "{}"),))
    sent = json.loads(CLIENT.encode(asked(prompts=(ChatPrompt((Message("user", "x"), called, result)),))).body)
    assert sent["contents"][2]["parts"] == [
        {"functionResponse": {"name": "f", "response": {"result": "seen"}, "id": "t"}},
        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
    ]


@pytest.mark.parametrize(
    "frame",
    [
        b"[]",
        b"x",
        b'{"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL"}]}',
        b'{"candidates":[{"index":1,"content":{"parts":[{"text":"x"}]}}]}',
        b'{"error":{"code":500,"message":"secret","status":"INTERNAL"}}',
    ],
)
def test_malformed_and_failed_streams(frame: bytes) -> None:
    with pytest.raises(BackendFailed) as failed:
        CLIENT.decoder(asked(stream=True)).feed(b"data: %b\n\n" % frame)
    assert "secret" not in failed.value.message


def test_error_statuses() -> None:
    missing = CLIENT.error(Reply(b'{"error":{"code":404,"message":"models/x is not found"}}', 404))
    assert isinstance(missing, ModelNotFound)
    assert missing.message == "models/x is not found"
    long = b'[{"error":{"message":"The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]'
    assert isinstance(CLIENT.error(Reply(long, 400)), ContextLengthExceeded)
