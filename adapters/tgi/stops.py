"""Removal of a matched stop sequence from a remote's text, where TGI leaves it and the client does not want it."""

from __future__ import annotations

import msgspec

from schemas.ir import Token


class StopCutter:
    """Holds back tokens that may be the beginning of a stop sequence."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held: list[Token] = []

    def feed(self, token: Token) -> list[Token]:
        """The tokens that certainly belong to the text, after one more token."""
        self._held.append(token)
        text = visible(self._held)
        # A stop sequence can begin only in the overlap: everything before it is final. Whole tokens are released, so a
        # token with one character in the overlap waits.
        free = len(text) - max(_overlap(text, stop) for stop in self._stops)
        released = 0
        for held in self._held:
            free -= len(visible([held]))
            # Special tokens have no visible text: `free` stays, and they go with the tokens before them.
            if free < 0:
                break
            released += 1
        out, self._held = self._held[:released], self._held[released:]
        return out

    def end(self, stopped: bool) -> tuple[list[Token], str | None]:
        """The remaining tokens and the stop sequence removed from their end, if generation `stopped` at one."""
        text = visible(self._held)
        # Of "\n" and "\n\n" the longer one: TGI does not say which matched.
        stop = max((stop for stop in self._stops if text.endswith(stop)), key=len, default=None) if stopped else None
        if stop is None:
            return self._held, None
        return cut(self._held, len(text) - len(stop)), stop


def visible(tokens: list[Token]) -> str:
    """The text of the tokens, without special tokens."""
    return "".join(token.text for token in tokens if not token.special)


def cut(tokens: list[Token], length: int) -> list[Token]:
    """The same tokens, with their visible text cut after `length` characters."""
    out = []
    for token in tokens:
        # Kept, because they count as generated.
        if token.special:
            out.append(token)
            continue
        out.append(token if len(token.text) <= length else msgspec.structs.replace(token, text=token.text[:length]))
        length = max(0, length - len(token.text))
    return out


def _overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of `text` that is a prefix of `stop`."""
    return next((size for size in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:size])), 0)
