"""One choice being written: token ids in, deltas out. Every backend that has tokens builds its events with it.

Tokens leave together with their text, so a token waits while a character is incomplete, and as long as a part of its
text may belong to a stop string.
"""

from __future__ import annotations

from msgspec.structs import replace

from backends.detokenizer import Detokenizer
from backends.stops import Match, StopMatcher
from schemas.ir import Delta, Finished, FinishReason, Stopping, Token, TopToken


class ChoiceBuilder:
    """Turns the tokens of one choice into its deltas.

    `generated` counts the tokens so far; `stopped` says that a stop string ended the text, after which no token may be
    added.

    Args:
        index: the choice's index.
        stopping: when it ends. Stop strings are heeded after `min_new_tokens`, as end tokens are.
        detokenizer: a fresh one.
        seed: the effective seed, to be told at the end.
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
        self._matcher = StopMatcher(stopping.stop) if any(stopping.stop) else None
        self._match: Match | None = None
        self._detokenizer = detokenizer
        self._seed = seed
        self._tokens: list[Token] = []
        self.generated = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._match is not None

    def add(self, id: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> None:
        """Take the next token."""
        self.generated += 1
        for token in self._detokenizer.feed(id, logprob, top):
            self._take(token)

    def add_token(self, token: Token) -> None:
        """Take the next token, whose text is known."""
        self.generated += 1
        self._take(token)

    def delta(self) -> Delta | None:
        """What is certain by now and was not told yet; None if that is nothing."""
        if self._match is not None:
            return None  # `finish` tells the rest, cut
        certain = self._certain()
        if not certain:
            return None
        tokens = tuple(self._tokens[:certain])
        del self._tokens[:certain]
        return Delta(self._index, _text(tokens), tokens)

    def finish(self, reason: FinishReason) -> Finished:
        """The last delta, with all that was held back; a stop string that matched is the reason before any other.

        The token added last is the end token for EOS and STOP_TOKEN. Like the stop string, the latter is text only if
        `include_stop` says so.
        """
        for token in self._detokenizer.close():
            self._take(token)
        if self._match is not None:
            reason = FinishReason.STOP_STRING
            self._cut(self._match.after if self._include_stop else self._match.before)
        elif reason is FinishReason.STOP_TOKEN and not self._include_stop:
            self._cut(len(_visible(self._tokens[-1])))
        elif reason is FinishReason.EOS:
            self._tokens[-1] = replace(self._tokens[-1], special=True)  # whatever its vocabulary says
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

    def _take(self, token: Token) -> None:
        assert self._match is None, "the text has ended"
        self._tokens.append(token)
        if self._matcher is not None and self.generated > self._min_new_tokens and not token.special:
            self._match = self._matcher.feed(token.text)

    def _certain(self) -> int:
        """How many tokens no stop string can reach into any more."""
        held = 0 if self._matcher is None or self._include_stop else self._matcher.held
        count = len(self._tokens)
        while held > 0:
            count -= 1
            held -= len(_visible(self._tokens[count]))
        return count

    def _cut(self, excess: int) -> None:
        """Take `excess` characters from the end of the text. Its tokens stay, with what is left of their text."""
        for place in range(len(self._tokens) - 1, -1, -1):
            token = self._tokens[place]
            text = _visible(token)
            if excess and text:
                kept = text[: max(0, len(text) - excess)]
                excess -= len(text) - len(kept)
                self._tokens[place] = replace(token, text=kept, bytes=token.bytes or text.encode())


def _visible(token: Token) -> str:
    return "" if token.special else token.text


def _text(tokens: tuple[Token, ...]) -> str:
    return "".join([token.text for token in tokens if not token.special])
