"""Answers of remotes: the golden files decoded, answers cut off at any byte, violations of the protocol."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from adapters.fold import fold
from adapters.tgi.client import TgiClient
from schemas import errors
from schemas.completion import Completion
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Origin,
    Sampling,
    Started,
    Stopping,
    TextPrompt,
    Token,
    TopToken,
    Usage,
)
from tests.adapters.tgi.scenes import NAMES, ZOE, client, events_of, golden, reply

REQUEST = Generate(id="a", model="model", prompts=(TextPrompt("Who? "),))
STREAM = golden("tgi", "stream-details.sse")
TEXT = 'Zoë says\n"你好 🙂"\\'


def read(data: bytes, request: Generate = REQUEST, remote: TgiClient | None = None) -> Events:
    return events_of(remote or client("tgi"), request, data)


def asking(**fields: Any) -> Generate:
    return Generate(**{"id": "a", "model": "model", "prompts": (TextPrompt("a"),)} | fields)


def frame(text: str, **fields: Any) -> bytes:
    token = {"id": 5, "text": text, "logprob": -1.0, "special": False} | fields.pop("token", {})
    body = {"token": token, "generated_text": None, "details": None} | fields
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def last(text: str, whole: str, reason: str = "length", token: Any = None, **fields: Any) -> bytes:
    details = {"finish_reason": reason, "generated_tokens": 2, "seed": None, "input_length": 3}
    return frame(text, generated_text=whole, details=details | fields, token=token or {})


class TestGolden:
    def test_tgi(self) -> None:
        assert read(STREAM) == ZOE

    def test_0_9_does_not_count_the_prompt(self) -> None:
        events = read(golden("tgi-0.9", "stream-details.sse"), remote=client("tgi-0.9"))
        assert events == (*ZOE[:-1], Usage(0, 5))

    def test_mindie(self) -> None:
        events = read(golden("mindie", "stream-details.sse"), remote=client("mindie"))
        assert events[-1] == ZOE[-1]
        assert events[-2] == Finished(
            tokens=(Token(2, "", special=True),), reason=FinishReason.EOS, generated=5, seed=42
        )
        assert fold(events).choices[0].text == TEXT

    @pytest.mark.parametrize(
        ("text", "reason", "special"), [("", "eos_token", True), ("b", "eos_token", False), ("", "length", False)]
    )
    def test_mindies_textless_end_token_is_special(self, text: str, reason: str, special: bool) -> None:
        data = last(text, f"a{text}", reason, token={"special": None})
        finished = read(data, remote=client("mindie"))[-2]
        assert isinstance(finished, Finished)
        assert (finished.tokens[0].special, finished.text) == (special, text)

    def test_the_second_sample_of_mindies_page(self) -> None:
        events = read(golden("mindie", "document-2.sse"), remote=client("mindie", full_text=True))
        [choice] = fold(events).choices
        assert choice.text == "\nHello! How can I assist you today?"
        assert (choice.generated, choice.seed, choice.reason) == (11, 2296576927, FinishReason.EOS)
        assert [token.text for token in choice.tokens[1:4]] == ["Hello", "!", " How"]

    @pytest.mark.parametrize("name", NAMES)
    def test_a_non_streamed_answer(self, name: str) -> None:
        answer = reply(golden(name, "whole-details.json"), 200, ("X-Prompt-Tokens", "7"))
        [choice] = fold(client(name).decode(REQUEST, answer)).choices
        assert (choice.text, choice.generated, choice.seed) == (TEXT, 5, 42)
        assert choice.tokens == (() if name == "mindie" else fold(ZOE).choices[0].tokens)

    def test_a_non_streamed_answer_counts_the_prompt(self) -> None:
        body = golden("tgi", "whole-details.json")
        assert client("tgi").decode(REQUEST, reply(body, 200, ("x-prompt-tokens", "7")))[-1] == Usage(7, 5)
        assert client("tgi").decode(REQUEST, reply(body))[-1] == Usage(0, 5)
        assert client("mindie").decode(REQUEST, reply(golden("mindie", "whole-details.json")))[-1] == Usage(7, 5)

    def test_a_list_of_one(self) -> None:
        body = b"[" + golden("tgi", "whole-details.json") + b"]"
        assert fold(client("tgi").decode(REQUEST, reply(body))).choices[0].text == TEXT

    def test_best_of_are_choices(self) -> None:
        request = asking(n=2, prompt_logprobs=True, top_logprobs=2, sampling=Sampling(do_sample=True))
        answer: Completion = fold(client("tgi").decode(request, reply(golden("tgi", "best-of.json"))))
        assert [(choice.index, choice.text, choice.seed) for choice in answer.choices] == [(0, "b", 8), (1, "a", 7)]
        assert answer.prompts == ((Token(1, "<s>"), Token(7, "Who?", -3.0)),)
        assert answer.choices[0].tokens[0].top == (TopToken(22, "b", -0.5), TopToken(21, "a", -1.0))
        assert answer.usage == Usage(2, 2)


def test_an_answer_without_the_prompts_log_probabilities_is_refused() -> None:
    """TGI 3 without `--enable-prefill-logprobs`. Its own clients get its empty list."""
    body, count = golden("tgi", "whole-details.json"), ("x-prompt-tokens", "7")
    with pytest.raises(UnsupportedFeature, match="--enable-prefill-logprobs") as refused:
        client("tgi").decode(asking(prompt_logprobs=True), reply(body, 200, count))
    assert refused.value.feature == "prompt_logprobs"
    empty = client("tgi").decode(asking(prompt_logprobs=True), reply(body, 200, ("x-prompt-tokens", "0")))
    assert empty[0] == Started("model", 0, ((),))
    for echo in (False, True):  # relayed, and written anew
        own = asking(prompt_logprobs=True, echo=echo, origin=Origin("tgi", "tgi", "generate", b"{}"))
        assert fold(client("tgi").decode(own, reply(body, 200, count))).prompts == ((),)


@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_a_stream_in_small_pieces(size: int) -> None:
    reader = client("tgi").decoder(REQUEST)
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert tuple(event for piece in pieces for event in reader.feed(piece)) == ZOE
    assert reader.close() == ()


@pytest.mark.parametrize("data", [STREAM.replace(b"\n\n", b"\r\n\r\n"), b":\n\n" + STREAM, b"\n" + STREAM])
def test_other_line_ends_and_keep_alives(data: bytes) -> None:
    assert read(data) == ZOE


def test_started_comes_with_the_first_token() -> None:
    reader = client("tgi").decoder(REQUEST)
    assert reader.feed(b":\n\n") == ()
    assert reader.feed(frame("a")) == (Started("model"), Delta(text="a", tokens=(Token(5, "a", -1.0),)))
    assert reader.feed(frame("b")) == (Delta(text="b", tokens=(Token(5, "b", -1.0),)),)


def test_frames_after_the_last_one_are_ignored() -> None:
    assert read(STREAM + b"data: [DONE]\n\n" + STREAM) == ZOE


def test_a_token_may_have_a_list_of_ids() -> None:
    events = read(frame("ab", token={"id": [1, 2]}) + last("", "ab"))
    assert events[1] == Delta(text="ab", tokens=(Token(1, "ab", -1.0), Token(2, "")))


@pytest.mark.parametrize("cut", range(0, len(STREAM) - 1, 29))
def test_a_stream_cut_off_anywhere_is_incomplete(cut: int) -> None:
    reader = client("tgi").decoder(REQUEST)
    events = reader.feed(STREAM[:cut])
    assert not any(isinstance(event, Finished | Usage) for event in events)
    with pytest.raises(errors.Incomplete):
        reader.close()


MALFORMED = [
    b"data: [DONE]\n\n",
    b"data: {\n\n",
    b"data: \xff\n\n",
    b"data: " + b"[" * 5000 + b"\n\n",
    b"data: 5\n\n",
    b"data: {}\n\n",
    b'data: {"token":{"id":"x"}}\n\n',
    b'data: {"token":{"id":[]}}\n\n',
    b'data: {"token":{"id":1e99}}\n\n',
    b'data: {"token":{"id":1,"text":"a","logprob":"x"}}\n\n',
    b'data: {"token":{"id":1,"text":"a"},"generated_text":"a","details":null}\n\n',
    last("a", "a", "invalid flag"),
    last("a", "a", generated_tokens=-1),
    last("a", "a", generated_tokens=None),
    b"data: " + b"x" * (2 << 20) + b"\n\n",
]


@pytest.mark.parametrize("data", MALFORMED, ids=range(len(MALFORMED)))
def test_frames_that_violate_the_protocol(data: bytes) -> None:
    with pytest.raises(errors.BackendFailed) as raised:
        read(frame("a") + data)
    assert raised.value.code == "upstream_malformed"


def test_mindies_stop_sequence_is_a_failure() -> None:
    """MindIE's page: cancelled, failed or invalid."""
    data = last("a", "a", "stop_sequence")
    assert read(data)[-2:-1] != ()
    with pytest.raises(errors.BackendFailed):
        read(data, remote=client("mindie"))


