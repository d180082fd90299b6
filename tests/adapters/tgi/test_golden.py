"""Literal bytes, file by file. `document-*.sse` are from MindIE's page, `snapshot.json` is TGI's own test data."""

from __future__ import annotations

import json

import pytest

from adapters.fold import fold
from schemas.completion import Choice, Completion
from schemas.errors import BackendFailed, Incomplete
from schemas.ir import Delta, Finished, FinishReason, Started, Token, Tokenize, Tokens, TokenSpan, TopToken, Usage
from tests.adapters.tgi.scenes import NAMES, ROUTES, SAMPLED, WITHOUT_TOKENS, ZOE, ask, call, golden, server, stream_of

DETAILS = SAMPLED | {"details": True}


@pytest.mark.parametrize("name", NAMES)
class TestEveryDialect:
    def test_streamed_with_details(self, name: str) -> None:
        encoder = server(name).encoder(ask(name, DETAILS, operation="generate_stream"))
        assert encoder.media_type == "text/event-stream"
        assert encoder.feed(ZOE) == golden(name, "stream-details.sse")

    def test_streamed_without_details(self, name: str) -> None:
        encoder = server(name).encoder(ask(name, SAMPLED, operation="generate_stream"))
        assert b"".join(encoder.feed((event,)) for event in ZOE) == golden(name, "stream.sse")

    def test_streamed_by_the_body(self, name: str) -> None:
        request = ask(name, DETAILS | {"return_full_text": False}, operation="compat", stream=True)
        assert server(name).encoder(request).feed(ZOE) == golden(name, "stream-details.sse")

    def test_non_streamed_with_details(self, name: str) -> None:
        assert server(name).encode(ask(name, DETAILS), fold(ZOE)).body == golden(name, "whole-details.json")

    def test_non_streamed_without_details(self, name: str) -> None:
        assert server(name).encode(ask(name, SAMPLED), fold(ZOE)).body == golden(name, "whole.json")

    def test_compat_is_a_list_of_one(self, name: str) -> None:
        request = ask(name, SAMPLED, operation="compat")
        assert server(name).encode(request, fold(ZOE)).body == b"[%b]" % golden(name, "whole.json")

    def test_compat_with_the_prompt(self, name: str) -> None:
        request = ask(name, SAMPLED, operation="compat", knobs={"compat_full_text": name != "mindie"})
        assert server(name).encode(request, fold(ZOE)).body == golden(name, "compat.json")

    def test_failed_stream(self, name: str) -> None:
        encoder = server(name).encoder(ask(name, DETAILS, operation="generate_stream"))
        data = encoder.feed(ZOE[:2]) + encoder.fail(BackendFailed("The backend failed."))
        assert data == golden(name, "failed.sse")

    def test_incomplete_stream(self, name: str) -> None:
        encoder = server(name).encoder(ask(name, DETAILS, operation="generate_stream"))
        assert encoder.feed(ZOE[:2]) + encoder.fail(Incomplete("Why.")) == golden(name, "incomplete.sse")

    def test_a_stream_without_tokens(self, name: str) -> None:
        encoder = server(name).encoder(ask(name, {"details": True, "seed": 3}, operation="generate_stream"))
        assert encoder.feed(WITHOUT_TOKENS) == golden(name, "without-tokens.sse")

    def test_info(self, name: str) -> None:
        assert server(name).describe(ROUTES["info"], call(), b"").body == golden(name, "info.json")

    def test_tokenize(self, name: str) -> None:
        request = server(name).decode(ROUTES["tokenize"], '{"inputs":"Zoë 🙂"}'.encode(), call())
        assert isinstance(request, Tokenize)
        spans = (TokenSpan(1, "<s>", 0, 0), TokenSpan(9, "Zoë", 0, 3), TokenSpan(8, " 🙂", 3, 5))
        assert server(name).encode_tokens(request, Tokens(spans, "Zoë 🙂")).body == golden(name, "tokenize.json")


