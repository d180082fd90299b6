"""Log-probabilities aligned with the text, and the echoed prompt removed."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.base import Reply
from adapters.fold import fold
from schemas.errors import BackendFailed
from schemas.ir import (
    Finished,
    FinishReason,
    Started,
    Token,
    TopToken,
)
from tests.adapters.openai.remote_scenes import answer, asked, choice, scored, talk
from tests.adapters.openai.scenes import ECHOED, GOLDEN, PROMPT_TOKENS, client, completion, server


@pytest.mark.parametrize(
    ("text", "logprobs", "tokens"),
    [
        ("ab", [scored("a"), scored("b")], [Token(None, "a", -1.0), Token(None, "b", -1.0)]),
        (
            "a",
            [scored("a"), scored("<|im_end|>")],
            [Token(None, "a", -1.0), Token(None, "<|im_end|>", -1.0, special=True)],
        ),
        (  # a stop string cut the last token in two
            "a wor",
            [scored("a"), scored(" world", b" world")],
            [Token(None, "a", -1.0), Token(None, " wor", -1.0, bytes=b" world")],
        ),
        (  # a character split between tokens, with their bytes
            "a🙂b",
            [scored("a", b"a"), scored("\ufffd", b"\xf0\x9f"), scored("\ufffd", b"\x99\x82"), scored("b", b"b")],
            [
                Token(None, "a", -1.0),
                Token(None, "", -1.0, bytes=b"\xf0\x9f"),
                Token(None, "🙂", -1.0, bytes=b"\x99\x82"),
                Token(None, "b", -1.0),
            ],
        ),
        (  # the same without bytes
            "a🙂b",
            [scored("a"), scored("\ufffd"), scored("\ufffd"), scored("b")],
            [
                Token(None, "a", -1.0),
                Token(None, "", -1.0, bytes="\ufffd".encode()),
                Token(None, "🙂", -1.0, bytes="\ufffd".encode()),
                Token(None, "b", -1.0),
            ],
        ),
        ("a!", [scored("a")], [Token(None, "a!", -1.0, bytes=b"a")]),
    ],
)
def test_tokens_are_aligned_with_the_text(text: str, logprobs: list[Any], tokens: list[Token]) -> None:
    request = talk(logprobs=True)
    [_, finished, _] = client().decode(
        request, answer(choice(message={"content": text}, logprobs={"content": logprobs, "refusal": None}))
    )
    assert isinstance(finished, Finished)
    assert finished.tokens == tuple(tokens)
    assert "".join(token.text for token in finished.tokens if not token.special) == text


def test_tokens_that_were_not_requested_are_dropped() -> None:
    events = client().decode(talk(), answer(choice(logprobs={"content": [scored("Hi")]})))
    assert events[1] == Finished(text="Hi", reason=FinishReason.EOS)


def test_top_logprobs_of_a_completion() -> None:
    logprobs = {
        "tokens": ["Hi"],
        "token_logprobs": [-2.0],
        "top_logprobs": [{"Hi": -2.0, "He": -0.5}],
        "text_offset": [0],
    }
    request = asked(logprobs=True, top_logprobs=1)
    events = client().decode(request, answer({"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": logprobs}))
    assert events[1] == Finished(
        text="Hi",
        tokens=(Token(None, "Hi", -2.0, top=(TopToken(None, "He", -0.5),)),),
        reason=FinishReason.EOS,
    )


def test_an_echoed_prompt_is_removed() -> None:
    request = completion(prompt=[[0, 5, 6]], echo=True, logprobs=1, max_tokens=4)
    data = (GOLDEN / "openai/completion-echo-logprobs.json").read_bytes()
    events = client().decode(request, Reply(data))
    [*_, started, finished, _] = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert [(t.id, t.text, t.logprob) for t in started.prompts[0]] == [
        (t.id, t.text, t.logprob) for t in PROMPT_TOKENS[0]
    ]
    assert finished.text == "He🙂"
    assert finished.tokens[-1] == Token(None, "</s>", -0.0625, special=True, top=(TopToken(None, "</s>", -0.0625),))
    assert server().encode(request, fold(events)).body == server().encode(request, fold(ECHOED)).body


@pytest.mark.parametrize("usage", [{"prompt_tokens": 2, "completion_tokens": 1}, None])
def test_an_echoed_text_is_removed(usage: Any) -> None:
    logprobs = {"tokens": ["On", "ce", " a"], "token_logprobs": [None, -1.0, -2.0], "text_offset": [0, 2, 4]}
    request = asked(prompt_logprobs=True, logprobs=True)
    whole = {"index": 0, "text": "Once a", "finish_reason": "length", "logprobs": logprobs}
    events = client().decode(request, answer(whole, usage=usage))
    assert events[0] == Started("m", usage and 2, ((Token(None, "On"), Token(None, "ce", -1.0)),))
    assert events[1] == Finished(text=" a", tokens=(Token(None, " a", -2.0),), reason=FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("text", "tokens", "prompt", "rest"),
    [
        ("Once a", ["On", "ce", " a"], ("On", "ce"), " a"),
        ("Once a", ["<s>", "Once", " a", "</s>"], ("<s>", "Once"), " a"),
        ("Once a", ["On", "ce", " a stop"], ("On", "ce"), " a"),  # a stop string cut the token
        ("On🙂", ["O", "n", "\ufffd", "\ufffd"], ("O", "n"), "🙂"),
        ("é a", ["\ufffd", "\ufffd", " a"], ("", "é"), " a"),
        ("é a", ["\ufffd", "\ufffd", " a", "</s>"], ("", "é"), " a"),
    ],
)
def test_where_the_echo_of_token_ids_ends(text: str, tokens: list[str], prompt: tuple[str, str], rest: str) -> None:
    logprobs = {"tokens": tokens, "token_logprobs": [None, *[-1.0] * (len(tokens) - 1)]}
    request = completion(prompt=[[1, 2]], echo=True, logprobs=0)
    whole = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": logprobs}
    [*_, started, finished, _] = client().decode(request, answer(whole, usage=None))
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert tuple(token.text for token in started.prompts[0]) == prompt
    assert finished.text == "".join(token.text for token in finished.tokens if not token.special) == rest


def test_an_echo_that_does_not_fit_its_tokens_is_a_failure() -> None:
    logprobs = {"tokens": ["\ufffd", "\ufffd", " a stop"], "token_logprobs": [None, -1.0, -1.0]}
    whole = {"index": 0, "text": "é a", "finish_reason": "stop", "logprobs": logprobs}
    with pytest.raises(BackendFailed, match="an echo that does not fit its tokens"):
        client().decode(completion(prompt=[[1, 2]], echo=True, logprobs=0), answer(whole))
