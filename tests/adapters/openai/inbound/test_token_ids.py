"""vLLM's `return_token_ids` and `prompt_logprobs`, in answers of models that can do them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.fold import fold
from adapters.openai.dialects import DIALECTS
from adapters.openai.inbound.answers import encode_answer
from adapters.openai.inbound.chat_stream import ChatStreamWriter
from adapters.openai.inbound.completion_stream import CompletionStreamWriter
from adapters.openai.inbound.extensions import prompt_scores
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Message,
    Prompt,
    Started,
    TextPrompt,
    Token,
    TopToken,
    Usage,
)
from schemas.openai.requests import CompletionRequest

OPENAI = DIALECTS["openai"]
CHAT, TEXT = ChatPrompt((Message("user", "Hi"),)), TextPrompt("Hi")
PROMPT = (Token(5, "H"), Token(6, "i", -1.5, top=(TopToken(9, "o", -0.5), TopToken(8, "é", -1.0))))
EVENTS: Events = (
    Started("m", 2, (PROMPT,)),
    Delta(text="a", tokens=(Token(1, "a"),), ids=(1,)),
    Finished(text="b", tokens=(Token(2, "b"),), reason=FinishReason.EOS, ids=(2, 3)),
    Usage(2, 3),
)
SCORES = [
    None,
    {
        "6": {"logprob": -1.5, "rank": None, "decoded_token": "i"},
        "9": {"logprob": -0.5, "rank": 1, "decoded_token": "o"},
    },
]


def request(prompt: Prompt, **fields: Any) -> Generate:
    return Generate(id="r", model="m", prompts=(prompt,), **fields)


def test_whole_answers_have_them() -> None:
    chat = json.loads(encode_answer(OPENAI, request(CHAT, returns_ids=True, prompt_scores=1), fold(EVENTS), 1).body)
    assert (chat["prompt_token_ids"], chat["prompt_logprobs"]) == ([5, 6], SCORES)
    assert chat["choices"][0]["token_ids"] == [1, 2, 3]
    text = json.loads(encode_answer(OPENAI, request(TEXT, returns_ids=True, prompt_scores=1), fold(EVENTS), 1).body)
    (choice,) = text["choices"]
    assert (choice["prompt_token_ids"], choice["prompt_logprobs"], choice["token_ids"]) == ([5, 6], SCORES, [1, 2, 3])
    plain = json.loads(encode_answer(OPENAI, request(TEXT), fold(EVENTS), 1).body)
    assert not {"prompt_token_ids", "prompt_logprobs", "token_ids"} & set(plain["choices"][0])


@pytest.mark.parametrize("usage", [False, True])
def test_streams_have_ids(usage: bool) -> None:
    def chunks(writer: Any) -> list[dict[str, Any]]:
        lines = writer.feed(EVENTS).decode().split("\n\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]

    for prompt, kind in ((CHAT, ChatStreamWriter), (TEXT, CompletionStreamWriter)):
        asked = request(prompt, returns_ids=True, stream=True, stream_usage=usage, continuous_usage=usage)
        found = chunks(kind(OPENAI, asked, 1, lambda _: b""))
        choices = [choice for chunk in found for choice in chunk["choices"]]
        assert [id for choice in choices for id in choice.get("token_ids", ())] == [1, 2, 3]
        firsts = [place.get("prompt_token_ids") for place in (found if prompt is CHAT else choices)]
        assert [first for first in firsts if first] == [[5, 6]]
        assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("asked", "stream", "scores"),
    [
        (0, None, 0),
        (20, False, 20),
        (21, None, None),
        (-1, None, None),
        (True, None, None),
        (1, True, None),
        (None, None, None),
    ],
)
def test_what_is_asked(asked: Any, stream: bool | None, scores: int | None) -> None:
    given = CompletionRequest(prompt="Hi", prompt_logprobs=asked, stream=stream)
    assert prompt_scores(given) == scores
