"""Requests to remotes, and their error replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Reply
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Origin,
    Prompt,
    Sampling,
    Stopping,
    TextPrompt,
    TokensPrompt,
    Tool,
)
from tests.adapters.triton.cases import CLIENTS


def asked(prompt: Prompt | str = "hi", **fields: Any) -> Generate:
    prompts = (TextPrompt(prompt) if isinstance(prompt, str) else prompt,)
    return Generate(**({"id": "r1", "model": "llama/8b", "prompts": prompts, "stream": True} | fields))


def sent(request: Generate, dialect: str = "triton") -> dict[str, Any]:
    return json.loads(CLIENTS[dialect].encode(request).body)


def parameters(request: Generate, dialect: str = "triton") -> dict[str, Any]:
    body = sent(request, dialect)
    return json.loads(body["sampling_parameters"]) if "sampling_parameters" in body else body["parameters"]


def test_paths() -> None:
    assert CLIENTS["triton"].encode(asked()).path == "/v2/models/llama%2F8b/generate_stream"
    assert CLIENTS["triton"].encode(asked(stream=False)).path == "/v2/models/llama%2F8b/generate"


def test_the_finish_reason_is_always_requested() -> None:
    assert sent(asked()) == {
        "id": "r1",
        "text_input": "hi",
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "parameters": {"max_tokens": 1 << 20, "temperature": 0.0},
    }


def test_mindie() -> None:
    request = asked(sampling=Sampling(temperature=0.5, top_k=3, top_p=1.0), stopping=Stopping(max_new_tokens=5))
    assert sent(request, "mindie-triton") == {
        "id": "r1",
        "text_input": "hi",
        "parameters": {"max_new_tokens": 5, "top_k": 3, "do_sample": True, "temperature": 0.5, "details": True},
    }
    assert parameters(asked(), "mindie-triton")["do_sample"] is False


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"sampling": Sampling(temperature=0.0)}, "temperature", 0.0),
        ({"sampling": Sampling(do_sample=True)}, "temperature", 1.0),
        ({"sampling": Sampling(do_sample=False, temperature=0.7)}, "temperature", 0.0),
        ({"sampling": Sampling(top_p=0.0, do_sample=True)}, "top_p", 1e-6),
        ({"sampling": Sampling(seed=0)}, "seed", 0),
        ({"sampling": Sampling(logit_bias=((5, -1.0),))}, "logit_bias", {"5": -1.0}),
        ({"stopping": Stopping(max_new_tokens=0)}, "max_tokens", 0),
        ({"stopping": Stopping(stop=("a", "b"))}, "stop", ["a", "b"]),
        ({"stopping": Stopping(stop_token_ids=(1,), include_stop=True)}, "include_stop_str_in_output", True),
        ({"n": 2}, "n", 2),
        ({"n": 2, "best_of": 3}, "best_of", 3),
        ({"logprobs": True, "top_logprobs": 2}, "logprobs", 2),
        ({"lora_adapter": "alpaca"}, "lora_name", "alpaca"),
        ({"truncate_prompt_tokens": 9}, "truncate_prompt_tokens", 9),
        ({"grammar": Grammar("json_schema", {"type": "object"})}, "structured_outputs", '{"json":{"type":"object"}}'),
        ({"grammar": Grammar("json_object")}, "structured_outputs", '{"json_object":true}'),
        ({"grammar": Grammar("regex", "a")}, "structured_outputs", '{"regex":"a"}'),
    ],
)
def test_parameters(fields: dict[str, Any], name: str, value: Any) -> None:
    assert parameters(asked(**fields))[name] == value


@pytest.mark.parametrize(
    ("dialect", "request_", "feature"),
    [
        ("triton", asked(ChatPrompt((Message("user", "hi"),))), "chat"),
        ("triton", asked(TokensPrompt((1, 2))), "token_prompts"),
        ("triton", asked(TextPrompt("hi", (ImagePart("http://host/a.png", "url"),))), "images"),
        ("triton", asked(tools=(Tool("f"),)), "tools"),
        ("triton", asked(suffix="x"), "suffix"),
        ("triton", asked(prompt_logprobs=True), "prompt_logprobs"),
        ("triton", asked(sampling=Sampling(typical_p=0.5)), "typical_p"),
        ("triton", asked(sampling=Sampling(watermark=True)), "watermark"),
        ("triton", asked(prompts=(TextPrompt("a"), TextPrompt("b"))), "several prompts"),
        ("mindie-triton", asked(stopping=Stopping(stop=("a",))), "stop"),
        ("mindie-triton", asked(sampling=Sampling(min_p=0.1)), "min_p"),
        ("mindie-triton", asked(logprobs=True), "logprobs"),
        ("mindie-triton", asked(n=2), "n"),
        ("mindie-triton", asked(lora_adapter="x"), "lora_adapters"),
        ("mindie-triton", asked(grammar=Grammar("regex", "a")), "grammar"),
    ],
)
def test_a_request_that_the_dialect_cannot_express_is_refused(dialect: str, request_: Generate, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as error:
        CLIENTS[dialect].encode(request_)
    assert error.value.feature == feature


def test_images() -> None:
    images = (ImagePart("data:image/png;base64,aGk=", "data"), ImagePart("eW8=", "data"))
    assert sent(asked(TextPrompt("hi", images)))["image"] == ["aGk=", "eW8="]
    assert sent(asked(TextPrompt("hi", images[1:])), "mindie-triton")["text_input"] == [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": "eW8="},
    ]


def test_unknown_parameters_are_forwarded_from_triton_to_triton() -> None:
    extra, hints = {"new": 1}, {"priority": 2}
    triton = asked(extra=extra, hints=hints, origin=Origin("triton", "triton", "generate"))
    assert parameters(triton)["new"] == 1
    assert "priority" not in parameters(triton)
    assert parameters(triton, "mindie-triton")["priority"] == 2
    assert "new" not in parameters(asked(extra=extra, origin=Origin("openai", "openai", "chat")))


def test_ids_that_mindie_would_refuse_are_not_sent() -> None:
    assert sent(asked(client_request_id="a b"))["id"] == "a b"
    assert "id" not in sent(asked(client_request_id="a b"), "mindie-triton")


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error":"bad top_p"}', "invalid_request", "bad top_p"),
        (400, b'data: {"error":"bad top_p"}\n\n', "invalid_request", "bad top_p"),
        (422, b'{"error":"bad","error_type":"Input Validation Error"}', "invalid_request", "bad"),
        (400, b"<html>", "invalid_request", "The backend refused the request."),
        (404, b'{"error":"unknown model"}', "model_not_found", "unknown model"),
        (413, b"", "body_too_large", "The backend refused the request."),
        (401, b'{"error":"bad key sk-123"}', "backend_failed", "The backend failed."),
        (403, b'{"error":"bad key sk-123"}', "backend_failed", "The backend failed."),
        (424, b'{"error":"at 10.0.0.1"}', "backend_failed", "The backend failed."),
        (429, b"", "overloaded", "The backend is overloaded."),
        (500, b'{"error":"at 10.0.0.1"}', "backend_failed", "The backend failed."),
        (501, b'{"error":"at 10.0.0.1"}', "backend_failed", "The backend failed."),
        (503, b'{"error":"at 10.0.0.1"}', "backend_unavailable", "The backend is unavailable."),
        (408, b"", "timeout", "The backend timed out."),
        (504, b"", "timeout", "The backend timed out."),
    ],
)
def test_error_replies(status: int, body: bytes, kind: str, message: str) -> None:
    error = CLIENTS["triton"].error(Reply(body, status, headers=(("Retry-After", "7"),)))
    assert (error.kind, error.message) == (kind, message)
    assert error.retry_after == (7.0 if status in (429, 503) else None)
