"""Filters over requests and answers: nothing that is replaced is seen, however an answer is cut into chunks."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import FilterSettings
from gateway.filters.base import Edit, Source, apply
from gateway.filters.chain import FilterChain
from gateway.filters.guarded import GuardedFilter
from gateway.filters.redact import Redact, RedactOptions
from schemas.errors import InvalidRequest, Overloaded, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Event,
    Events,
    Finished,
    FinishReason,
    Generate,
    Message,
    Started,
    TextPart,
    TextPrompt,
    Token,
    TokensPrompt,
    ToolCall,
    ToolDelta,
    Usage,
)

OPTIONS = RedactOptions(patterns={"number": r"\b\d{3}-\d{4}\b", "name": "Ann|Bob"}, window=12)


def chain(options: RedactOptions = OPTIONS, **settings: object) -> FilterChain:
    return FilterChain([GuardedFilter("pii", Redact(options), FilterSettings(**settings))])  # type: ignore[arg-type]


async def filtered(texts: Sequence[str], using: FilterChain, field: str = "text") -> list[Event]:
    async def events() -> AsyncGenerator[Events, None]:
        yield (Started("m", 3),)
        for text in texts:
            if field == "arguments":
                yield (Delta(tool_calls=(ToolDelta(0, "id", "f", text),)),)
            else:
                yield (Delta(**{field: text}, tokens=(Token(1, text),)),)
        yield (Finished(reason=FinishReason.EOS), Usage(3, len(texts)))

    return [event async for batch in using.answer(events()) for event in batch]


def text_of(events: list[Event], field: str = "text") -> str:
    deltas = [event for event in events if isinstance(event, Delta)]
    if field == "arguments":
        return "".join(call.arguments for delta in deltas for call in delta.tool_calls)
    return "".join(getattr(delta, field) for delta in deltas)


@given(st.text("0123456789- AnBob", max_size=120), st.lists(st.integers(1, 9), max_size=60))
def test_any_cut_gives_the_text_that_the_whole_gives(text: str, cuts: list[int]) -> None:
    parts, rest = [], text
    for cut in cuts:
        parts.append(rest[:cut])
        rest = rest[cut:]
    parts = [*filter(None, (*parts, rest))]
    whole = apply(text, Redact(OPTIONS).edits(text, "answer"))
    assert text_of(asyncio.run(filtered(parts, chain()))) == whole


@pytest.mark.parametrize("field", ["text", "reasoning", "refusal", "arguments"])
async def test_every_text_of_an_answer_is_filtered_and_its_tokens_are_gone(field: str) -> None:
    text = "x" * 50 + " call 555-1234 or Ann " + "y" * 50
    events = await filtered([*text], chain(), field)
    assert text_of(events, field) == text.replace("555-1234", "[number]").replace("Ann", "[name]")
    assert len([event for event in events if isinstance(event, Delta)]) > 2  # not all of it was held back
    assert not any(event.tokens for event in events if isinstance(event, Delta))
    assert isinstance(events[0], Started)
    assert events[0].token_ids == "synthetic"
    assert events[-1] == Usage(3, len(text))


async def test_every_text_of_a_request_is_filtered() -> None:
    request = Generate(
        id="1",
        model="m",
        prompts=(
            TextPrompt("Ann"),
            ChatPrompt(
                (
                    Message("system", "Ann"),
                    Message("user", (TextPart("Bob"),)),
                    Message("assistant", None, tool_calls=(ToolCall("c", "f", '{"a":"Ann"}'),), reasoning="Bob"),
                )
            ),
        ),
        suffix="Ann",
    )
    found = await chain().request(request)
    assert "Ann" not in repr(found)
    assert "Bob" not in repr(found)
    assert repr(found).count("[name]") == 6


@pytest.mark.parametrize("change", [{"logprobs": True}, {"echo": True}, {"prompts": (TokensPrompt((1,)),)}])
async def test_what_would_show_the_original_is_refused(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"id": "1", "model": "m", "prompts": (TextPrompt("x"),)} | change
    with pytest.raises(UnsupportedFeature):
        await chain().request(Generate(**fields))  # type: ignore[arg-type]


async def test_token_ids_of_a_request_for_vectors_are_refused_by_its_field() -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        await chain().request(Embed(id="1", model="m", inputs=(TokensPrompt((1,)),)))
    assert refused.value.param == "input"


async def test_a_refusal_is_an_error_of_the_request_and_the_end_of_an_answer() -> None:
    using = chain(RedactOptions(patterns={"name": "Ann"}, action="refuse"))
    with pytest.raises(InvalidRequest) as caught:
        await using.request(Generate(id="1", model="m", prompts=(TextPrompt("I am Ann."),)))
    assert caught.value.code == "content_filter"
    events = await filtered(["Hello ", "Ann", "!"], using)
    assert text_of(events) == ""
    assert [event.reason for event in events if isinstance(event, Finished)] == [FinishReason.CONTENT_FILTER]
    assert isinstance(events[-1], Usage)


class Broken:
    """Raises, hangs, or gives edits that cannot be applied."""

    window = 4

    def __init__(self, how: str) -> None:
        self.how = how
        self.release = threading.Event()

    def edits(self, text: str, source: Source) -> list[Edit]:
        if self.how == "raises":
            raise RuntimeError("no")
        if self.how == "hangs":
            self.release.wait(60)
        return [Edit(0, len(text) + 1, "")]


@pytest.mark.parametrize("how", ["raises", "hangs", "wrong edits"])
async def test_a_filter_that_fails_harms_nothing_else(how: str) -> None:
    broken = Broken(how)
    request = Generate(id="1", model="m", prompts=(TextPrompt("Hi"),))
    refusing = FilterChain([GuardedFilter("b", broken, FilterSettings(timeout=0.05))])
    for _ in range(6):  # more often than it has threads
        with pytest.raises(Overloaded) as caught:
            await refusing.request(request)
    assert caught.value.code == "filter_failed"
    assert sum(thread.name == "filter b" for thread in threading.enumerate()) <= 4
    passing = FilterChain([GuardedFilter("b", broken, FilterSettings(timeout=0.05, on_failure="pass"))])
    assert await passing.request(request) == request
    broken.release.set()


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"patterns\.name"):
        Redact(RedactOptions(patterns={"name": "("}))


async def test_the_filter_of_the_docs_works() -> None:
    page = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    using = FilterChain([GuardedFilter("links", names["NoLinks"](names["Options"]()), FilterSettings())])
    with pytest.raises(InvalidRequest, match="links"):
        await using.request(Generate(id="1", model="m", prompts=(TextPrompt("see http://x"),)))
    assert text_of(await filtered([*"see http://x and that is all of it"], using)) == "see ://x and that is all of it"
