"""Conversations shortened to the context, message by message: `truncation: "auto"` of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from schemas.ir import ChatPrompt, Generate, Message

T = TypeVar("T")

_ALWAYS_KEPT = ("system", "developer")


def shortened(prompt: ChatPrompt) -> tuple[ChatPrompt, ...]:
    """The conversation, and its shorter forms, each without one more of the oldest turns.

    Instructions and the last turn remain. A turn begins with a user's message, because most chat templates require a
    conversation to begin with one. If the last turn has several tool calls, the oldest go with their results.
    """
    kept = tuple(message for message in prompt.messages if message.role in _ALWAYS_KEPT)
    turns = _groups([message for message in prompt.messages if message.role not in _ALWAYS_KEPT], "user")
    if not turns:
        return (prompt,)
    forms = [prompt]
    forms += [replace(prompt, messages=(*kept, *sum(turns[dropped:], ()))) for dropped in range(1, len(turns))]
    question, *steps = _groups(list(turns[-1]), "assistant")
    forms += [
        replace(prompt, messages=(*kept, *question, *sum(steps[dropped:], ()))) for dropped in range(1, len(steps))
    ]
    return tuple(forms)


def shorter_requests(request: Generate) -> Iterator[Generate]:
    """The request, and those to try in its place while a server finds it too long; none if it may not be shortened.

    The first leaves out one turn, and each further one twice as many as the one before: a long conversation takes few
    tries, and loses at most twice as many turns as it must. The last form of all is the last to be tried.
    """
    yield request
    prompt = request.prompts[0]
    if request.overflow != "drop_turns" or not isinstance(prompt, ChatPrompt):
        return
    forms = shortened(prompt)
    dropped = 1
    while dropped < len(forms):
        yield replace(request, prompts=(forms[dropped],))
        dropped = dropped * 2 if dropped == len(forms) - 1 else min(dropped * 2, len(forms) - 1)


async def encode_fitting(
    prompt: ChatPrompt, encode: Callable[[ChatPrompt], Awaitable[T]], fits: Callable[[T], bool]
) -> T:
    """Encode the longest form of a conversation that fits, or all of it if none does.

    Args:
        prompt: the conversation.
        encode: turns a form into tokens.
        fits: whether the tokens leave room for the answer.
    """
    best = await encode(prompt)
    if fits(best):
        return best
    forms = shortened(prompt)[1:]
    # Bisection: encoding a long conversation takes milliseconds, and there may be hundreds of forms.
    low, high = 0, len(forms)
    while low < high:
        middle = (low + high) // 2
        tried = await encode(forms[middle])
        if fits(tried):
            best, high = tried, middle
        else:
            low = middle + 1
    return best


def _groups(messages: list[Message], role: str) -> list[tuple[Message, ...]]:
    """The messages in groups, each of which but the first begins with a message of this role."""
    groups: list[tuple[Message, ...]] = []
    for message in messages:
        if groups and message.role != role:
            groups[-1] = (*groups[-1], message)
        else:
            groups.append((message,))
    return groups
