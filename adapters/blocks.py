"""The blocks of a streamed answer: one block is open at a time, and a tool call stays open until it is complete.

For protocols whose answers are made of blocks (Anthropic's content, the items of OpenAI's Responses). Text between the
pieces of a tool call comes after all tool calls, as in `adapters.fold.blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from adapters.fold import NO_ARGUMENTS, Kind
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
        # One more than the index of the newest call: a piece of a lower index continues a call whose block is closed.
        self._calls = 0
        self._has_arguments = True  # of the open call
        self._late: list[tuple[Kind, str]] = []  # text that arrived during a call

    def is_open(self, kind: Kind) -> bool:
        """Whether the open block is text of a kind."""
        return self._open == kind

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
            # A call that was closed cannot be opened again (both protocols forbid it), and this call may not be
            # complete: its end shows only when another call or the end of the answer arrives. So the text waits.
            if text and isinstance(self._open, int):
                self._late.append((kind, text))
            elif text:
                yield from self._text(kind, text)
        # After the texts: in a delta with both, the text precedes the calls, as in `fold.blocks`.
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
            # Pieces of two calls alternate. A block that is closed cannot grow, and two open blocks are not allowed.
            if call.index < self._calls:
                raise BackendFailed("The model's calls of tools are entangled.", code="bad_tool_call")
            yield from self._close()
            self._open, self._calls = call.index, call.index + 1
            # The first piece has the id and the name; its arguments, if any, follow as a step of their own.
            self._has_arguments = False
            yield Opened(None, call)
        if call.arguments:
            self._has_arguments = True
            yield Said(call.arguments)

    def _end(self) -> Iterator[Step]:
        # `_text` closes the last call's block first.
        for kind, text in self._late:
            yield from self._text(kind, text)
        # A choice without any content has no open block, and no step is `last`.
        yield from self._close(last=True)

    def _close(self, *, last: bool = False) -> Iterator[Step]:
        if self._open is not None:
            if isinstance(self._open, int) and not self._has_arguments:
                yield Said(NO_ARGUMENTS)
            self._open = None
            yield Closed(last)
