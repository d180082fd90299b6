"""Errors of every kind in both dialects, the headers that the official SDKs read, and the names of features."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.openai.dialects import DIALECTS
from schemas.errors import (
    KINDS,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    Conflict,
    ContextLengthExceeded,
    Forbidden,
    GatewayError,
    Incomplete,
    InternalError,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    ModelNotFound,
    ObjectNotFound,
    Overloaded,
    RateLimited,
    RequestTimeout,
    RouteNotFound,
    ShuttingDown,
    Unauthorized,
    UnsupportedFeature,
    UnsupportedMediaType,
)
from schemas.ir import Generate
from tests.adapters.openai.scenes import ROUTES, call, chat, client, completion, server

INVALID = "invalid_request_error"


def response() -> Generate:
    """A response as the server codec decodes it."""
    request = server().decode(ROUTES["responses"], b'{"model": "m", "input": "Hi"}', call())
    assert isinstance(request, Generate)
    return request


SERVER = "server_error"
MINDIE_INVALID = "Input Validation Error"

Row = tuple[GatewayError, tuple[int, str, str | None, str | None], tuple[int, str]]
ROWS: list[Row] = [
    (InvalidRequest("m", param="n"), (400, INVALID, "n", None), (422, MINDIE_INVALID)),
    (InvalidRequest("m", param="n", code="c"), (400, INVALID, "n", "c"), (422, MINDIE_INVALID)),
    (MalformedBody("m"), (400, INVALID, None, None), (422, MINDIE_INVALID)),
    (
        UnsupportedFeature("m", feature="tools"),
        (400, INVALID, "tools", "unsupported_parameter"),
        (422, MINDIE_INVALID),
    ),
    (ContextLengthExceeded("m"), (400, INVALID, None, "context_length_exceeded"), (422, MINDIE_INVALID)),
    (Unauthorized("m"), (401, INVALID, None, "invalid_api_key"), (401, "Unauthorized")),
    (Forbidden("m"), (403, INVALID, None, "permission_denied"), (403, "Forbidden")),
    (ModelNotFound("m"), (404, INVALID, "model", "model_not_found"), (404, "NotFoundError")),
    (RouteNotFound("m"), (404, INVALID, None, "unknown_url"), (404, "NotFoundError")),
    (ObjectNotFound("m"), (404, INVALID, None, None), (404, "NotFoundError")),
    (MethodNotAllowed("m"), (405, INVALID, None, "method_not_supported"), (405, "Method Not Allowed")),
    (Conflict("m"), (409, INVALID, None, "conflict"), (409, MINDIE_INVALID)),
    (BodyTooLarge("m"), (413, INVALID, None, "request_too_large"), (413, MINDIE_INVALID)),
    (UnsupportedMediaType("m"), (415, INVALID, None, "unsupported_media_type"), (415, MINDIE_INVALID)),
    (RequestTimeout("m"), (408, INVALID, None, "request_timeout"), (408, "Request Timeout")),
    (RateLimited("m"), (429, "rate_limit_error", None, "rate_limit_exceeded"), (429, "Too Many Requests")),
    (Overloaded("m"), (503, SERVER, None, "server_is_overloaded"), (503, "Service Unavailable")),
    (ShuttingDown("m"), (503, SERVER, None, "server_shutdown"), (503, "Service Unavailable")),
    (BackendFailed("m"), (502, SERVER, None, "backend_failed"), (424, "Generation Error")),
    (BackendFailed("m", code="upstream_auth"), (502, SERVER, None, "upstream_auth"), (424, "Generation Error")),
    (BackendUnavailable("m"), (503, SERVER, None, "backend_unavailable"), (503, "Service Unavailable")),
    (BackendTimeout("m"), (504, SERVER, None, "timeout"), (500, "Incomplete Generation")),
    (Incomplete("m"), (502, SERVER, None, "incomplete_generation"), (500, "Incomplete Generation")),
    (InternalError(), (500, SERVER, None, "internal_error"), (500, "Incomplete Generation")),
]


@pytest.mark.parametrize("name", DIALECTS)
def test_every_kind_of_error_has_an_answer(name: str) -> None:
    rows = {error.kind for error, *_ in ROWS}
    assert set(KINDS) <= set(DIALECTS[name].wording.failures) <= rows
    assert rows - set(KINDS) == {"object_not_found"}


@pytest.mark.parametrize(("error", "expected", "_"), ROWS)
def test_openai(error: GatewayError, expected: tuple[int, str, str | None, str | None], _: Any) -> None:
    reply = server().error(error)
    status, type, param, code = expected
    assert reply.status == status
    assert reply.media_type == "application/json"
    body = {"error": {"message": error.message, "type": type, "param": param, "code": code}}
    assert reply.body == json.dumps(body, separators=(",", ":")).encode()


@pytest.mark.parametrize(("error", "_", "expected"), ROWS)
def test_mindie(error: GatewayError, _: Any, expected: tuple[int, str]) -> None:
    reply = server("mindie-openai").error(error)
    message = {
        "malformed_body": "Failed to parse request context to json. m",
        "timeout": "Engine callback timeout.",
    }.get(error.kind, error.message)
    assert reply.status == expected[0]
    assert reply.body == json.dumps({"error": message, "error_type": expected[1]}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (RateLimited("m", retry_after=1.25), {"retry-after": "2", "retry-after-ms": "1250"}),
        (Overloaded("m", retry_after=0.05), {"retry-after": "1", "retry-after-ms": "50"}),
        (Overloaded("m"), {}),
        (BackendUnavailable("m"), {}),
        (BackendFailed("m"), {"x-should-retry": "false"}),
        (BackendFailed("m", retry_after=3), {"retry-after": "3", "retry-after-ms": "3000"}),
        (BackendTimeout("m"), {"x-should-retry": "false"}),
        (Incomplete("m"), {"x-should-retry": "false"}),
        (InternalError(), {"x-should-retry": "false"}),
        (InvalidRequest("m"), {}),
        (MethodNotAllowed("m", allowed=("GET", "HEAD")), {"allow": "GET, HEAD"}),
    ],
)
def test_headers(error: GatewayError, headers: dict[str, str]) -> None:
    assert dict(server().error(error).headers) == headers


@pytest.mark.parametrize(
    ("error", "ask", "param"),
    [
        (UnsupportedFeature("m", feature="grammar"), chat, "response_format"),
        (UnsupportedFeature("m", feature="images"), chat, "messages"),
        (UnsupportedFeature("m", feature="token_prompts"), completion, "prompt"),
        (UnsupportedFeature("m", feature="prompt_logprobs"), completion, "echo"),
        (UnsupportedFeature("m", feature="top_logprobs"), chat, "top_logprobs"),
        (UnsupportedFeature("m", feature="top_logprobs"), completion, "logprobs"),
        (UnsupportedFeature("m", feature="embeddings"), chat, None),
        (UnsupportedFeature("m", feature="tools", param="tools[1]"), chat, "tools[1]"),
        (ContextLengthExceeded("m"), chat, "messages"),
        (ContextLengthExceeded("m"), completion, "prompt"),
        (ContextLengthExceeded("m"), response, "input"),
        (ContextLengthExceeded("m", param="messages"), response, "input"),
        (UnsupportedFeature("m", feature="images"), response, "input"),
        (UnsupportedFeature("m", feature="logprobs"), response, "include"),
        (UnsupportedFeature("m", feature="grammar"), response, "text.format"),
        (UnsupportedFeature("m", feature="truncation"), response, "truncation"),
        (InvalidRequest("m", param="response_format"), response, "text.format"),
    ],
)
def test_the_field_at_fault_is_named(error: GatewayError, ask: Any, param: str | None) -> None:
    assert json.loads(server().error(error, ask()).body)["error"]["param"] == param


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "(", "guided_json_object": False}, "guided_regex"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"structured_outputs": {"grammar": "g"}}, "structured_outputs.grammar"),
    ],
)
def test_the_constraint_at_fault_is_named(ask: Any, fields: dict[str, Any], param: str) -> None:
    request = ask(**fields)
    for error in (InvalidRequest("m", param="response_format"), UnsupportedFeature("m", feature="grammar")):
        assert json.loads(server().error(error, request).body)["error"]["param"] == param


IMAGE = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
SEEN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [IMAGE, {"type": "text", "text": "What?"}, IMAGE]},
    {"role": "assistant", "content": "A square."},
    {"role": "user", "content": [{"type": "text", "text": "And here?"}, IMAGE]},
]


@pytest.mark.parametrize(
    ("number", "param"),
    [
        (0, "messages[1].content[0].image_url"),
        (1, "messages[1].content[2].image_url"),
        (2, "messages[3].content[1].image_url"),
    ],
)
def test_the_image_at_fault_is_named(number: int, param: str) -> None:
    reply = server().error(InvalidRequest("m", param=f"images[{number}]"), chat(messages=SEEN))
    assert json.loads(reply.body)["error"]["param"] == param


FRAMES = {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,QQ==,QQ==,QQ=="}}
EMBEDDINGS = {"type": "image_embeds", "image_embeds": "QQ=="}


def test_frames_and_embeddings_at_fault_are_named() -> None:
    """All frames of a video are one part of the client's."""
    seen = [{"role": "user", "content": [FRAMES, {"type": "text", "text": "What?"}, FRAMES, IMAGE, EMBEDDINGS]}]
    named = [
        json.loads(server().error(InvalidRequest("m", param=f"images[{number}]"), chat(messages=seen)).body)["error"]
        for number in range(8)
    ]
    assert [error["param"].removeprefix("messages[0].content") for error in named] == [
        *["[0].video_url"] * 3,
        *["[2].video_url"] * 3,
        "[3].image_url",
        "[4].image_embeds",
    ]