def test_a_cumulative_text_must_continue_the_one_before() -> None:
    with pytest.raises(errors.BackendFailed):
        read(frame("ab") + frame("ac"), remote=client("mindie", full_text=True))


def test_an_html_page_is_no_answer() -> None:
    with pytest.raises(errors.Incomplete):
        read(b"<html><body>502 Bad Gateway</body></html>\n\n")


@pytest.mark.parametrize(
    ("type", "error"),
    [
        ("validation", errors.InvalidRequest),
        ("overloaded", errors.Overloaded),
        ("generation", errors.BackendFailed),
        ("Generation Error", errors.BackendFailed),
        ("incomplete_generation_stream", errors.Incomplete),
        ("anything", errors.BackendFailed),
    ],
)
def test_errors_as_frames(type: str, error: type[errors.GatewayError]) -> None:
    """TGI answers even an invalid request with status 200 and an event."""
    data = b"data: " + json.dumps({"error": "secret", "error_type": type}).encode() + b"\n\n"
    for before in (b"", frame("a")):
        with pytest.raises(errors.GatewayError) as raised:
            read(before + data)
        assert raised.value.__class__ is error
        assert ("secret" in raised.value.message) == (type == "validation")


class TestStopSequences:
    """TGI leaves a matched stop sequence in the text; it stays if the request says so."""

    DATA = frame("a") + frame(" EN") + last("D", "a END", "stop_sequence")
    WHOLE: ClassVar = {
        "generated_text": "a END",
        "details": {
            "finish_reason": "stop_sequence",
            "generated_tokens": 3,
            "tokens": [{"id": 5, "text": text, "logprob": -1.0, "special": False} for text in ("a", " EN", "D")],
        },
    }

    @staticmethod
    def asking(include: bool) -> Generate:
        return asking(stopping=Stopping(stop=("END",), include_stop=include))

    @pytest.mark.parametrize(("include", "text"), [(True, "a END"), (False, "a ")])
    def test_streamed_and_non_streamed(self, include: bool, text: str) -> None:
        streamed = fold(read(self.DATA, self.asking(include))).choices[0]
        whole = fold(client("tgi").decode(self.asking(include), reply(self.WHOLE))).choices[0]
        assert streamed.text == whole.text == text
        assert "".join(token.text for token in streamed.tokens) == text
        assert [token.text for token in whole.tokens] == [token.text for token in streamed.tokens]
        assert (streamed.reason, whole.stop) == (FinishReason.STOP_STRING, "END")

    def test_no_part_of_a_stop_sequence_is_sent_early(self) -> None:
        reader = client("tgi").decoder(self.asking(include=False))
        events = [*reader.feed(frame("a")), *reader.feed(frame(" EN"))]
        assert "".join(event.text for event in events if isinstance(event, Delta)) == "a"

    def test_text_held_back_without_a_match_is_sent_at_the_end(self) -> None:
        [choice] = fold(read(frame("a EN") + last("", "a EN"), self.asking(include=False))).choices
        assert (choice.text, choice.stop) == ("a EN", None)

    def test_mindie_removes_it_itself(self) -> None:
        [choice] = fold(
            read(frame("a EN") + last("", "a EN", "eos_token"), self.asking(include=False), client("mindie"))
        ).choices
        assert choice.text == "a EN"


