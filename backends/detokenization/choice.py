"""Builds the deltas of one choice from its tokens: detokenizes and applies stop strings.

Used by all backends that see tokens. A delta's text is always that of its tokens, so a token is held back while its
last character is incomplete, and as long as some of its text may be the beginning of a stop string.
"""

from __future__ import annotations

from msgspec.structs import replace

from backends.detokenization.detokenizer import Detokenizer
from backends.detokenization.stops import Match, StopMatcher
from schemas.ir import Delta, Finished, FinishReason, Stopping, Token, TopToken


class ChoiceBuilder:
    """Turns the tokens of one choice into deltas.

    `generated` counts the tokens so far. Once a stop string has matched (`stopped`), no token may be added.

    Args:
        index: of the choice.
        stopping: when the choice ends. Stop strings match only after `min_new_tokens` tokens, like end tokens.
        detokenizer: a new one; it keeps state.
        seed: the effective seed, for `Finished`.
    """

    __slots__ = (
        "_detokenizer",
        "_include_stop",
        "_index",
        "_match",
        "_matcher",
        "_min_new_tokens",
        "_seed",
        "_tokens",
        "generated",
    )

    def __init__(self, index: int, stopping: Stopping, detokenizer: Detokenizer, seed: int | None = None) -> None:
        self._index = index
        self._include_stop = stopping.include_stop
        self._min_new_tokens = stopping.min_new_tokens
        # Fast path: most requests have no stop string, and then no token is held back for one.
        self._matcher = StopMatcher(stopping.stop) if any(stopping.stop) else None
        self._match: Match | None = None
        self._detokenizer = detokenizer
        self._seed = seed
        self._tokens: list[Token] = []  # those not yet in a delta
        self.generated = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has matched."""
        return self._match is not None

    def add(self, id: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> None:
        """Add the next token, by its id."""
        self.generated += 1
        for token in self._detokenizer.feed(id, logprob, top):
            self._append(token)

    def add_token(self, token: Token) -> None:
        """Add the next token, whose text is known."""
        self.generated += 1
        self._append(token)

    def delta(self) -> Delta | None:
        """The tokens since the last delta that no stop string can cut; None if there are none."""
        if self._match is not None:
            return None  # the rest comes with `finish`, cut at the stop string
        count = len(self._tokens)
        # With `include_stop` nothing of a stop string is cut, so nothing is held back.
        held = 0 if self._matcher is None or self._include_stop else self._matcher.held
        # Whole tokens are held. They are all still here, because a token with held characters was never sent.
        while held > 0:  # characters at the end that may be the beginning of a stop string
            count -= 1
            held -= len(_visible(self._tokens[count]))
        if not count:
            return None
        if count == 1:  # the usual case
            token = self._tokens.pop(0)
            return Delta(self._index, _visible(token), (token,))
        tokens = tuple(self._tokens[:count])
        del self._tokens[:count]
        return Delta(self._index, _text(tokens), tokens)

    def finish(self, reason: FinishReason) -> Finished:
        """The last delta, with all tokens held back. If a stop string matched, that is the reason instead of `reason`.

        For EOS and STOP_TOKEN, the token added last is the end token. A stop token and a stop string are part of the
        text only with `include_stop`.
        """
        # 1. Release what the detokenizer holds: the end of the text may complete a stop string.
        for token in self._detokenizer.close():
            self._append(token)
        # 2. Cut the text. A stop string has priority: it may end in the very token that was to end the choice.
        if self._match is not None:
            reason = FinishReason.STOP_STRING
            self._cut(self._match.after if self._include_stop else self._match.before)
        elif reason is FinishReason.STOP_TOKEN and not self._include_stop:
            self._cut(len(_visible(self._tokens[-1])))
        elif reason is FinishReason.EOS:
            self._tokens[-1] = replace(self._tokens[-1], special=True)  # even if the vocabulary lists it as text
        tokens = tuple(self._tokens)
        return Finished(
            choice=self._index,
            text=_text(tokens),
            tokens=tokens,
            reason=reason,
            generated=self.generated,
            stop=self._match.stop if self._match else None,
            seed=self._seed,
        )

    def _append(self, token: Token) -> None:
        if self._match is not None and not token.special:
            # A character spans this token and the one that completed the stop string, so both were released at once.
            # The token was generated, but its text comes after the end.
            token = replace(token, text="", bytes=token.bytes or token.text.encode())
        self._tokens.append(token)
        if self._match is not None:
            return
        # `generated` includes this token. Earlier text is never fed, so no match can begin in it.
        if self._matcher is not None and self.generated > self._min_new_tokens and not token.special:
            self._match = self._matcher.feed(token.text)

    def _cut(self, excess: int) -> None:
        """Remove `excess` characters from the end of the text. The tokens stay, with the rest of their text."""
        for place in range(len(self._tokens) - 1, -1, -1):
            token = self._tokens[place]
            text = _visible(token)
            if excess and text:
                kept = text[: max(0, len(text) - excess)]
                excess -= len(text) - len(kept)
                # A client that reads ids or bytes still gets the whole token; only its text is cut.
                self._tokens[place] = replace(token, text=kept, bytes=token.bytes or text.encode())


def _visible(token: Token) -> str:
    return "" if token.special else token.text


def _text(tokens: tuple[Token, ...]) -> str:
    return "".join([token.text for token in tokens if not token.special])
