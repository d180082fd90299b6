"""The filters of an endpoint over one request and its answer.

A filtered answer is made of texts alone: token ids and log-probabilities would show what was replaced, and bodies of a
remote that are relayed as they are would pass by. So neither is there where filters are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from gateway.filters.base import Edit, apply
from gateway.filters.guarded import GuardedFilter
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Event,
    Events,
    Finished,
    FinishReason,
    Message,
    Part,
    Prompt,
    Request,
    Started,
    TextPart,
    TextPrompt,
    Tokenize,
    TokensPrompt,
    ToolDelta,
    Usage,
)
from schemas.origin import Relay

_STEP = 32
"""Characters that a filter is called for at least: each call costs a thread's turn."""

_Channel = tuple[int, str, int]
"""A choice, the field of its deltas, and the number of a tool call."""


class FilterChain:
    """Filters in the order in which they see a text.

    Args:
        filters: at least one.
    """

    def __init__(self, filters: Sequence[GuardedFilter]) -> None:
        self._filters = filters

    async def request(self, request: Request) -> Request:
        """The request with its texts filtered.

        Raises:
            schemas.errors.RequestError: a filter refuses it, or it asks for what a filtered answer does not have.
            schemas.errors.Overloaded: a filter has failed.
        """
        if isinstance(request, Tokenize):
            return replace(request, prompt=await self._prompt(request.prompt))
        if isinstance(request, Relay):
            message = "Requests of this model are filtered, and this operation's are sent on as they are."
            raise UnsupportedFeature(message, feature=request.origin.operation)
        if isinstance(request, Embed):
            return replace(request, inputs=tuple([await self._prompt(each, "input") for each in request.inputs]))
        asked = ("logprobs", "prompt_logprobs", "returns_ids", "echo")
        for field in asked:
            if getattr(request, field) and not (field == "logprobs" and request.logprobs_optional):
                raise UnsupportedFeature(f"Answers of this model are filtered: they have no {field}.", feature=field)
        prompts = tuple([await self._prompt(each) for each in request.prompts])
        suffix = await self._text(request.suffix) if request.suffix is not None else None
        return replace(request, prompts=prompts, suffix=suffix, logprobs=False, top_logprobs=0)

    async def answer(self, events: AsyncGenerator[Events, None]) -> AsyncGenerator[Events, None]:
        """The events of an answer, with its texts filtered. One that is refused ends with `content_filter`.

        Raises:
            schemas.errors.GatewayError: the backend's; a filter has failed.
        """
        answer = _Answer(self._filters)
        try:
            async for batch in events:
                filtered: list[Event] = []
                try:
                    for event in batch:
                        filtered += await answer.take(event)
                except InvalidRequest:
                    yield (*filtered, *answer.refusal())
                    return
                if filtered:
                    yield tuple(filtered)
        finally:
            await events.aclose()

    async def _prompt(self, prompt: Prompt, param: str | None = None) -> Prompt:
        if isinstance(prompt, ChatPrompt):
            return replace(prompt, messages=tuple([await self._message(each) for each in prompt.messages]))
        if isinstance(prompt, TextPrompt):
            return replace(prompt, text=await self._text(prompt.text))
        assert isinstance(prompt, TokensPrompt)
        raise UnsupportedFeature(
            "Requests of this model are filtered: send text, no token ids.", feature="token_prompts", param=param
        )

    async def _message(self, message: Message) -> Message:
        content, reasoning = message.content, message.reasoning
        if isinstance(content, str):
            content = await self._text(content)
        elif content is not None:
            content = tuple([await self._part(each) for each in content])
        calls = [replace(call, arguments=await self._text(call.arguments)) for call in message.tool_calls]
        reasoning = await self._text(reasoning) if reasoning is not None else None
        return replace(message, content=content, tool_calls=tuple(calls), reasoning=reasoning)

    async def _part(self, part: Part) -> Part:
        return replace(part, text=await self._text(part.text)) if isinstance(part, TextPart) else part

    async def _text(self, text: str) -> str:
        for each in self._filters:
            if text and (edits := await each.edits(text, "request")):
                text = apply(text, edits)
        return text


class _Window:
    """One filter over one text that comes in parts."""

    def __init__(self, filter: GuardedFilter) -> None:
        self._filter = filter
        self._before = ""  # what was released last, for patterns that look at it
        self._held = ""

    async def take(self, text: str, *, last: bool) -> str:
        """What can be released; at the end, all."""
        self._held += text
        window = self._filter.window
        if not self._held or (not last and len(self._held) < window + _STEP):
            return ""
        found = await self._filter.edits(self._before + self._held, "answer")
        start = len(self._before)
        # Of what was released, nothing can be changed any more.
        edits = [Edit(each.start - start, each.stop - start, each.text) for each in found if each.start >= start]
        end = len(self._held) if last else len(self._held) - window
        # What begins before the end but stops behind it is decided with what comes.
        end = min([end, *(each.start for each in edits if each.start < end < each.stop)])
        released, self._held = self._held[:end], self._held[end:]
        self._before = (self._before + released)[-window:]
        return apply(released, [each for each in edits if each.stop <= end and (each.start < end or last)])


class _Answer:
    """What has come of an answer."""

    def __init__(self, filters: Sequence[GuardedFilter]) -> None:
        self._filters = filters
        self._windows: dict[_Channel, list[_Window]] = {}
        self._prompt_tokens = 0
        self._open: set[int] = set()
        self._usage = 0

    async def take(self, event: Event) -> Events:
        """The event with its texts filtered; () if nothing of it can be released yet."""
        if isinstance(event, Started):
            self._prompt_tokens = event.prompt_tokens or 0
            return (replace(event, prompts=(), token_ids="synthetic"),)  # noqa: S106 - no password
        if not isinstance(event, Delta):
            return (event,)
        self._usage += len(event.tokens) or 1
        last = isinstance(event, Finished)
        self._open.add(event.choice)
        texts = {name: await self._pass((event.choice, name, 0), getattr(event, name), last=last) for name in _TEXTS}
        calls = await self._calls(event, last=last)
        if last:
            self._open.discard(event.choice)
        elif not calls and not any(texts.values()):
            return ()
        return (replace(event, tokens=(), ids=(), tool_calls=calls, **texts),)

    def refusal(self) -> Events:
        """The end of an answer that is refused."""
        ends: list[Event] = [
            Finished(choice=choice, reason=FinishReason.CONTENT_FILTER) for choice in sorted(self._open or {0})
        ]
        return (*ends, Usage(self._prompt_tokens, self._usage))

    async def _calls(self, event: Delta, *, last: bool) -> tuple[ToolDelta, ...]:
        calls = []
        for call in event.tool_calls:
            arguments = await self._pass((event.choice, "arguments", call.index), call.arguments, last=False)
            if arguments or call.id or call.name:
                calls.append(replace(call, arguments=arguments))
        if last:
            for choice, name, index in [*self._windows]:
                if choice == event.choice and name == "arguments":
                    rest = await self._pass((choice, name, index), "", last=True)
                    calls += [ToolDelta(index, arguments=rest)] if rest else []
        return tuple(calls)

    async def _pass(self, channel: _Channel, text: str, *, last: bool) -> str:
        if (windows := self._windows.get(channel)) is None:
            if not text:
                return ""
            windows = self._windows[channel] = [_Window(each) for each in self._filters]
        for window in windows:
            text = await window.take(text, last=last)
        return text


_TEXTS = ("text", "reasoning", "refusal")
"""The fields of a delta that are texts, beside the arguments of calls."""
