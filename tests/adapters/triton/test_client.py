"""Requests to remotes, and their answers: complete, cut off, failed, and in violation of the protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Reply
from adapters.dialect import with_options
from adapters.triton import ADAPTER
from adapters.triton.generate.encode import logprobs
from adapters.triton.remote.decode_answer import read_tokens
from schemas.errors import BackendError, BackendFailed, Incomplete, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Origin,
    Prompt,
    Sampling,
    Started,
    Stopping,
    TextPrompt,
    Token,
    TokensPrompt,
    Tool,
    TopToken,
    Usage,
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


def read(*frames: dict[str, Any] | str, request: Generate | None = None, dialect: str = "triton") -> Events:
    reader = CLIENTS[dialect].decoder(request or asked())
    data = "".join(f"data: {frame if isinstance(frame, str) else json.dumps(frame)}\n\n" for frame in frames)
    return reader.feed(data.encode()) + reader.close()


# --- requests ---------------------------------------------------------------------------------------------------


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


# --- answers ----------------------------------------------------------------------------------------------------

FIRST = {"model_name": "m", "num_input_tokens": 3, "num_output_tokens": 1, "finish_reason": "None", "text_output": "a"}
LAST = FIRST | {"finish_reason": "length", "text_output": "b"}


def test_a_stream() -> None:
    assert read(FIRST, LAST) == (
        Started("m", 3),
        Delta(0, "a"),
        Finished(0, "b", reason=FinishReason.LENGTH, generated=2),
        Usage(3, 2),
    )


def test_keep_alives_are_no_events() -> None:
    reader = CLIENTS["triton"].decoder(asked())
    assert reader.feed(b"\n\n: ping\n\ndata:\n\nevent: ping\n\n") == ()


def test_a_non_streamed_answer() -> None:
    events = CLIENTS["triton"].decode(asked(stream=False), Reply(json.dumps(LAST).encode()))
    assert events == (Started("m", 3), Finished(0, "b", reason=FinishReason.LENGTH, generated=1), Usage(3, 1))


def test_several_choices() -> None:
    first = {"text_output": ["", "b"], "finish_reason": ["None", "stop"], "num_output_tokens": [0, 1]}
    last = {"text_output": ["a", ""], "finish_reason": ["length", "stop"], "num_output_tokens": [1, 0]}
    assert read(first, last, request=asked(n=2)) == (
        Started("llama/8b"),
        Finished(1, "b", reason=FinishReason.EOS, generated=1),
        Finished(0, "a", reason=FinishReason.LENGTH, generated=1),
        Usage(0, 2),
    )


def test_tokens() -> None:
    scores = '[{"5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}, '
    scores += '"6": {"logprob": -1, "rank": 2, "decoded_token": "c"}}, '
    scores += '{"2": {"logprob": -0.25, "rank": 9, "decoded_token": "</s>"}, '
    scores += '"7": {"logprob": -0.125, "rank": 1, "decoded_token": "d"}}]'
    request = asked(logprobs=True, top_logprobs=2)
    (_, last, _) = read(LAST | {"text_output": "a", "logprobs": scores}, request=request)
    assert isinstance(last, Finished)
    assert last.tokens == (
        Token(5, "a", -0.5, top=(TopToken(5, "a", -0.5), TopToken(6, "c", -1.0))),
        Token(2, "</s>", -0.25, special=True, top=(TopToken(7, "d", -0.125),)),
    )


@pytest.mark.parametrize("id", [5, None])
def test_tokens_are_decoded_as_they_were_encoded(id: int | None) -> None:
    other = None if id is None else 6
    tops = (TopToken(other, "c", -0.25), TopToken(id, "a", -0.5))
    for token in (
        Token(id, "a", -0.5),
        Token(id, "a", -0.5, top=tops),
        Token(id, "a", -0.5, top=tops[::-1]),
        Token(id, "a", -0.5, top=tops[:1]),
    ):
        assert read_tokens(logprobs([token]), "a", len(token.top)) == (token,)


def test_mindie_answers() -> None:
    frames = (
        {"id": "1", "model_name": "m", "model_version": None, "text_output": "a", "details": {"generated_tokens": 1}},
        {"text_output": "b", "details": {"finish_reason": "eos_token", "generated_tokens": 2, "batch_size": [1]}},
    )
    assert read(*frames, dialect="mindie-triton") == (
        Started("m"),
        Delta(0, "a"),
        Finished(0, "b", reason=FinishReason.EOS, generated=2),
        Usage(0, 2),
    )


def test_full_text() -> None:
    client = ADAPTER.client(with_options(ADAPTER.dialects["triton"], {"full_text": True}))
    reader = client.decoder(asked())
    events = reader.feed(b'data: {"text_output":"a"}\n\ndata: {"text_output":"ab","finish_reason":"stop"}\n\n')
    assert [event.text for event in events if isinstance(event, Delta)] == ["a", "b"]
    with pytest.raises(BackendFailed):
        client.decoder(asked()).feed(b'data: {"text_output":"a"}\n\ndata: {"text_output":"b"}\n\n')


@pytest.mark.parametrize("frames", [(), (FIRST,), (FIRST, FIRST), ({"text_output": "a"},)])
def test_a_stream_without_a_finish_reason_is_incomplete(frames: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(Incomplete):
        read(*frames)


def test_remotes_without_a_finish_reason() -> None:
    client = ADAPTER.client(with_options(ADAPTER.dialects["triton"], {"finish_reason_output": False}))
    assert "return_finish_reason" not in json.loads(client.encode(asked()).body)
    with pytest.raises(UnsupportedFeature):
        client.encode(asked(logprobs=True))
    reader = client.decoder(asked())
    events = reader.feed(b'data: {"text_output":"a"}\n\n') + reader.close()
    assert events == (Started("llama/8b"), Delta(0, "a"), Finished(reason=FinishReason.EOS), Usage(0, 0))
    reader = client.decoder(asked())
    assert reader.close() == (Started("llama/8b"), Finished(reason=FinishReason.EOS), Usage(0, 0))
    reader = client.decoder(asked())
    reader.feed(b'data: {"text_output":"a"}\n\ndata: {"text_outp')
    with pytest.raises(Incomplete):
        reader.close()


MALFORMED = [
    "<html>502</html>",
    "[DONE]",
    "[]",
    "{}",
    '{"text_output": 3}',
    '{"text_output": null}',
    '{"text_output": ["a", "b"], "finish_reason": "stop"}',
    '{"text_output": "a", "finish_reason": ["stop", "stop"]}',
    '{"text_output": "a", "num_output_tokens": "1"}',
    '{"text_output": "a", "logprobs": "{"}',
    '{"text_output": "a", "logprobs": "[3]"}',
    '{"text_output": "a", "logprobs": "[{}]"}',
    '{"text_output": "\\ud800"}',
    '{"text_output": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
]


@pytest.mark.parametrize("frame", MALFORMED)
def test_answers_that_violate_the_protocol(frame: str) -> None:
    with pytest.raises(BackendFailed) as error:
        read(frame)
    assert error.value.code == "upstream_malformed"
    with pytest.raises(BackendError):
        CLIENTS["triton"].decode(asked(stream=False), Reply(frame.encode()))


@pytest.mark.parametrize("after", [FIRST, LAST | {"text_output": ""}])
def test_nothing_comes_after_the_end(after: dict[str, Any]) -> None:
    with pytest.raises(BackendFailed):
        read(LAST, after)


def test_a_choice_cannot_continue_after_its_end() -> None:
    ended = {"text_output": ["a", ""], "finish_reason": ["stop", "None"]}
    with pytest.raises(BackendFailed):
        read(ended, ended, request=asked(n=2))


@pytest.mark.parametrize(
    ("dialect", "frame"),
    [
        ("triton", {"error": "CUDA out of memory at 10.0.0.1"}),
        ("triton", {"error": {"message": "x"}}),
        ("triton", {"error": ""}),
        ("triton", FIRST | {"finish_reason": "abort"}),
        ("mindie-triton", {"text_output": "", "details": {"finish_reason": "stop_sequence"}}),
    ],
)
def test_failures(dialect: str, frame: dict[str, Any]) -> None:
    with pytest.raises(BackendFailed) as error:
        read(FIRST, frame, dialect=dialect)
    assert error.value.message == "The backend failed."


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


def test_endless_events_are_refused() -> None:
    reader = CLIENTS["triton"].decoder(asked())
    reader.feed(b"data: " + b"x" * (1 << 19))
    with pytest.raises(BackendFailed):
        reader.feed(b"x" * (1 << 20))
