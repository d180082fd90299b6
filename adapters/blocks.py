"""The blocks of a streamed answer: one block is open at a time, and a tool call stays open until it is complete.

For protocols whose answers are made of blocks (Anthropic's content, the items of OpenAI's Responses). Text between the
pieces of a tool call comes after all tool calls, as in `adapters.fold.blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from adapters.fold import Kind
from schemas.errors import BackendFailed
from schemas.ir import Delta, Finished, ToolDelta


class Opened(NamedTuple):
    """A block begins: text of a `kind`, or a tool call, given its first piece."""

    kind: Kind | None
    call: ToolDelta | None = None


class Said(NamedTuple):
    """The open block gains text, or a piece of a tool call's arguments."""

    text: str


class Closed(NamedTuple):
    """The open block is complete; `last` if it is the last block of the answer."""

    last: bool


Step = Opened | Said | Closed


class Blocks:
    """Splits the deltas of one choice into steps."""

    def __init__(self) -> None:
        self._open: Kind | int | None = None  # a kind of text, or a call's index
        self._calls = 0
        self._late: list[tuple[Kind, str]] = []  # text that arrived during a call

    def feed(self, delta: Delta) -> Iterator[Step]:
        """The steps of a delta. `Finished`, the last delta, closes the open block.

        Raises:
            schemas.errors.BackendFailed: a tool call continues after another one has begun.
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