def test_several_images_at_fault() -> None:
    reply = server().error(InvalidRequest("m", param="images"), chat(messages=SEEN))
    assert json.loads(reply.body)["error"]["param"] == "messages"


def test_an_image_at_fault_without_a_known_place() -> None:
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/b.png"}]}
    body = json.dumps({"model": "m", "input": [item]}).encode()
    asked = server().decode(ROUTES["responses"], body, call())
    error = InvalidRequest("m", param="images[0]")
    assert json.loads(server().error(error, asked).body)["error"]["param"] == "input"
    assert json.loads(server().error(error).body)["error"]["param"] is None


def test_an_unknown_model() -> None:
    with pytest.raises(ModelNotFound) as caught:
        server().describe(ROUTES["model"], call(id="gpt-9"), b"")
    assert server().error(caught.value).body == (
        b'{"error":{"message":"The model \'gpt-9\' does not exist","type":"invalid_request_error",'
        b'"param":"model","code":"model_not_found"}}'
    )


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("error", [error for error, *_ in ROWS], ids=lambda error: error.kind)
def test_every_kind_of_error_can_be_written_into_a_stream(name: str, error: GatewayError) -> None:
    frame = server(name).encoder(chat(name, stream=True)).fail(error)
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    assert json.loads(frame.removeprefix(b"data: "))["error"]
    reader = client(name).decoder(chat(name, stream=True))
    with pytest.raises(GatewayError):
        reader.feed(frame)
