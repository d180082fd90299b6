"""Ollama's API: requests decoded and answers encoded, byte by byte, as Ollama writes them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from adapters.base import Call, Reply
from adapters.fold import fold
from adapters.ollama import ADAPTER
from adapters.ollama.server import OllamaServer
from backends.base import check_unread
from schemas.catalog import Catalog, ModelCard, TokenizerInfo
from schemas.completion import Timings
from schemas.errors import (
    KINDS,
    BackendFailed,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Embeddings,
    Events,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    Started,
    Stopping,
    TextPart,
    TextPrompt,
    Token,
    Tool,
    ToolCall,
    ToolDelta,
    TopToken,
    Usage,
)

SERVER = OllamaServer(ADAPTER.dialects["ollama"], now=lambda: 1.5)
ROUTES = {route.name: route for route in SERVER.routes}
CARD = ModelCard(
    name="m",
    context_length=4096,
    images=True,
    dtype="bfloat16",
    changed=60,
    tokenizer=TokenizerInfo(chat_template="{{ x }}"),
)
CATALOG = Catalog({"m": CARD, "e": ModelCard(name="e", task="embeddings", ready=False)})
CALL = Call("r1", CATALOG)
HI = [{"role": "user", "content": "Hi"}]
AT = '"created_at":"1970-01-01T00:00:01.500000Z"'


def read(route: str, **fields: Any) -> Any:
    return SERVER.decode(ROUTES[route], json.dumps({"model": "m"} | fields).encode(), CALL)


def chat(**fields: Any) -> Generate:
    asked = read("chat", **({"messages": HI} | fields))
    assert isinstance(asked, Generate)
    return asked


def lines(request: Generate, events: Events) -> list[str]:
    encoder = SERVER.encoder(request)
    return encoder.feed(events).decode().splitlines()


def test_a_chat() -> None:
    request = chat()
    assert request.prompts == (ChatPrompt((Message("user", "Hi"),)),)
    assert request.sampling == Sampling(do_sample=True)
    assert request.stopping == Stopping()
    assert request.stream  # unless the request says otherwise
    assert not request.raw_prompt
    assert not chat(stream=False).stream


def test_options() -> None:
    options = {
        "num_predict": 9,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.7,
        "repeat_penalty": 1.2,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
        "seed": -2,
        "stop": ["\n", "user:"],
    }
    request = chat(options=options)
    assert request.sampling == Sampling(True, 0.5, 5, 0.9, 0.1, 0.7, 1.2, 1.5, 1.0, seed=2**64 - 2)
    assert request.stopping == Stopping(9, stop=("\n", "user:"))
    assert request.unknown == ()


def test_values_that_turn_an_option_off() -> None:
    off = {"num_predict": -1, "top_k": 0, "min_p": 0, "typical_p": 1, "repeat_penalty": 1, "seed": -1, "stop": []}
    request = chat(options=off)
    assert request.sampling == Sampling(do_sample=True)
    assert request.stopping == Stopping()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"options": {"temperature": -1}}, "temperature must be between 0 and 2"),
        ({"options": {"top_p": 1.1}}, "top_p must be"),
        ({"options": {"num_predict": 0}}, "num_predict must be"),
        ({"options": {"repeat_penalty": 0}}, "repeat_penalty must be above 0"),
        ({"top_logprobs": 21}, "top_logprobs must be between 0 and 20"),
        ({"think": "hard"}, "invalid think value"),
        ({"format": "xml"}, "invalid format"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "invalid role 'pope'"),
        ({"messages": [{"role": "user", "images": [""]}]}, "the image is empty"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "not supported"),
        ({"model": ""}, "model is required"),
    ],
)
def test_refusals(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        chat(**fields)


def test_what_has_no_effect_is_named_and_refused_in_the_strict_dialect() -> None:
    request = chat(options={"num_ctx": 4096, "num_gpu": 1}, keep_alive="5m")
    assert request.unknown == ("options.num_ctx", "options.num_gpu", "keep_alive")


def test_a_name_may_have_the_tag_of_every_name_without_one() -> None:
    assert chat(model="m:latest").model == "m"
    with pytest.raises(ModelNotFound, match="model 'm:8b' not found"):
        chat(model="m:8b")


@pytest.mark.parametrize(("think", "effort"), [(True, "medium"), (False, "none"), ("high", "high")])
def test_thinking(think: Any, effort: str) -> None:
    assert chat(think=think).hints == {"reasoning_effort": effort}


@pytest.mark.parametrize(
    ("format", "grammar"),
    [
        ("json", Grammar("json_object")),
        ({"type": "object"}, Grammar("json_schema", {"type": "object"})),
        ("", None),
    ],
)
def test_formats(format: Any, grammar: Grammar | None) -> None:
    assert chat(format=format).grammar == grammar


def test_images_stand_before_the_text() -> None:
    request = chat(messages=[{"role": "user", "content": "What?", "images": ["iVBO"]}])
    assert request.prompts == (ChatPrompt((Message("user", (ImagePart("iVBO", "data"), TextPart("What?"))),)),)


def test_results_of_tools_belong_to_the_oldest_open_call_of_their_tool() -> None:
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g", "f")]
    results = [{"role": "tool", "content": text, "tool_name": name} for text, name in (("2", "g"), ("1", "f"))]
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
    request = chat(
        messages=[
            *HI,
            {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": calls},
            *results,
            {"role": "tool", "content": "3"},
        ],
        tools=tools,
    )
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    _, called, *answered = prompt.messages
    assert called.tool_calls[0] == ToolCall("call_1_0", "f", '{"a":1}')
    assert called.reasoning == "Hm"
    assert [message.tool_call_id for message in answered] == ["call_1_1", "call_1_0", "call_1_2"]
    assert request.tools == (Tool("f", "d", {"type": "object"}),)


def test_a_prompt_is_a_chat_of_one_message() -> None:
    request = read("generate", prompt="Hi", system="Be brief.", images=["iVBO"])
    user = Message("user", (ImagePart("iVBO", "data"), TextPart("Hi")))
    assert request.prompts == (ChatPrompt((Message("system", "Be brief."), user)),)


def test_a_raw_prompt_and_one_with_a_suffix_are_texts() -> None:
    raw = read("generate", prompt="Hi", raw=True)
    assert (raw.prompts, raw.raw_prompt) == ((TextPrompt("Hi"),), True)
    filled = read("generate", prompt="def f(", suffix="return")
    assert (filled.prompts, filled.suffix) == ((TextPrompt("def f("),), "return")
    with pytest.raises(InvalidRequest, match="raw mode does not support"):
        read("generate", prompt="Hi", raw=True, system="x")


@pytest.mark.parametrize("field", [{"template": "{{ .Prompt }}"}, {"context": [1, 2]}])
def test_fields_that_only_ollama_understands_are_refused_elsewhere(field: dict[str, Any]) -> None:
    request = read("generate", prompt="Hi", **field)
    with pytest.raises(UnsupportedFeature, match="is not supported"):
        check_unread(request, request.foreign_fields)


def test_a_request_without_a_prompt_is_answered_at_once() -> None:
    loaded = read("chat")
    assert isinstance(loaded, Reply)
    assert json.loads(loaded.body)["message"] == {"role": "assistant", "content": ""}
    loaded = read("generate", keep_alive="5m")
    assert isinstance(loaded, Reply)
    said = json.loads(loaded.body)
    assert (said["response"], said["done"], said["done_reason"]) == ("", True, "load")
    for never in (0, "0", "0s", "0m"):
        with pytest.raises(UnsupportedFeature, match="cannot be unloaded"):
            read("generate", keep_alive=never)
    with pytest.raises(ModelNotFound):
        read("generate", model="absent")


LIVE: Events = (
    Started("m", 9),
    Delta(reasoning="Hm."),
    Delta(text="Let me see\u2028."),
    Delta(tool_calls=(ToolDelta(0, "c1", "weather"),)),
    Delta(tool_calls=(ToolDelta(0, arguments='{"city": '),)),
    Delta(tool_calls=(ToolDelta(0, arguments='"Paris"}'), ToolDelta(1, None, "now"))),
    Finished(reason=FinishReason.TOOL_CALL, generated=20),
    Usage(9, 20),
)
CALLS = (
    '[{"id":"c1","function":{"index":0,"name":"weather","arguments":{"city": "Paris"}}},'
    '{"id":"call_r1_1","function":{"index":1,"name":"now","arguments":{}}}]'
)


def test_a_stream_of_a_chat() -> None:
    *said, last = lines(chat(), LIVE)
    start = f'{{"model":"m",{AT},"message":{{"role":"assistant",'
    assert said == [
        f'{start}"content":"","thinking":"Hm."}},"done":false}}',
        f'{start}"content":"Let me see\\u2028."}},"done":false}}',
        f'{start}"content":"","tool_calls":{CALLS}}},"done":false}}',
    ]
    assert last.startswith(f'{start}"content":""}},"done":true,"done_reason":"stop",')
    end = json.loads(last)
    assert (end["prompt_eval_count"], end["eval_count"]) == (9, 20)
    assert min(end["total_duration"], end["prompt_eval_duration"], end["eval_duration"]) > 0


def test_a_stream_of_a_prompt() -> None:
    events = (Started("m", 9), Delta(text="Hi"), Finished(reason=FinishReason.LENGTH, generated=1), Usage(9, 1))
    first, last = lines(read("generate", prompt="x"), events)
    assert first == f'{{"model":"m",{AT},"response":"Hi","done":false}}'
    assert last.startswith(f'{{"model":"m",{AT},"response":"","done":true,"done_reason":"length",')


def test_a_whole_chat() -> None:
    answer = fold(LIVE)
    reply = SERVER.encode(chat(stream=False), answer)
    assert reply.body.decode().startswith(
        f'{{"model":"m",{AT},"message":{{"role":"assistant","content":"Let me see\u2028.","thinking":"Hm.",'
        f'"tool_calls":{CALLS}}},"done":true,"done_reason":"stop",'
    )


def test_durations_are_nanoseconds() -> None:
    answer = msgspec.structs.replace(fold(LIVE), timings=Timings(0.25, 1.0))
    said = json.loads(SERVER.encode(chat(stream=False), answer).body)
    assert (said["total_duration"], said["prompt_eval_duration"], said["eval_duration"]) == (
        10**9,
        25 * 10**7,
        75 * 10**7,
    )


def test_log_probabilities() -> None:
    token = Token(3, "Hi", -0.5, top=(TopToken(3, "Hi", -0.5), TopToken(4, "Ho", -1.5)))
    events = (Started("m", 1), Delta(text="Hi", tokens=(token,)), Finished(reason=FinishReason.EOS), Usage(1, 1))
    first, _ = lines(chat(logprobs=True, top_logprobs=2), events)
    assert json.loads(first)["logprobs"] == [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [
                {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
                {"token": "Ho", "logprob": -1.5, "bytes": [72, 111]},
            ],
        }
    ]
    assert "logprobs" not in json.loads(lines(chat(), events)[0])


def test_a_call_that_is_no_object_fails_the_answer_unless_it_was_cut() -> None:
    half = Delta(tool_calls=(ToolDelta(0, "c1", "f", '{"a": '),))
    with pytest.raises(BackendFailed):
        lines(chat(), (Started("m", 1), half, Finished(reason=FinishReason.EOS)))
    *_, calls = lines(chat(), (Started("m", 1), half, Finished(reason=FinishReason.LENGTH)))
    assert json.loads(calls)["message"]["tool_calls"][0]["function"]["arguments"] == {}


def test_an_error_ends_a_stream_as_a_line_of_its_own() -> None:
    encoder = SERVER.encoder(chat())
    encoder.feed((Started("m", 1), Delta(text="Hi")))
    assert encoder.fail(BackendFailed("It broke.")) == b'{"error":"It broke."}\n'


def test_errors() -> None:
    assert set(ADAPTER.dialects["ollama"].wording.failures) == set(KINDS)
    refused: tuple[tuple[GatewayError, int], ...] = (
        (ModelNotFound("model 'x' not found"), 404),
        (Overloaded("Full.", retry_after=2.0), 503),
        (MethodNotAllowed("No.", allowed=("GET",)), 405),
    )
    for error, status in refused:
        reply = SERVER.error(error)
        assert (reply.status, json.loads(reply.body)) == (status, {"error": error.message})
    assert SERVER.error(refused[1][0]).headers == (("retry-after", "2"),)
    assert SERVER.error(refused[2][0]).headers == (("allow", "GET"),)


def test_embeddings() -> None:
    asked = read("embed", input=["a", "b"], dimensions=2)
    assert isinstance(asked, Embed)
    assert (asked.inputs, asked.dimensions) == ((TextPrompt("a"), TextPrompt("b")), 2)
    answer = Embeddings("m", ((0.5, 1.0), (0.0, 2.0)), Usage(4, 0))
    assert (
        SERVER.encode_embeddings(asked, answer).body
        == b'{"model":"m","embeddings":[[0.5,1.0],[0.0,2.0]],"prompt_eval_count":4}'
    )
    older = read("embeddings", prompt="a")
    assert SERVER.encode_embeddings(older, answer).body == b'{"embedding":[0.5,1.0]}'
    for route, fields in (
        ("embed", {}),
        ("embed", {"input": [""]}),
        ("embeddings", {}),
        ("embed", {"input": "a", "dimensions": -1}),
    ):
        with pytest.raises(InvalidRequest):
            read(route, **fields)


def described(route: str, **fields: Any) -> Any:
    return json.loads(SERVER.describe(ROUTES[route], CALL, json.dumps(fields).encode()).body)


def test_what_is_served() -> None:
    listed = described("tags")["models"]
    assert [model["name"] for model in listed] == ["m:latest", "e:latest"]
    assert listed[0]["modified_at"] == "1970-01-01T00:01:00Z"
    assert len(listed[0]["digest"]) == 64
    assert [(model["name"], model["context_length"]) for model in described("ps")["models"]] == [("m:latest", 4096)]
    shown = described("show", model="m:latest")
    assert shown["capabilities"] == ["completion", "tools", "vision"]
    assert shown["template"] == "{{ x }}"
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] == 4096
    assert described("show", name="e")["capabilities"] == ["embedding"]
    assert described("version")["version"]
    with pytest.raises(ModelNotFound, match="model 'x' not found"):
        described("show", model="x")
