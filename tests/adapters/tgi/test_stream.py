"""Frames of unusual events; the usual ones are golden files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import StreamEncoder
from adapters.tgi.stream import StreamWriter
from schemas.errors import BackendTimeout
from schemas.ir import (
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Started,
    Token,
    ToolDelta,
    TopToken,
    Usage,
)
from tests.adapters.laws import batches, streams
from tests.adapters.tgi.scenes import NAMES, ZOE, ask, server


def frames(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    return [json.loads(frame.removeprefix(b"data:")) for frame in data[:-2].split(b"\n\n")]


def write(request: Generate, events: Events, name: str = "tgi", **knobs: Any) -> list[Any]:
    return frames(server(name, **knobs).encoder(request).feed(events))


def detailed(name: str = "tgi", **parameters: Any) -> Generate:
    return ask(name, {"details": True} | parameters, operation="generate_stream")


def test_is_a_stream_encoder() -> None:
    encoder: StreamEncoder = server("tgi").encoder(detailed())
    assert isinstance(encoder, StreamWriter)
    assert encoder.headers == (
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
        ("x-compute-type", "unknown"),
        ("x-compute-characters", "5"),
    )


def test_mindie_has_no_compute_headers() -> None:
    headers = server("mindie").encoder(detailed("mindie")).headers
    assert headers == (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


def test_there_is_no_end_before_usage() -> None:
    encoder = server("tgi").encoder(detailed())
    data = b"".join(encoder.feed((event,)) for event in ZOE[:-1])
    assert all(frame["generated_text"] is None for frame in frames(data))
    assert len(frames(data)) == 4
    assert frames(encoder.feed(ZOE[-1:]))[0]["generated_text"] is not None


def test_a_failure_instead_of_usage_is_no_end() -> None:
    encoder = server("tgi").encoder(detailed())
    data = encoder.feed(ZOE[:-1]) + encoder.fail(BackendTimeout("Late."))
    *tokens, error = frames(data)
    assert all(frame["generated_text"] is None for frame in tokens)
    assert error == {"error": "Request failed during generation: Late.", "error_type": "generation"}


def test_started_alone_is_no_frame() -> None:
    assert server("tgi").encoder(detailed()).feed((Started("m", 3),)) == b""


def test_several_tokens_in_a_delta() -> None:
    delta = Delta(text="ab", tokens=(Token(1, "a", -1.0), Token(2, "b", -2.0)))
    end = Finished(text="cd", tokens=(Token(3, "c"), Token(4, "d")), reason=FinishReason.LENGTH, generated=4)
    got = write(detailed(), (Started("m"), delta, end, Usage(1, 4)))
    assert [(frame["index"], frame["token"]["id"], frame["token"]["text"]) for frame in got] == [
        (1, 1, "a"),
        (2, 2, "b"),
        (3, 3, "c"),
        (4, 4, "d"),
    ]
    assert got[-1]["generated_text"] == "abcd"


def test_tokens_without_ids() -> None:
    end = Finished(text="a", tokens=(Token(None, "a"),), reason=FinishReason.LENGTH)
    [frame] = write(detailed(), (Started("m"), end, Usage(1, 1)))
    assert frame["token"] == {"id": 0, "text": "a", "logprob": None, "special": False}
    assert frame["details"]["generated_tokens"] == 1


def test_a_last_text_without_tokens_is_the_last_frame() -> None:
    end = Finished(text="a", reason=FinishReason.LENGTH)
    [frame] = write(detailed(), (Started("m"), end, Usage(1, 1)))
    assert (frame["token"]["text"], frame["token"]["special"], frame["generated_text"]) == ("a", False, "a")


def test_an_answer_without_any_text() -> None:
    [frame] = write(detailed(), (Started("m"), Finished(reason=FinishReason.EOS, generated=0), Usage(1, 5)))
    assert frame["token"] == {"id": 0, "text": "", "logprob": None, "special": True}
    assert (frame["generated_text"], frame["details"]["generated_tokens"]) == ("", 0)


def test_reasoning_and_tool_calls_are_no_frames() -> None:
    events = (Started("m"), Delta(reasoning="Hm."), Delta(tool_calls=(ToolDelta(0, "a", "f"),)), *ZOE[1:])
    assert len(write(detailed(), events)) == 5


@pytest.mark.parametrize(("name", "text"), [("tgi", "<tag>"), ("mindie", "")])
def test_a_special_token_in_the_middle(name: str, text: str) -> None:
    delta = Delta(text="ab", tokens=(Token(1, "a"), Token(9, "<tag>", special=True), Token(2, "b")))
    got = write(
        detailed(name), (Started("m"), delta, Finished(reason=FinishReason.LENGTH, generated=3), Usage(1, 3)), name
    )
    assert [frame["token"]["text"] for frame in got] == ["a", text, "b", ""]
    assert got[-1]["generated_text"] == "ab"


@pytest.mark.parametrize(
    ("reason", "tgi", "mindie"),
    [
        (FinishReason.EOS, "eos_token", "eos_token"),
        (FinishReason.STOP_STRING, "stop_sequence", "eos_token"),
        (FinishReason.STOP_TOKEN, "stop_sequence", "eos_token"),
        (FinishReason.LENGTH, "length", "length"),
        (FinishReason.TOOL_CALL, "eos_token", "eos_token"),
        (FinishReason.CONTENT_FILTER, "stop_sequence", "stop_sequence"),
    ],
)
def test_finish_reasons(reason: FinishReason, tgi: str, mindie: str) -> None:
    events = (Started("m"), Finished(reason=reason, generated=0), Usage(1, 0))
    for name, word in (("tgi", tgi), ("tgi-0.9", tgi), ("mindie", mindie)):
        assert write(detailed(name), events, name)[-1]["details"]["finish_reason"] == word


@pytest.mark.parametrize("name", NAMES)
def test_every_finish_reason_has_a_name(name: str) -> None:
    assert set(server(name)._dialect.wording.finish) == set(FinishReason)


@pytest.mark.parametrize(
    ("name", "parameters", "reported", "seed"),
    [
        ("tgi", {"do_sample": True}, 5, 5),
        ("tgi", {"do_sample": True, "seed": 7}, None, 7),
        ("tgi", {"do_sample": True, "seed": 7}, 5, 5),
        ("tgi", {"do_sample": True}, None, None),
        ("tgi", {"seed": 7}, 7, None),
        ("tgi-0.9", {"seed": 7}, 7, None),
        ("mindie", {"seed": 7}, 7, 7),
        ("mindie", {"seed": 7}, None, 7),
        ("mindie", {"do_sample": False}, 5, 5),
    ],
)
def test_which_seed_is_in_the_details(
    name: str, parameters: dict[str, Any], reported: int | None, seed: int | None
) -> None:
    events = (Started("m"), Finished(reason=FinishReason.EOS, generated=0, seed=reported), Usage(1, 0))
    assert write(detailed(name, **parameters), events, name)[-1]["details"]["seed"] == seed


def test_full_text_is_in_generated_text_only() -> None:
    got = write(detailed(return_full_text=True), ZOE)
    assert got[0]["token"]["text"] == "Zo"
    assert got[-1]["generated_text"].startswith("Who? Zoë")


def test_full_text_of_a_list() -> None:
    inputs = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "/b"}, {"type": "text", "text": "c"}]
    request = ask("mindie", {"return_full_text": True}, operation="generate_stream", inputs=inputs)
    assert write(request, ZOE, "mindie")[-1]["generated_text"].startswith("acZoë")


def test_top_tokens_only_if_requested() -> None:
    token = Token(1, "a", -1.0, top=(TopToken(None, "a", -1.0),))
    events = (Started("m"), Finished(text="a", tokens=(token,), reason=FinishReason.EOS), Usage(1, 1))
    assert "top_tokens" not in write(detailed(), events)[0]
    assert write(detailed(top_n_tokens=1), events)[0]["top_tokens"][0]["id"] == 0


@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("with_tokens", [True, False])
def test_frames_join_to_the_text_for_any_batches(name: str, with_tokens: bool, data: st.DataObject) -> None:
    events = data.draw(streams(with_tokens=with_tokens, end_token=True))
    request = detailed(name)
    whole = server(name).encoder(request).feed(events)
    encoder = server(name).encoder(request)
    assert b"".join(encoder.feed(batch) for batch in data.draw(batches(events))) == whole
    got = frames(whole)
    spoken = "".join(frame["token"]["text"] for frame in got if frame["token"]["special"] is not True)
    assert got[-1]["generated_text"] == spoken == "".join(e.text for e in events if isinstance(e, Delta))
    assert all(frame["generated_text"] is None is frame["details"] for frame in got[:-1])
    if name == "tgi":
        assert [frame["index"] for frame in got] == list(range(1, len(got) + 1))


@given(events=streams(end_token=True))
def test_cumulative_text(events: Events) -> None:
    plain = write(detailed("mindie"), events, "mindie")
    full = write(detailed("mindie"), events, "mindie", full_text=True)
    so_far = ""
    for one, all_of_it in zip(plain, full, strict=True):
        so_far += one["token"]["text"]
        assert all_of_it["token"]["text"] == so_far
        assert one["generated_text"] == all_of_it["generated_text"]
