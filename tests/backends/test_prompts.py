"""Prompts as chats, and the token limit that the context leaves."""

from __future__ import annotations

import pytest

from backends.prompts import as_asked, fit
from schemas.errors import ContextLengthExceeded, InvalidRequest
from schemas.ir import ChatPrompt, Generate, ImagePart, Message, TextPart, TextPrompt, TokensPrompt

IMAGE = ImagePart("data:,", "data")


@pytest.mark.parametrize(("prompt", "asked", "given"), [(3, None, 7), (3, 4, 4), (3, 7, 7), (10, 0, 0)])
def test_a_limit_that_fits_the_context_is_kept(prompt: int, asked: int | None, given: int) -> None:
    assert fit(prompt, asked, 10) == given


@pytest.mark.parametrize(("prompt", "asked"), [(10, None), (3, 8), (11, 0)])
def test_a_limit_that_does_not_fit_is_refused(prompt: int, asked: int | None) -> None:
    with pytest.raises(ContextLengthExceeded, match=f"10 tokens.*{prompt} in the prompt"):
        fit(prompt, asked, 10)


@pytest.mark.parametrize(("asked", "given"), [(None, 7), (4, 4), (7, 7), (8, 7), (100, 7), (0, 0)])
def test_a_limit_may_be_lowered_to_fit(asked: int | None, given: int) -> None:
    assert fit(3, asked, 10, overflow="truncate") == given


@pytest.mark.parametrize("asked", [None, 1, 5])
def test_a_prompt_that_fills_the_context_is_refused_all_the_same(asked: int | None) -> None:
    with pytest.raises(ContextLengthExceeded):
        fit(10, asked, 10, overflow="truncate")


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        fit(0, 5, 10)


def test_text_that_is_not_raw_becomes_a_user_message() -> None:
    prompts = (TextPrompt("Hi"), TextPrompt("What?", (IMAGE,)), TokensPrompt((1,)))
    raw = Generate(id="1", model="m", prompts=prompts)
    assert as_asked(raw) == prompts
    assert as_asked(Generate(id="1", model="m", prompts=prompts, raw_prompt=False)) == (
        ChatPrompt((Message("user", "Hi"),)),
        ChatPrompt((Message("user", (IMAGE, TextPart("What?"))),)),
        TokensPrompt((1,)),
    )
