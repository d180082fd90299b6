"""The blocks of a streamed answer: one is open at a time, and the call of a tool is not left before it ends.

For protocols whose answers are made of blocks (Anthropic's content, the items of OpenAI's Responses). It knows their
order and none of their words. What is said after a call comes after all calls, as in `adapters.fold.blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from adapters.fold import Kind
from schemas.errors import BackendFailed
from schemas.ir import Delta, Finished, ToolDelta


class Opened(NamedTuple):
    """A block begins: text of a `kind`, or a call, given its first piece."""

    kind: Kind | None
    call: ToolDelta | None = None


class Said(NamedTuple):
    """What the open block gains: text, or a piece of a call's arguments."""

    text: str


class Closed(NamedTuple):
    """The open block is complete; `last` of all, or not."""

    last: bool


Step = Opened | Said | Closed


class Blocks:
    """One choice's deltas as steps."""

    def __init__(self) -> None:
        self._open: Kind | int | None = None  # a kind of text, or a call's index
        self._calls = 0
        self._late: list[tuple[Kind, str]] = []  # what came amid a call

    def feed(self, delta: Delta) -> Iterator[Step]:
        """What a delta does; the last one, `Finished`, closes what is open.

        Raises:
            schemas.errors.BackendFailed: a call goes on after another has begun.
        """
        pieces: tuple[tuple[Kind, str], ...] = (
            ("reasoning", delta.reasoning),
            ("text", delta.text),
            ("refusal", delta.refusal),
        )
        for kind, text in pieces:
            if text and isinstance(self._open, int):
                self._late.append((kind, text))
            elif text:
                yield from self._text(kind, text)
        for call in delta.tool_calls:
            yield from self._call(call)
        if isinstance(delta, Finished):
            yield from self._end()

    def _text(self, kind: Kind, text: str) -> Iterator[Step]:
        if self._open != kind:
            yield from self._close()
            self._open = kind
            yield Opened(kind)
        yield Said(text)

    def _call(self, call: ToolDelta) -> Iterator[Step]:
        if self._open != call.index:
            if call.index < self._calls:
                raise BackendFailed("The model's calls of tools are entangled.", code="bad_tool_call")
            yield from self._close()
            self._open, self._calls = call.index, call.index + 1
            yield Opened(None, call)
        if call.arguments:
            yield Said(call.arguments)

    def _end(self) -> Iterator[Step]:
        for kind, text in self._late:
            yield from self._text(kind, text)
        yield from self._close(last=True)

    def _close(self, *, last: bool = False) -> Iterator[Step]:
        if self._open is not None:
            self._open = None
            yield Closed(last)
