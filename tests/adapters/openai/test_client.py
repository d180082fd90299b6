"""What the client face sends, and what it makes of all the servers that call themselves compatible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Reply
from adapters.fold import fold
from adapters.openai.client import OpenAIClient
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    ContextLengthExceeded,
    GatewayError,
    Incomplete,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Origin,
    Sampling,
    Started,
    Stopping,
    TextPart,
    TextPrompt,
    Token,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    ToolDelta,
    TopToken,
    Usage,
)

from .scenes import ECHOED, GOLDEN, PROMPT_TOKENS, chat, client, completion, events_of, reply, server


def asked(text: str = "Once", **fields: Any) -> Generate:
    """As a client of TGI asks: raw, and greedy unless told otherwise."""
    return Generate(id="r1", model="up", prompts=(TextPrompt(text),), **fields)


def talk(*messages: Message, **fields: Any) -> Generate:
    fields = {"sampling": Sampling(do_sample=True)} | fields
    prompt = ChatPrompt(messages or (Message("user", "Hello"),))
    return Generate(id="r1", model="up", prompts=(prompt,), raw_prompt=False, **fields)


def body(request: Generate, face: OpenAIClient | None = None) -> dict[str, Any]:
    return json.loads((face or client()).encode(request).body)


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_raw_prompt() -> None:
    outbound = client().encode(asked(stopping=Stopping(max_new_tokens=5, stop=("a",))))
    assert outbound.path == "/completions"
    assert json.loads(outbound.body) == {
        "model": "up",
        "max_tokens": 5,
        "prompt": "Once",
        "temperature": 0.0,
        "stop": ["a"],
    }


def test_an_unlimited_raw_prompt_says_so() -> None:
    assert body(asked()) == {"model": "up", "max_tokens": None, "prompt": "Once", "temperature": 0.0}


def test_a_text_that_wants_the_template_is_a_turn() -> None:
    outbound = client().encode(asked(raw_prompt=False, sampling=Sampling(do_sample=True)))
    assert outbound.path == "/chat/completions"
    assert json.loads(outbound.body) == {"model": "up", "messages": [{"role": "user", "content": "Once"}]}


def test_streams_are_asked_for_their_usage() -> None:
    assert body(talk(stream=True)) == {
        "model": "up",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "stream_options" not in body(talk(stream=True), client(ask_usage=False))


def test_everything_a_chat_can_say() -> None:
    request = talk(
        Message("system", "Be brief."),
        Message("user", (TextPart("What?"), ImagePart("/9j/AA", "data", "low"), ImagePart("http://a/b", "url"))),
        Message("assistant", None, tool_calls=(ToolCall("c", "f", "{}"),), reasoning="Hm."),
        Message("tool", "4", tool_call_id="c"),
        sampling=Sampling(
            do_sample=True,
            temperature=0.5,
            top_k=3,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.5,
            presence_penalty=1.0,
            frequency_penalty=-1.0,
            logit_bias=((7, 1.0),),
            seed=2**64 - 1,
        ),
        stopping=Stopping(9, 2, ("a",), (5,), ignore_eos=True, include_stop=True),
        n=2,
        truncate_prompt_tokens=8,
        logprobs=True,
        top_logprobs=3,
        tools=(Tool("f", "d", {"type": "object"}, True), Tool("g")),
        tool_choice=ToolChoice("allowed", ("f",), required=True),
        parallel_tool_calls=False,
        grammar=Grammar("json_schema", {"type": "object"}, "a", True),
        user="u",
        hints={"reasoning_effort": "low", "priority": 3},
        extra={"details": True},
    )
    assert body(request) == {
        "model": "up",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What?"},
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/AA", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "http://a/b"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                "reasoning_content": "Hm.",
            },
            {"role": "tool", "content": "4", "tool_call_id": "c"},
        ],
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "logit_bias": {"7": 1.0},
        "seed": -1,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": ["a"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "n": 2,
        "truncate_prompt_tokens": 8,
        "logprobs": True,
        "top_logprobs": 3,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            },
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True},
        },
        "user": "u",
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(
    ("request_", "feature"),
    [
        (asked(prompt_logprobs=True, stream=True), "prompt_logprobs"),
        (talk(prompt_logprobs=True), "prompt_logprobs"),
        (asked(grammar=Grammar("regex", "a+")), "grammar"),
        (asked(sampling=Sampling(watermark=True)), "watermark"),
        (asked(sampling=Sampling(typical_p=0.9)), "typical_p"),
        (asked(adapter_id="a"), "adapters"),
        (asked(tools=(Tool("f"),)), "tools"),
        (asked(best_of=2, stream=True), "best_of"),
        (talk(best_of=2), "best_of"),
        (talk(suffix="a"), "suffix"),
        (talk(Message("user", (ImagePart("/a.png", "path"),))), "images"),
        (Generate(id="r", model="m", prompts=(TextPrompt("a", (ImagePart("b", "url"),)),)), "images"),
        (Generate(id="r", model="m", prompts=(TokensPrompt((1,)),), raw_prompt=False), "token_prompts"),
        (Generate(id="r", model="m", prompts=(TextPrompt("a"), TextPrompt("b")), raw_prompt=False), "several_prompts"),
    ],
)
def test_what_the_protocol_cannot_say(request_: Generate, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        client().encode(request_)
    assert caught.value.feature == feature


@pytest.mark.parametrize(
    ("request_", "feature"),
    [
        (talk(stopping=Stopping(stop=("a",))), "stop"),
        (talk(n=2), "n"),
        (talk(logprobs=True), "logprobs"),
        (talk(tools=(Tool("f"),)), "tools"),
        (talk(sampling=Sampling(do_sample=True, top_k=3)), "top_k"),
    ],
)
def test_what_mindies_page_cannot_say(request_: Generate, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        client("mindie-openai").encode(request_)
    assert caught.value.feature == feature


def test_mindies_page_in_its_words() -> None:
    request = talk(sampling=Sampling(), stopping=Stopping(20), user="u", stream=True)
    assert body(request, client("mindie-openai")) == {
        "model": "up",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0.001,  # a temperature of 0 is out of its range
        "max_tokens": 20,
        "stream": True,
    }


# --- relays -----------------------------------------------------------------------------------------------------------


def relayed(sent: bytes, operation: str = "chat", **fields: Any) -> bytes:
    origin = Origin("openai", "openai", operation, sent)
    return client().encode(Generate(id="r", model="up", prompts=(ChatPrompt(()),), origin=origin, **fields)).body


def test_a_relay_changes_nothing_but_the_model() -> None:
    sent = b'{"messages":[],"big":12345678901234567890123,"model":"chat","x":{"y":1.50e3,"z":"\\u00eb"},"seed":null}'
    assert relayed(sent) == sent.replace(b'"model":"chat"', b'"model":"up"')


def test_a_relayed_stream_is_asked_for_its_usage() -> None:
    sent = b'{"model":"chat","stream":true}'
    assert relayed(sent, stream=True) == b'{"model":"up","stream":true,"stream_options":{"include_usage":true}}'
    asking = b'{"model":"up","stream":true,"stream_options":{"include_usage":true,"x":1}}'
    assert relayed(asking, stream=True, stream_usage=True) == asking


def test_a_relay_streams_as_the_dialects_default_says() -> None:
    assert b'"stream":true' in relayed(b'{"model":"chat"}', stream=True)


def test_a_relay_does_not_ask_a_known_prompt_back() -> None:
    def sent(request: Generate) -> dict[str, Any]:
        return json.loads(client().encode(request).body)

    assert sent(completion(echo=True)) == {"model": "chat", "prompt": "Once"}
    assert sent(completion(echo=True, logprobs=1))["echo"] is True
    assert sent(completion(echo=True, prompt=[1, 2]))["echo"] is True


def test_other_dialects_are_not_relayed() -> None:
    request = chat("mindie-openai", top_k=5)
    assert "top_k" not in json.loads(client().encode(request).body)


# --- whole answers ----------------------------------------------------------------------------------------------------


def choice(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"} | fields


def answer(*choices: dict[str, Any], **fields: Any) -> Reply:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return reply({"id": "x", "model": "m", "choices": choices or (choice(),), "usage": usage} | fields)


def test_a_whole_chat() -> None:
    assert client().decode(talk(), answer()) == (
        Started("m", 3),
        Finished(text="Hi", reason=FinishReason.EOS),
        Usage(3, 2),
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"finish_reason": "eos_token"}, {"reason": FinishReason.EOS}),
        ({"finish_reason": "EOS_TOKEN"}, {"reason": FinishReason.EOS}),
        ({"finish_reason": "end_turn"}, {"reason": FinishReason.EOS}),
        ({"finish_reason": "stop_sequence"}, {"reason": FinishReason.STOP_STRING}),
        ({"finish_reason": "length"}, {"reason": FinishReason.LENGTH}),
        ({"finish_reason": "content_filter"}, {"reason": FinishReason.CONTENT_FILTER}),
        ({"finish_reason": "tool_calls"}, {"reason": FinishReason.TOOL_CALL}),
        ({"stop_reason": "."}, {"reason": FinishReason.STOP_STRING, "stop": "."}),
        ({"stop_reason": 13}, {"reason": FinishReason.STOP_TOKEN}),
        ({"stop_reason": None}, {"reason": FinishReason.EOS}),
    ],
)
def test_ends(fields: dict[str, Any], said: dict[str, Any]) -> None:
    assert client().decode(talk(), answer(choice(**fields)))[1] == Finished(text="Hi", **said)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": None, "refusal": "No."}, {"refusal": "No."}),
        ({"content": "a", "reasoning_content": "b"}, {"text": "a", "reasoning": "b"}),
        ({"content": "a", "reasoning": "b"}, {"text": "a", "reasoning": "b"}),
        (
            {
                "content": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            {"text": "a", "reasoning": "b"},
        ),
        (
            {
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"type": "function", "function": {"name": "g", "arguments": "[]"}},
                ],
            },
            {"tool_calls": (ToolDelta(0, "c", "f", "{}"), ToolDelta(1, "call_r1_0_1", "g", "[]"))},
        ),
    ],
)
def test_messages(message: dict[str, Any], said: dict[str, Any]) -> None:
    events = client().decode(talk(), answer(choice(message=message)))
    assert events[1] == Finished(**said, reason=FinishReason.EOS)


def test_usage_with_details_and_without_any() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert client().decode(talk(), answer(usage=usage))[-1] == Usage(3, 2, 1, 1)
    assert client().decode(talk(), answer(usage=None)) == (
        Started("m"),
        Finished(text="Hi", reason=FinishReason.EOS),
        Usage(0, 1),
    )


@pytest.mark.parametrize(
    "bad",
    [
        reply(b"<html>"),
        reply(b"\xff"),
        reply(b"[" * 100_000),
        reply([]),
        reply({}),
        answer(choice(index=1)),
        answer(choice(), choice()),
        answer(choice(), choice(index=1)),
        answer(choice(finish_reason="invalid flag")),
        answer(choice(finish_reason="abort")),
        answer(usage={"prompt_tokens": -1}),
    ],
)
def test_answers_that_make_no_sense(bad: Reply) -> None:
    with pytest.raises(BackendFailed) as caught:
        client().decode(talk(), bad)
    assert caught.value.code == "upstream_malformed"


def test_an_answer_that_was_not_finished() -> None:
    with pytest.raises(Incomplete):
        client().decode(talk(), answer(choice(finish_reason=None)))


def test_mindies_word_for_a_failure() -> None:
    with pytest.raises(BackendFailed):
        client("mindie-openai").decode(talk(), answer(choice(finish_reason="stop_sequence")))


# --- log-probabilities ------------------------------------------------------------------------------------------------


def scored(token: str, data: bytes | None = None, logprob: float = -1.0) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": None if data is None else list(data), "top_logprobs": []}


@pytest.mark.parametrize(
    ("text", "told", "tokens"),
    [
        ("ab", [scored("a"), scored("b")], [Token(None, "a", -1.0), Token(None, "b", -1.0)]),
        (
            "a",
            [scored("a"), scored("<|im_end|>")],
            [Token(None, "a", -1.0), Token(None, "<|im_end|>", -1.0, special=True)],
        ),
        (  # a stop string cut the last token in two
            "a wor",
            [scored("a"), scored(" world", b" world")],
            [Token(None, "a", -1.0), Token(None, " wor", -1.0, bytes=b" world")],
        ),
        (  # halves of a character, with their bytes
            "a🙂b",
            [scored("a", b"a"), scored("\ufffd", b"\xf0\x9f"), scored("\ufffd", b"\x99\x82"), scored("b", b"b")],
            [
                Token(None, "a", -1.0),
                Token(None, "", -1.0, bytes=b"\xf0\x9f"),
                Token(None, "🙂", -1.0, bytes=b"\x99\x82"),
                Token(None, "b", -1.0),
            ],
        ),
        (  # and without
            "a🙂b",
            [scored("a"), scored("\ufffd"), scored("\ufffd"), scored("b")],
            [
                Token(None, "a", -1.0),
                Token(None, "", -1.0, bytes="\ufffd".encode()),
                Token(None, "🙂", -1.0, bytes="\ufffd".encode()),
                Token(None, "b", -1.0),
            ],
        ),
        ("a!", [scored("a")], [Token(None, "a!", -1.0, bytes=b"a")]),
    ],
)
def test_tokens_are_laid_against_the_text(text: str, told: list[Any], tokens: list[Token]) -> None:
    request = talk(logprobs=True)
    [_, finished, _] = client().decode(
        request, answer(choice(message={"content": text}, logprobs={"content": told, "refusal": None}))
    )
    assert isinstance(finished, Finished)
    assert finished.tokens == tuple(tokens)
    assert "".join(token.text for token in finished.tokens if not token.special) == text


def test_tokens_nobody_asked_for_are_left_out() -> None:
    events = client().decode(talk(), answer(choice(logprobs={"content": [scored("Hi")]})))
    assert events[1] == Finished(text="Hi", reason=FinishReason.EOS)


def test_likeliest_tokens_of_a_completion() -> None:
    told = {"tokens": ["Hi"], "token_logprobs": [-2.0], "top_logprobs": [{"Hi": -2.0, "He": -0.5}], "text_offset": [0]}
    request = asked(logprobs=True, top_logprobs=1)
    events = client().decode(request, answer({"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": told}))
    assert events[1] == Finished(
        text="Hi",
        tokens=(Token(None, "Hi", -2.0, top=(TopToken(None, "He", -0.5),)),),
        reason=FinishReason.EOS,
    )


def test_an_echoed_prompt_is_taken_off() -> None:
    request = completion(prompt=[[0, 5, 6]], echo=True, logprobs=1, max_tokens=4)
    data = (GOLDEN / "openai/completion-echo-logprobs.json").read_bytes()
    events = client().decode(request, Reply(data))
    [started, finished, _] = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert [(t.id, t.text, t.logprob) for t in started.prompts[0]] == [
        (t.id, t.text, t.logprob) for t in PROMPT_TOKENS[0]
    ]
    assert finished.text == "He🙂"
    assert finished.tokens[-1] == Token(None, "</s>", -0.0625, special=True, top=(TopToken(None, "</s>", -0.0625),))
    assert server().encode(request, fold(events)).body == server().encode(request, fold(ECHOED)).body


@pytest.mark.parametrize("usage", [{"prompt_tokens": 2, "completion_tokens": 1}, None])
def test_an_echoed_text(usage: Any) -> None:
    told = {"tokens": ["On", "ce", " a"], "token_logprobs": [None, -1.0, -2.0], "text_offset": [0, 2, 4]}
    request = asked(prompt_logprobs=True, logprobs=True)
    whole = {"index": 0, "text": "Once a", "finish_reason": "length", "logprobs": told}
    events = client().decode(request, answer(whole, usage=usage))
    assert events[0] == Started("m", usage and 2, ((Token(None, "On"), Token(None, "ce", -1.0)),))
    assert events[1] == Finished(text=" a", tokens=(Token(None, " a", -2.0),), reason=FinishReason.LENGTH)


# --- streams ----------------------------------------------------------------------------------------------------------


def frames(*chunks: Any, done: bool = True) -> bytes:
    data = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return data + b"data: [DONE]\n\n" if done else data


def chunk(finish: str | None = None, index: int = 0, usage: Any = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], "usage": usage}


COUNTED = {"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
STREAM = talk(stream=True)


def read(*chunks: Any, done: bool = True, request: Generate = STREAM) -> Any:
    return events_of(client(), request, frames(*chunks, done=done))


@pytest.mark.parametrize("done", [True, False])
def test_a_stream(done: bool) -> None:
    assert read(chunk(role="assistant", content=""), chunk(content="Hi"), chunk("stop"), COUNTED, done=done) == (
        Started("m"),
        Delta(text="Hi"),
        Finished(reason=FinishReason.EOS),
        Usage(3, 2),
    )


def test_usage_on_every_chunk_is_the_last_that_is_told() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    events = read(
        chunk(content="a", usage=usage), chunk(content="b", usage=usage | {"completion_tokens": 2}), chunk("stop")
    )
    assert events[0] == Started("m", 3)
    assert events[-1] == Usage(3, 2)


def test_a_stream_that_tells_no_usage() -> None:
    assert read(chunk(content="a"), chunk(content="b"), chunk("stop"))[-1] == Usage(0, 2)


def test_mindies_recorded_stream() -> None:
    data = (GOLDEN / "mindie-openai/document-3.txt").read_bytes()
    events = events_of(client("mindie-openai"), STREAM, data)
    assert events[0] == Started("baichuan")
    assert events[-2:] == (Finished(reason=FinishReason.LENGTH), Usage(0, 19))


def test_text_generations_final_chunk_with_text_and_empty_reasons() -> None:
    last = chunk("stop", content="b")
    assert read(chunk("", content="a"), last) == (
        Started("m"),
        Delta(text="a"),
        Finished(text="b", reason=FinishReason.EOS),
        Usage(0, 2),
    )


def test_pieces_of_tool_calls() -> None:
    def piece(index: int | None, id: str | None = None, **function: Any) -> dict[str, Any]:
        return chunk(tool_calls=[{"index": index, "id": id, "function": function}])

    events = read(
        piece(0, "c", name="f", arguments=""),
        piece(0, "c", name="f", arguments="{"),
        piece(0, arguments="}"),
        piece(1, name="g", arguments="{}"),
        chunk("tool_calls"),
    )
    assert events[1:-1] == (
        Delta(tool_calls=(ToolDelta(0, "c", "f"),)),
        Delta(tool_calls=(ToolDelta(0, arguments="{"),)),
        Delta(tool_calls=(ToolDelta(0, arguments="}"),)),
        Delta(tool_calls=(ToolDelta(1, "call_r1_0_1", "g", "{}"),)),
        Finished(reason=FinishReason.TOOL_CALL),
    )


def test_half_a_character_over_two_chunks() -> None:
    def half(text: str, data: bytes) -> dict[str, Any]:
        found = chunk(content=text)
        found["choices"][0]["logprobs"] = {"content": [scored("\ufffd", data)]}
        return found

    events = read(
        half("", b"\xf0\x9f"), half("🙂", b"\x99\x82"), chunk("stop"), request=talk(stream=True, logprobs=True)
    )
    assert events[1:3] == (
        Delta(tokens=(Token(None, "", -1.0, bytes=b"\xf0\x9f"),)),
        Delta(text="🙂", tokens=(Token(None, "🙂", -1.0, bytes=b"\x99\x82"),)),
    )


def test_what_follows_the_end_is_ignored() -> None:
    data = frames(chunk("stop"), COUNTED) + b"data: rubbish\n\n"
    assert events_of(client(), STREAM, data)[-1] == Usage(3, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frames(chunk(content="a"), done=False),
        frames(chunk(content="a"), done=True),
        frames(chunk(content="a"), COUNTED),
        frames(chunk("stop"))[:-40],
    ],
)
def test_streams_that_end_too_early(data: bytes) -> None:
    with pytest.raises(Incomplete):
        events_of(client(), STREAM, data)


def test_one_of_two_choices_is_not_enough() -> None:
    with pytest.raises(Incomplete):
        read(chunk("stop"), request=talk(stream=True, n=2))


@pytest.mark.parametrize(
    "data",
    [
        b"data: <html>\n\n",
        b"data: \xff\n\n",
        b'data: {"object":"ping"}\n\n',
        frames(chunk(index=1, content="a")),
        frames(chunk(index=-1, content="a")),
        frames(chunk(index=10**9, content="a")),
        frames(chunk("stop"), chunk(content="more")),
        frames(chunk("cancelled")),
        frames(chunk(tool_calls=[{"index": 10**9}])),
        b"data: " + b"a" * (1 << 20) + b"\n\n",
    ],
)
def test_streams_that_make_no_sense(data: bytes) -> None:
    with pytest.raises(BackendFailed) as caught:
        events_of(client(), STREAM, data)
    assert caught.value.code == "upstream_malformed"


# --- errors -----------------------------------------------------------------------------------------------------------

OPENAI_ERROR = {"error": {"message": "Bad n.", "type": "invalid_request_error", "param": "n", "code": "c"}}


@pytest.mark.parametrize(
    ("event", "kind", "message"),
    [
        (OPENAI_ERROR, BackendFailed, "The backend failed."),
        ({"error": {"message": "x", "code": 400}}, InvalidRequest, "x"),
        ({"error": {"message": "x", "code": 503}}, BackendUnavailable, "The backend is unavailable."),
        ({"error": {"message": "x", "http_status_code": 422}}, InvalidRequest, "x"),
        ({"error": "x", "error_type": "overloaded"}, Overloaded, "The backend is overloaded."),
        ({"error": "x", "error_type": "generation"}, BackendFailed, "The backend failed."),
        ({"object": "error", "message": "x", "code": 400}, InvalidRequest, "x"),
        ({"error_code": "INTERNAL_ERROR", "message": "x"}, BackendFailed, "The backend failed."),
        ({"error_code": "DEADLINE_EXCEEDED", "message": "x"}, BackendTimeout, "The backend timed out."),
        ({"error": {"message": "x", "code": "context_length_exceeded"}}, ContextLengthExceeded, "x"),
    ],
)
def test_errors_in_a_stream(event: Any, kind: type[GatewayError], message: str) -> None:
    with pytest.raises(kind) as caught:
        read(chunk(content="a"), event, done=False)
    assert caught.value.message == message
    with pytest.raises(kind):
        client().decode(talk(), reply(event))


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (reply(OPENAI_ERROR, 400), InvalidRequest, "Bad n."),
        (reply({"error": "Bad n.", "error_type": "validation"}, 422), InvalidRequest, "Bad n."),
        (reply({"object": "error", "message": "Bad n.", "code": 400}, 400), InvalidRequest, "Bad n."),
        (reply({"error_code": "BAD_REQUEST", "message": "Bad n."}, 400), InvalidRequest, "Bad n."),
        (reply({"detail": [{"msg": "secret"}]}, 422), InvalidRequest, "The backend refused the request."),
        (reply(b"<html>secret</html>", 400), InvalidRequest, "The backend refused the request."),
        (
            reply({"error": {"message": "This model's maximum context length is 10 tokens."}}, 400),
            ContextLengthExceeded,
            "This model's maximum context length is 10 tokens.",
        ),
        (reply({"error": {"message": "No model."}}, 404), ModelNotFound, "No model."),
        (reply({"error": {"message": "Too big."}}, 413), BodyTooLarge, "Too big."),
        (reply({"error": {"message": "secret"}}, 401), BackendFailed, "The backend failed."),
        (reply({"error": {"message": "secret"}}, 403), BackendFailed, "The backend failed."),
        (reply({"error": {"message": "secret"}}, 429), Overloaded, "The backend is overloaded."),
        (reply({"error": {"message": "secret"}}, 500), BackendFailed, "The backend failed."),
        (reply(b"secret", 502), BackendUnavailable, "The backend is unavailable."),
        (reply(b"secret", 503), BackendUnavailable, "The backend is unavailable."),
        (reply(b"", 504), BackendTimeout, "The backend timed out."),
    ],
)
def test_errors(answer: Reply, kind: type[GatewayError], message: str) -> None:
    error = client().error(answer)
    assert type(error) is kind
    assert error.message == message
    assert isinstance(error, BackendError) == (kind in (BackendFailed, BackendUnavailable, BackendTimeout))


def test_errors_keep_the_field_at_fault() -> None:
    error = client().error(reply(OPENAI_ERROR, 400))
    assert (error.param, error.code) == ("n", "c")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ((("Retry-After", "7"),), 7.0),
        ((("retry-after", "7"), ("retry-after-ms", "250")), 0.25),
        ((("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"),), None),
        ((), None),
    ],
)
def test_when_to_try_again(headers: Any, seconds: float | None) -> None:
    assert client().error(reply(b"", 429, *headers)).retry_after == seconds
    assert client().error(reply(b"", 503, *headers)).retry_after == seconds
