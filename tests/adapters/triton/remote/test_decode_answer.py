"""Answers of remotes: complete, cut off, failed, and in violation of the protocol."""

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
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Prompt,
    Started,
    TextPrompt,
    Token,
    TopToken,
    Usage,
)
from tests.adapters.triton.cases import CLIENTS


def asked(prompt: Prompt | str = "hi", **fields: Any) -> Generate:
    prompts = (TextPrompt(prompt) if isinstance(prompt, str) else prompt,)
    return Generate(**({"id": "r1", "model": "llama/8b", "prompts": prompts, "stream": True} | fields))


def read(*frames: dict[str, Any] | str, request: Generate | None = None, dialect: str = "triton") -> Events:
    reader = CLIENTS[dialect].decoder(request or asked())
    data = "".join(f"data: {frame if isinstance(frame, str) else json.dumps(frame)}\n\n" for frame in frames)
    return reader.feed(data.encode()) + reader.close()


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


def test_endless_events_are_refused() -> None:
    reader = CLIENTS["triton"].decoder(asked())
    reader.feed(b"data: " + b"x" * (1 << 19))
    with pytest.raises(BackendFailed):
        reader.feed(b"x" * (1 << 20))
