"""Conversations that lose their oldest turns until they fit."""

from __future__ import annotations

import pytest

from backends.scripted import ScriptedBackend
from backends.truncation import encode_fitting, shortened
from schemas.errors import ContextLengthExceeded
from schemas.ir import ChatPrompt, Generate, Message, Started, Stopping

TURNS = ("system", "user", "assistant", "user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool")


def conversation(*roles: str) -> ChatPrompt:
    return ChatPrompt(tuple(Message(role, str(place)) for place, role in enumerate(roles)))


def places(prompt: ChatPrompt) -> str:
    return " ".join(str(message.content) for message in prompt.messages)


def test_turns_go_whole_and_the_instructions_and_the_last_turn_remain() -> None:
    assert [places(form) for form in shortened(conversation(*TURNS))] == [
        "0 1 2 3 4 5 6 7 8 9 10",
        "0 3 4 5 6 7 8 9 10",
        "0 8 9 10",
    ]


def test_of_a_last_turn_with_several_calls_the_oldest_go_with_their_results() -> None:
    forms = shortened(conversation("user", "assistant", "tool", "tool", "assistant", "tool"))
    assert [places(form) for form in forms] == ["0 1 2 3 4 5", "0 4 5"]


@pytest.mark.parametrize("roles", [(), ("system",), ("user",), ("system", "user", "assistant")])
def test_what_cannot_be_shortened(roles: tuple[str, ...]) -> None:
    assert shortened(conversation(*roles)) == (conversation(*roles),)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("room", range(12))
async def test_the_longest_form_that_fits_is_encoded(count: int, room: int) -> None:
    async def encode(form: ChatPrompt) -> int:
        return len(form.messages)

    prompt = conversation(*("user",) * count)
    found = await encode_fitting(prompt, encode, lambda length: length <= room)
    assert found == (min(count, room) if room else count)


def request(*contents: str, limit: int | None, overflow: str = "drop_turns") -> Generate:
    messages = tuple(Message("user", content) for content in contents)
    return Generate(
        id="r",
        model="echo",
        prompts=(ChatPrompt(messages),),
        raw_prompt=False,
        stopping=Stopping(max_new_tokens=limit),
        overflow=overflow,  # type: ignore[arg-type]
    )


async def prompt_tokens(asked: Generate) -> int:
    events = [event async for batch in ScriptedBackend("s", {"context_length": 40}).generate(asked) for event in batch]
    assert isinstance(events[0], Started)
    return events[0].prompt_tokens or 0


async def test_a_backend_drops_turns_until_prompt_and_answer_fit() -> None:
    old, new = "many words of an old turn " * 8, "a new turn"
    alone = await prompt_tokens(request(new, limit=4))
    assert await prompt_tokens(request(old, old, new, limit=4)) == alone
    assert await prompt_tokens(request("short", new, limit=4)) > alone
    with pytest.raises(ContextLengthExceeded):
        await prompt_tokens(request(old, new, limit=4, overflow="refuse"))
    with pytest.raises(ContextLengthExceeded):
        await prompt_tokens(request(old, limit=4))
