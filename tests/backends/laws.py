"""The laws of every backend: the grammar of its events, and closing a stream at any point."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from adapters.fold import fold
from schemas.completion import Completion
from schemas.ir import Delta, Event, Events, Finished, Generate, Started, Usage


async def collect(stream: AsyncGenerator[Events, None]) -> Events:
    """All events of a stream, which is then closed."""
    async with aclosing(stream):
        return tuple([event async for batch in stream for event in batch])


async def take(stream: AsyncGenerator[Events, None], count: int) -> list[Events]:
    """The first `count` batches of a stream, which is then closed."""
    batches: list[Events] = []
    async with aclosing(stream):
        if count:
            async for batch in stream:
                batches.append(batch)
                if len(batches) == count:
                    break
    return batches


def check(events: Events, request: Generate) -> Completion:
    """Check `Started Delta* Finished{n} Usage`, counts and texts; return the whole answer."""
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Usage)
    inner = events[1:-1]
    assert all(isinstance(event, Delta) for event in inner)
    count = len(request.prompts) * request.n
    finished = [event for event in inner if isinstance(event, Finished)]
    assert sorted(event.choice for event in finished) == list(range(count))
    for index in range(count):
        _check_choice([event for event in inner if isinstance(event, Delta) and event.choice == index])
    if request.best_of is None:
        assert events[-1].completion_tokens == sum(event.generated or 0 for event in finished)
    assert events[0].prompt_tokens == events[-1].prompt_tokens
    return fold(events)


def _check_choice(deltas: list[Event]) -> None:
    *before, last = deltas
    assert isinstance(last, Finished)
    assert not any(isinstance(delta, Finished) for delta in before)
    tokens = 0
    for delta in deltas:
        assert isinstance(delta, Delta)
        assert delta.text == "".join(token.text for token in delta.tokens if not token.special)
        assert delta is last or delta.tokens or delta.reasoning or delta.refusal or delta.tool_calls, "an empty delta"
        tokens += len(delta.tokens)
    others = sum(bool(d.reasoning) + bool(d.refusal) + len(d.tool_calls) for d in deltas if isinstance(d, Delta))
    assert tokens + others == last.generated