WRONG_ANSWERS: list[Any] = [
    b"",
    b"<html>",
    b"\xff",
    b"[" * 5000,
    [],
    {},
    [{"generated_text": "a"}] * 2,
    {"generated_text": "a"},
    {"details": {"finish_reason": "length", "generated_tokens": 1}},
    {"generated_text": "a", "details": {"finish_reason": "abort", "generated_tokens": 1}},
    {"generated_text": "a", "details": {"finish_reason": "length", "generated_tokens": "1"}},
]


@pytest.mark.parametrize("body", WRONG_ANSWERS, ids=range(len(WRONG_ANSWERS)))
def test_answers_that_violate_the_protocol(body: Any) -> None:
    with pytest.raises(errors.BackendFailed) as raised:
        client("tgi").decode(REQUEST, reply(body))
    assert raised.value.code == "upstream_malformed"


@pytest.mark.parametrize("n", [1, 3])
def test_another_number_of_answers_than_requested(n: int) -> None:
    with pytest.raises(errors.BackendFailed):
        client("tgi").decode(asking(n=n), reply(golden("tgi", "best-of.json")))


def test_an_error_of_status_200() -> None:
    with pytest.raises(errors.InvalidRequest, match="no"):
        client("tgi").decode(REQUEST, reply({"error": "no", "error_type": "validation"}))


def test_tokens_that_do_not_join_to_the_text_are_dropped() -> None:
    """With SentencePiece the token "▁a" is " a", but the text has no space: the text counts."""
    details = {"finish_reason": "length", "generated_tokens": 1, "tokens": [{"id": 1, "text": " a"}]}
    [choice] = fold(client("tgi").decode(REQUEST, reply({"generated_text": "a", "details": details}))).choices
    assert (choice.text, choice.tokens) == ("a", ())