def test_snapshot_of_tgis_own_test() -> None:
    parameters = {
        "max_new_tokens": 10,
        "repetition_penalty": 1.2,
        "return_full_text": True,
        "stop": ["test"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 10,
        "truncate": 5,
        "typical_p": 0.9,
        "details": True,
        "seed": 0,
    }
    events = stream_of(
        Token(5229, " failed", -2.5839844),
        Token(29901, ":", -0.44970703),
        Token(4829, " Error", -1.8339844),
        Token(297, " in", -1.0556641),
        Token(1243, " test", 0.0),
        reason=FinishReason.STOP_STRING,
        stop="test",
        seed=0,
    )
    request = ask("tgi", parameters, inputs="Test request")
    assert server("tgi").encode(request, fold(events)).body == golden("tgi", "snapshot.json")


def test_best_of_and_top_tokens() -> None:
    parameters = {"best_of": 2, "do_sample": True, "top_n_tokens": 2, "decoder_input_details": True}
    tops = (TopToken(22, "b", -0.5), TopToken(21, "a", -1.0))
    answer = Completion(
        "model",
        (
            Choice(0, FinishReason.LENGTH, "a", (Token(21, "a", -1.0, top=tops),), generated=1, seed=7),
            Choice(1, FinishReason.EOS, "b", (Token(22, "b", -0.5, top=tops),), generated=1, seed=8),
        ),
        Usage(2, 2),
        prompts=((Token(1, "<s>"), Token(7, "Who?", -3.0)),),
    )
    asked = ask("tgi", parameters, knobs={"prefill": True})
    assert server("tgi").encode(asked, answer).body == golden("tgi", "best-of.json")
    assert not ask("tgi", parameters).prompt_logprobs
    whole = json.loads(server("tgi").encode(ask("tgi", parameters), answer).body)
    assert whole["details"]["prefill"] == []


def test_top_tokens_streamed() -> None:
    tops = (TopToken(22, "b", -0.5), TopToken(21, "a", -1.0))
    request = ask("tgi", {"top_n_tokens": 2}, operation="generate_stream")
    data = server("tgi").encoder(request).feed(stream_of(Token(21, "a", -1.0, top=tops), reason=FinishReason.LENGTH))
    assert data == golden("tgi", "top-tokens.sse")


def test_the_first_sample_of_mindies_page() -> None:
    first, last = golden("mindie", "document-1.sse").split("……\n\n".encode())
    text = json.loads(last.split(b"\n\n")[-2].removeprefix(b"data: "))["generated_text"]
    begin = [Token(13, "\n"), Token(26626, "Jan"), Token(300, "et"), Token(3732, " makes"), Token(395, " $")]
    end = [Token(395, " $"), Token(29896, "1"), Token(29896, "1"), Token(29947, "8"), Token(29889, ".")]
    elided = text.removeprefix("\nJanet makes $").removesuffix(" $118.")
    deltas = [Delta(text=token.text, tokens=(token,)) for token in [*begin, Token(1, elided), *end]]
    finished = Finished(
        tokens=(Token(2, "</s>", special=True),), reason=FinishReason.EOS, generated=116, seed=8756727004129248931
    )
    request = ask("mindie", {"details": True, "do_sample": True}, operation="generate_stream")
    data = server("mindie").encoder(request).feed((Started("m", 74), *deltas, finished, Usage(74, 116)))
    assert data.startswith(first)
    assert data.endswith(last)
    assert data.count(b"\n\n") == 5 + 1 + 6


def test_the_second_sample_of_mindies_page() -> None:
    pieces = ["\n", "Hello", "!", " How", " can", " I", " assist", " you", " today", "?"]
    ids = [198, 9707, 0, 2585, 646, 358, 7789, 498, 3351, 30]
    tokens = [Token(id, text) for id, text in zip(ids, pieces, strict=True)]
    end = Token(151645, "<|im_end|>", special=True)
    finished = Finished(tokens=(end,), reason=FinishReason.EOS, generated=11, seed=2296576927)
    deltas = (Delta(text=token.text, tokens=(token,)) for token in tokens)
    request = ask("mindie", {"details": True}, operation="generate_stream")
    encoder = server("mindie", full_text=True).encoder(request)
    assert encoder.feed((Started("m"), *deltas, finished, Usage(1, 11))) == golden("mindie", "document-2.sse")
