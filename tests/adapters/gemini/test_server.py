"""The Gemini API: requests decoded and answers encoded, byte by byte, as in Google's reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Call
from adapters.fold import fold
from adapters.gemini import ADAPTER
from adapters.gemini.json_schemas import json_schema
from backends.base import check_unread
from schemas.catalog import Catalog, ModelCard
from schemas.errors import (
    KINDS,
    BackendFailed,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    RateLimited,
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
    Tokenize,
    Tokens,
    TokenSpan,
    Tool,
    ToolCall,
    ToolChoice,
    ToolDelta,
    TopToken,
    Usage,
)

SERVER = ADAPTER.server(ADAPTER.dialects["gemini"])
ROUTES = {route.name: route for route in SERVER.routes}
HI = [{"role": "user", "parts": [{"text": "Hi"}]}]
CATALOG = Catalog({"m": ModelCard(name="m", context_length=4096), "e": ModelCard(name="e", task="embeddings")})


def read(route: str, fields: dict[str, Any], **query: str) -> Any:
    call = Call("r1", CATALOG, {"model": "m"}, query=query)
    return SERVER.decode(ROUTES[route], json.dumps(fields).encode(), call)


def ask(config: dict[str, Any] | None = None, route: str = "generate", **fields: Any) -> Generate:
    asked = read(route, {"contents": HI} | ({"generationConfig": config} if config else {}) | fields, alt="sse")
    assert isinstance(asked, Generate)
    return asked


def test_a_conversation() -> None:
    request = ask(systemInstruction={"parts": [{"text": "Be"}, {"text": "brief."}]})
    assert request.model == "m"
    assert request.prompts == (ChatPrompt((Message("system", "Be\nbrief."), Message("user", "Hi"))),)
    assert request.sampling == Sampling(do_sample=True)
    assert request.stopping == Stopping()
    assert not request.stream
    assert ask(route="stream").stream


def test_the_configuration() -> None:
    config = {
        "stopSequences": ["END"],
        "candidateCount": 2,
        "maxOutputTokens": 9,
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 5.0,
        "seed": -2,
        "presencePenalty": 1.5,
        "frequencyPenalty": 1.0,
        "responseLogprobs": True,
        "logprobs": 3,
    }
    request = ask(config)
    assert request.sampling == Sampling(True, 0.5, 5, 0.9, presence_penalty=1.5, frequency_penalty=1.0, seed=2**64 - 2)
    assert request.stopping == Stopping(9, stop=("END",))
    assert (request.n, request.logprobs, request.top_logprobs) == (2, True, 3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"generationConfig": {"temperature": 2.5}}, "generationConfig.temperature: must be from 0 to 2"),
        ({"generationConfig": {"candidateCount": 0}}, "candidateCount: must be from 1"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens: must be at least 1"),
        ({"generationConfig": {"stopSequences": [""]}}, "stopSequences"),
        ({"generationConfig": {"logprobs": 2}}, "needs responseLogprobs"),
        ({"generationConfig": {"responseMimeType": "image/png"}}, "responseMimeType"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "needs responseMimeType"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "needs an enum"),
        ({"contents": []}, "contents is not specified"),
        ({"contents": [{"role": "pope", "parts": [{"text": "x"}]}]}, "valid role"),
        ({"contents": [{"parts": []}]}, "must not be empty"),
        ({"contents": [{"parts": [{}]}]}, "oneof field"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "needs functionDeclarations"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["g"]}}}, "no function 'g'"),
    ],
)
def test_refusals(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ask(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "DEEP"}}}, "thinkingLevel: 'DEEP' is no level"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "MAYBE"}}}, "mode: 'MAYBE' is no mode"),
    ],
)
def test_an_unknown_word_is_for_a_server_of_the_dialect(fields: dict[str, Any], words: str) -> None:
    request = ask(**fields)
    with pytest.raises(InvalidRequest, match=words):
        check_unread(request, request.foreign_fields)
    client = ADAPTER.client(ADAPTER.dialects["gemini"])
    assert client.ignored(request) == ()
    sent = json.loads(client.encode(request).body)
    assert {name: sent[name] for name in fields} == fields


def test_images_by_data_and_by_address() -> None:
    parts = [
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
        {"fileData": {"fileUri": "https://a.example/b.png"}},
        {"text": "What?"},
    ]
    content = (
        ImagePart("data:image/png;base64,iVBO", "data"),
        ImagePart("https://a.example/b.png", "url"),
        TextPart("What?"),
    )
    assert ask(contents=[{"parts": parts}]).prompts == (ChatPrompt((Message("user", content),)),)


def test_names_may_be_in_snake_case_and_base64_in_the_alphabet_of_urls() -> None:
    parts = [{"inline_data": {"mime_type": "image/png", "data": "iV-_"}}]
    request = ask(
        contents=[{"parts": parts}],
        generation_config={"max_output_tokens": 3, "response_mime_type": "application/json"},
        tools=[{"function_declarations": [{"name": "f", "parameters": {"properties": {"a_b": {}}}}]}],
    )
    assert request.prompts == (ChatPrompt((Message("user", (ImagePart("data:image/png;base64,iV+/", "data"),)),)),)
    assert request.stopping.max_new_tokens == 3
    assert request.tools == (Tool("f", None, {"properties": {"a_b": {}}}),)
    assert request.unknown == ()


def test_calls_and_results() -> None:
    contents = [
        *HI,
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "x"},
                {"functionCall": {"name": "g", "id": "own"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "g", "id": "own", "response": {"result": "2"}}},
                {"functionResponse": {"name": "f", "response": {"b": 1, "c": 2}}},
                {"text": "And?"},
            ],
        },
    ]
    prompt = ask(contents=contents).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    _, called, *results, last = prompt.messages
    first = called.tool_calls[0].id
    assert called.tool_calls == (ToolCall(first, "f", '{"a":1}', "x"), ToolCall("own", "g", "{}"))
    assert called.reasoning == "Hm."
    assert results == [
        Message("tool", "2", name="g", tool_call_id="own"),
        Message("tool", '{"b":1,"c":2}', name="f", tool_call_id=first),
    ]
    assert last == Message("user", "And?")


FUNCTIONS = [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}, {"name": "g"}]}]


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"mode": "AUTO"}, ToolChoice("auto")),
        ({"mode": "NONE"}, ToolChoice("none")),
        ({"mode": "ANY"}, ToolChoice("required")),
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, ToolChoice("named", ("f",))),
        ({"mode": "ANY", "allowedFunctionNames": ["f", "g"]}, ToolChoice("allowed", ("f", "g"), required=True)),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["g"]}, ToolChoice("allowed", ("g",))),
        ({}, None),
    ],
)
def test_tools(config: dict[str, Any], choice: ToolChoice | None) -> None:
    request = ask(tools=FUNCTIONS, toolConfig={"functionCallingConfig": config})
    assert request.tools == (Tool("f", None, {"type": "object"}), Tool("g"))
    assert request.tool_choice == choice


@pytest.mark.parametrize(
    ("config", "grammar"),
    [
        ({"responseMimeType": "application/json"}, Grammar("json_object")),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "STRING"}},
            Grammar("json_schema", {"type": "string"}),
        ),
        (
            {
                "responseMimeType": "application/json",
                "responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
            },
            Grammar(
                "json_schema",
                {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
            ),
        ),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "string"}},
            Grammar("json_schema", {"type": "string"}),
        ),
        (
            {"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a+", "b"]}},
            Grammar("regex", "a\\+|b"),
        ),
        ({"responseMimeType": "text/plain"}, None),
    ],
)
def test_formats(config: dict[str, Any], grammar: Grammar | None) -> None:
    assert ask(config).grammar == grammar


def test_schemas_in_the_apis_own_form() -> None:
    own = {
        "type": "OBJECT",
        "properties": {
            "tags": {"type": "ARRAY", "items": {"type": "STRING", "format": "enum", "enum": ["a"]}, "maxItems": "3"},
            "size": {"type": "INTEGER", "nullable": True, "format": "int32"},
            "either": {"anyOf": [{"type": "STRING"}, {"type": "NUMBER"}], "nullable": True},
        },
        "required": ["tags"],
        "propertyOrdering": ["tags", "size"],
    }
    assert json_schema(own) == {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a"]}, "maxItems": 3},
            "size": {"type": ["integer", "null"]},
            "either": {"anyOf": [{"anyOf": [{"type": "string"}, {"type": "number"}]}, {"type": "null"}]},
        },
        "required": ["tags"],
    }


@pytest.mark.parametrize(
    ("thinking", "hints"),
    [
        ({"thinkingBudget": 0}, {"reasoning_effort": "none"}),
        ({"thinkingBudget": -1}, {}),
        ({"thinkingBudget": 512}, {"thinking": {"type": "enabled", "budget_tokens": 512}}),
        ({"thinkingLevel": "HIGH"}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking(thinking: dict[str, Any], hints: dict[str, Any]) -> None:
    assert ask({"thinkingConfig": thinking}).hints == hints


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"googleSearch": {}}]},
        {"cachedContent": "cachedContents/1"},
        {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}]}]},
        {"contents": [{"parts": [{"fileData": {"fileUri": "gs://a/b", "mimeType": "image/png"}}]}]},
        {"contents": [{"parts": [{"executableCode": {"language": "PYTHON", "code": "1"}}]}]},
        {"generationConfig": {"responseModalities": ["AUDIO"]}},
        {"generationConfig": {"speechConfig": {}}},
    ],
)
def test_what_only_google_has_is_refused_elsewhere(fields: dict[str, Any]) -> None:
    request = ask(**fields)
    with pytest.raises(UnsupportedFeature, match="not supported"):
        check_unread(request, request.foreign_fields)


def test_what_has_no_effect_is_named() -> None:
    assert ask(safetySettings=[{"category": "X", "threshold": "Y"}]).unknown == ("safetySettings",)


LIVE: Events = (
    Started("m", 9),
    Delta(reasoning="Hm."),
    Delta(text="Let me see\u2028."),
    Delta(tool_calls=(ToolDelta(0, "c1", "weather"),)),
    Delta(tool_calls=(ToolDelta(0, arguments='{"city": "Paris"}'), ToolDelta(1, None, "now"))),
    Finished(reason=FinishReason.TOOL_CALL, generated=20),
    Usage(9, 20, cached_tokens=4, reasoning_tokens=5),
)
COUNTS = (
    '"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":15,"totalTokenCount":29,'
    '"thoughtsTokenCount":5,"cachedContentTokenCount":4},"modelVersion":"m","responseId":"r1"}'
)
CALLS = (
    '{"functionCall":{"name":"weather","args":{"city": "Paris"},"id":"c1"}},'
    '{"functionCall":{"name":"now","args":{},"id":"call_r1_0_1"}}'
)
END = '"modelVersion":"m","responseId":"r1"}'


def test_a_stream_of_events() -> None:
    said = SERVER.encoder(ask({"thinkingConfig": {"includeThoughts": True}}, "stream")).feed(LIVE).decode()
    parts = [
        '{"text":"Hm.","thought":true}',
        '{"text":"Let me see\\u2028."}',
        CALLS,
    ]
    lines = [
        f'data: {{"candidates":[{{"content":{{"parts":[{part}],"role":"model"}},"index":0}}],{END}' for part in parts
    ]
    last = '{"content":{"parts":[{"text":""}],"role":"model"},"index":0,"finishReason":"STOP"}'
    assert said.split("\n\n") == [*lines, f'data: {{"candidates":[{last}],{COUNTS}', ""]


def test_a_stream_as_an_array() -> None:
    request = read("stream", {"contents": HI})
    encoder = SERVER.encoder(request)
    whole = encoder.feed(LIVE[:3]) + encoder.feed(LIVE[3:])
    objects = json.loads(whole)
    assert encoder.media_type == "application/json"
    assert [len(found["candidates"]) for found in objects] == [1, 1, 1]  # no thoughts: they were not asked for
    cut = SERVER.encoder(request)
    broken = cut.feed(LIVE[:3]) + cut.fail(BackendFailed("It broke."))
    assert json.loads(broken)[-1] == {"error": {"code": 502, "message": "It broke.", "status": "INTERNAL"}}
    assert json.loads(SERVER.encoder(request).fail(BackendFailed("At once.")))[0]["error"]["message"] == "At once."


def test_a_whole_answer() -> None:
    reply = SERVER.encode(ask(), fold(LIVE))
    said = f'{{"content":{{"parts":[{{"text":"Let me see\u2028."}},{CALLS}],"role":"model"}}'
    assert reply.body.decode() == f'{{"candidates":[{said},"index":0,"finishReason":"STOP"}}],{COUNTS}'


def test_several_candidates() -> None:
    events: Events = (
        Started("m", 1),
        Delta(choice=1, text="B"),
        Delta(choice=0, text="A"),
        Finished(choice=0, reason=FinishReason.EOS),
        Finished(choice=1, reason=FinishReason.LENGTH),
        Usage(1, 2),
    )
    frames = SERVER.encoder(ask({"candidateCount": 2}, "stream")).feed(events).decode().split("\n\n")[:-1]
    found = [json.loads(frame.removeprefix("data: "))["candidates"] for frame in frames]
    assert [[each["index"] for each in candidates] for candidates in found] == [[1], [0], [0, 1]]
    assert [each["finishReason"] for each in found[-1]] == ["STOP", "MAX_TOKENS"]


def test_log_probabilities() -> None:
    token = Token(3, "Hi", -0.5, top=(TopToken(3, "Hi", -0.5), TopToken(4, "Ho", -1.5)))
    events: Events = (
        Started("m", 1),
        Delta(text="Hi", tokens=(token,)),
        Finished(reason=FinishReason.EOS),
        Usage(1, 1),
    )
    request = ask({"responseLogprobs": True, "logprobs": 1})
    [candidate] = json.loads(SERVER.encode(request, fold(events)).body)["candidates"]
    hi = {"token": "Hi", "tokenId": 3, "logProbability": -0.5}
    assert candidate["logprobsResult"] == {"topCandidates": [{"candidates": [hi]}], "chosenCandidates": [hi]}
    assert candidate["avgLogprobs"] == -0.5


def test_a_call_that_is_no_object_fails_the_answer_unless_it_was_cut() -> None:
    half = Delta(tool_calls=(ToolDelta(0, "c1", "f", '{"a": '),))
    with pytest.raises(BackendFailed):
        SERVER.encoder(ask()).feed((Started("m", 1), half, Finished(reason=FinishReason.EOS)))
    assert b'"args":{}' in SERVER.encoder(ask()).feed((Started("m", 1), half, Finished(reason=FinishReason.LENGTH)))


def test_errors() -> None:
    assert set(ADAPTER.dialects["gemini"].wording.failures) == set(KINDS)
    limited = SERVER.error(RateLimited("Slow down.", retry_after=3.0))
    assert (limited.status, limited.headers) == (429, (("retry-after", "3"),))
    assert json.loads(limited.body) == {"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED"}}
    assert SERVER.error(MethodNotAllowed("No.", allowed=("GET",))).headers == (("allow", "GET"),)


def test_embeddings() -> None:
    one = {"content": {"parts": [{"text": "a"}, {"text": "b"}]}, "outputDimensionality": 2, "taskType": "CLUSTERING"}
    asked = read("embed", one)
    assert isinstance(asked, Embed)
    assert (asked.inputs, asked.dimensions, asked.unknown) == ((TextPrompt("ab"),), 2, ("taskType",))
    answer = Embeddings("m", ((0.5, 1.0),), Usage(1, 0))
    assert SERVER.encode_embeddings(asked, answer).body == b'{"embedding":{"values":[0.5,1.0]}}'
    batch = read("batch_embed", {"requests": [{"model": "models/m", "content": {"parts": [{"text": "a"}]}}]})
    assert SERVER.encode_embeddings(batch, answer).body == b'{"embeddings":[{"values":[0.5,1.0]}]}'
    for wrong in (
        {"requests": []},
        {"requests": [{"content": {"parts": []}}]},
        {"requests": [one, one | {"outputDimensionality": 3}]},
    ):
        with pytest.raises(InvalidRequest):
            read("batch_embed", wrong)


def test_tokens_are_counted() -> None:
    for fields in ({"contents": HI}, {"generateContentRequest": {"contents": HI}}):
        counted = read("count_tokens", fields)
        assert isinstance(counted, Tokenize)
        assert counted.prompt == ChatPrompt((Message("user", "Hi"),))
    spans = (TokenSpan(1, "H", 0, 1), TokenSpan(2, "i", 1, 2))
    assert SERVER.encode_tokens(counted, Tokens(spans, "Hi")).body == b'{"totalTokens":2}'
    call = Call("r1", CATALOG, {"model": "e"})
    text = SERVER.decode(ROUTES["count_tokens"], json.dumps({"contents": HI + HI}).encode(), call)
    assert isinstance(text, Tokenize)
    assert text.prompt == TextPrompt("HiHi")


def described(route: str, model: str = "m", **query: str) -> Any:
    return json.loads(SERVER.describe(ROUTES[route], Call("r1", CATALOG, {"id": model}, query=query), b"").body)


def test_models() -> None:
    assert described("model") == {
        "name": "models/m",
        "version": "1",
        "displayName": "m",
        "inputTokenLimit": 4096,
        "outputTokenLimit": 4096,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
    assert described("model", "e")["supportedGenerationMethods"] == [
        "embedContent",
        "batchEmbedContents",
        "countTokens",
    ]
    ranks = Call("r1", Catalog({"r": ModelCard(name="r", task="rerank")}), {"id": "r"})
    assert b"Content" not in SERVER.describe(ROUTES["model"], ranks, b"").body
    assert [model["name"] for model in described("models")["models"]] == ["models/m", "models/e"]
    page = described("models", pageSize="1")
    assert page["nextPageToken"] == "1"
    assert [model["name"] for model in described("models", pageToken="1")["models"]] == ["models/e"]
    with pytest.raises(ModelNotFound, match="models/x is not found"):
        described("model", "x")
    with pytest.raises(InvalidRequest):
        described("models", pageSize="many")


LOW = "MEDIA_RESOLUTION_LOW"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"toolConfig": {"retrievalConfig": {"languageCode": "de"}}}, "toolConfig.retrievalConfig"),
        (
            {"toolConfig": {"includeServerSideToolInvocations": True}},
            "toolConfig.includeServerSideToolInvocations",
        ),
        ({"generationConfig": {"mediaResolution": LOW}}, "generationConfig.mediaResolution"),
        (
            {"contents": [{"parts": [{"text": "x", "mediaResolution": {"level": LOW}}]}]},
            "contents[0].parts[0].mediaResolution",
        ),
    ],
)
def test_a_known_field_without_effect_is_named(fields: dict[str, Any], name: str) -> None:
    assert ask(**fields).unknown == (name,)
