"""Non-streamed answers beside the golden files: headers, counts, the best of several."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from adapters.fold import fold
from adapters.tgi.encode import encode_tokens
from schemas.completion import Choice, Completion, Timings
from schemas.ir import Finished, FinishReason, Started, TextPrompt, Token, Tokenize, Tokens, TokenSpan, Usage
from tests.adapters.tgi.scenes import WITHOUT_TOKENS, ZOE, ask, dialect, server

TIMED = msgspec.structs.replace(fold(ZOE), timings=Timings(first_event=0.25, total=1.5))


def test_headers_of_tgi() -> None:
    assert server("tgi").encode(ask("tgi"), TIMED).headers == (
        ("x-compute-type", "unknown"),
        ("x-compute-characters", "5"),
        ("x-compute-time", "1.5"),
        ("x-total-time", "1500"),
        ("x-validation-time", "0"),
        ("x-queue-time", "0"),
        ("x-inference-time", "1500"),
        ("x-time-per-token", "300"),
        ("x-prompt-tokens", "7"),
        ("x-generated-tokens", "5"),
    )


def test_headers_of_0_9() -> None:
    headers = dict(server("tgi-0.9").encode(ask("tgi-0.9"), TIMED).headers)
    assert headers["x-compute-time"] == "1500"
    assert "x-prompt-tokens" not in headers


def test_headers_of_mindie() -> None:
    assert server("mindie").encode(ask("mindie"), TIMED).headers == ()


def test_answers_without_timings_have_no_timing_headers() -> None:
    names = [name for name, _ in server("tgi", compute_type="cpu").encode(ask("tgi"), fold(ZOE)).headers]
    assert names == ["x-compute-type", "x-compute-characters", "x-prompt-tokens", "x-generated-tokens"]


@pytest.mark.parametrize(
    ("count", "usage", "generated"), [(4, 9, 4), (0, 9, 0), (None, 9, 9)], ids=["counted", "none", "by usage"]
)
def test_generated_tokens(count: int | None, usage: int, generated: int) -> None:
    answer = Completion("m", (Choice(0, FinishReason.EOS, "a", generated=count),), Usage(1, usage))
    body = json.loads(server("tgi").encode(ask("tgi", {"details": True}), answer).body)
    assert body["details"]["generated_tokens"] == generated


def test_an_answer_without_tokens() -> None:
    body = json.loads(server("tgi").encode(ask("tgi", {"details": True}), fold(WITHOUT_TOKENS)).body)
    assert body["generated_text"] == "Zoë says no"
    assert (body["details"]["tokens"], body["details"]["prefill"]) == ([], [])
    assert "top_tokens" not in body["details"]


def test_decoder_input_details_of_mindie_are_ids() -> None:
    answer = msgspec.structs.replace(fold(ZOE), prompts=((Token(1, "<s>"), Token(7, "Who?", -3.0)),))
    body = server("mindie").encode(ask("mindie", {"decoder_input_details": True}), answer).body
    null = {"logprob": None, "special": None, "text": None}
    assert json.loads(body)["details"]["prefill"] == [{"id": 1} | null, {"id": 7} | null]


def test_the_prompts_tokens_only_if_requested() -> None:
    """A backend also returns them for an echo."""
    answer = msgspec.structs.replace(fold(ZOE), prompts=((Token(1, "<s>"),),))
    body = server("tgi").encode(ask("tgi", {"details": True, "return_full_text": True}), answer).body
    assert json.loads(body)["details"]["prefill"] == []


@pytest.mark.parametrize(
    ("logprobs", "best"),
    [
        (([-1.0, -1.0], [-0.5, -2.0]), "a"),
        (([-1.0], [-0.1, -0.2, -0.9]), "b"),
        (([-1.0], [-1.0]), "a"),
        (([None], [None]), "a"),
        (([None], [-9.0]), "b"),
        (([], []), "a"),
    ],
)
def test_the_best_answer_has_the_highest_mean_logprob(
    logprobs: tuple[list[float | None], list[float | None]], best: str
) -> None:
    choices = tuple(
        Choice(
            index,
            FinishReason.LENGTH,
            "ab"[index],
            tuple(Token(1, "ab"[index], logprob) for logprob in own),
            generated=len(own),
        )
        for index, own in enumerate(logprobs)
    )
    request = ask("tgi", {"best_of": 2, "do_sample": True, "details": True})
    body: Any = json.loads(server("tgi").encode(request, Completion("m", choices, Usage(1, 4))).body)
    assert body["generated_text"] == best
    assert [other["generated_text"] for other in body["details"]["best_of_sequences"]] == ["ab".replace(best, "")]


def test_tokenize_counts_bytes() -> None:
    text = "aé漢🙂b"
    spans = tuple(TokenSpan(at, character, at, at + 1) for at, character in enumerate(text))
    got = json.loads(encode_tokens(Tokenize(id="r", model="m", prompt=TextPrompt(text)), Tokens(spans, text)).body)
    assert [text.encode()[token["start"] : token["stop"]].decode() for token in got] == list(text)


@pytest.mark.parametrize(
    ("name", "limit", "word"),
    [("tgi", 2, "length"), ("tgi-0.9", 2, "length"), ("mindie", 2, "eos_token"), ("tgi", 3, None)],
)
def test_the_length_goes_before_an_end_on_the_last_token(name: str, limit: int, word: str | None) -> None:
    for reason in (FinishReason.EOS, FinishReason.STOP_STRING):
        choice = Choice(0, reason, "a", (Token(21, "a"), Token(1, "</s>", special=True)), generated=2)
        asked = ask(name, {"max_new_tokens": limit, "details": True})
        found = json.loads(server(name).encode(asked, Completion("m", (choice,), Usage(2, 2))).body)
        assert found["details"]["finish_reason"] == (word or dialect(name).wording.finish[reason])
        streamed = ask(name, {"max_new_tokens": limit, "details": True}, operation="generate_stream")
        frames = (
            server(name)
            .encoder(streamed)
            .feed((Started("m"), Finished(text="a", tokens=(Token(21, "a"),), reason=reason, generated=2), Usage(2, 2)))
        )
        last = json.loads(frames.decode().strip().rpartition("data:")[2])
        assert last["details"]["finish_reason"] == (word or dialect(name).wording.finish[reason])
