"""Collects what an answer consists of until it is passed on: reasoning, text and calls, in their order."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.ir import Delta, Finished, Token, ToolDelta

_REASONING, _TEXT, _CALL = range(3)


class Pieces:
    """The pieces of one choice. `calls` counts the calls so far."""

    def __init__(self) -> None:
        # One delta holds reasoning, then text, then calls. What comes in another order needs several.
        self._groups: list[_Group] = [_Group()]
        self.calls = 0

    def add_reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._group(_REASONING).reasoning += text

    def add_text(self, tokens: Sequence[Token]) -> None:
        """Add the tokens of a text."""
        if tokens:
            self._group(_TEXT).tokens += tokens

    def add_call(self, name: str) -> None:
        """Begin a call."""
        # The form of OpenAI's ids: `call_` and 24 characters.
        self._group(_CALL).calls.append(ToolDelta(self.calls, f"call_{secrets.token_hex(12)}", name))
        self.calls += 1

    def add_arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        if not text:
            return
        calls = self._group(_CALL).calls
        last = calls[-1] if calls else None
        # One delta for all arguments since the last delta. The opening delta, which has the id and the name, stays
        # separate, as in OpenAI's streams.
        if last is not None and last.id is None and last.index == self.calls - 1:
            calls[-1] = replace(last, arguments=last.arguments + text)
        else:
            calls.append(ToolDelta(self.calls - 1, arguments=text))

    def take(self, delta: Delta) -> list[Delta]:
        """The deltas since the last ones, in the place of `delta`; without a piece there is none but a `Finished`."""
        groups, self._groups = self._groups, [_Group()]
        *earlier, last = [group for group in groups if group.kind is not None] or [_Group()]
        deltas = [Delta(delta.choice, *group.fields()) for group in earlier]
        if last.kind is not None or isinstance(delta, Finished):
            text, tokens, reasoning, _, calls = last.fields()
            deltas.append(replace(delta, text=text, tokens=tokens, reasoning=reasoning, tool_calls=calls))
        return deltas

    def _group(self, kind: int) -> _Group:
        last = self._groups[-1]
        if last.kind is not None and kind < last.kind:
            last = _Group()
            self._groups.append(last)
        last.kind = kind
        return last


class _Group:
    __slots__ = ("calls", "kind", "reasoning", "tokens")

    def __init__(self) -> None:
        self.kind: int | None = None
        self.reasoning = ""
        self.tokens: list[Token] = []
        self.calls: list[ToolDelta] = []

    def fields(self) -> tuple[str, tuple[Token, ...], str, str, tuple[ToolDelta, ...]]:
        """The fields of a `Delta`, in its order."""
        return text_of(self.tokens), tuple(self.tokens), self.reasoning, "", tuple(self.calls)


def text_of(tokens: Sequence[Token]) -> str:
    """The visible text of tokens."""
    return "".join(token.text for token in tokens if not token.special)
