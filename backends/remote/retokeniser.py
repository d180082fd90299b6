"""Token ids for what remotes say that tell none, by a tokenizer whose file the operator names.

Each piece of an answer is encoded by itself: remotes mostly send a token at a time, and then these are the model's own.
Where they send more, the tokens say the same text, but the model may have chosen others.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from tokenizers import Encoding, Tokenizer

from schemas.ir import Delta, Event, Events, Started, TextPrompt, Token, Tokenize, Tokens, TokenSpan, TopToken


class Retokeniser:
    """One tokenizer.

    Args:
        path: a `tokenizer.json`, or the folder of one.

    Raises:
        ValueError: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        file = Path(path)
        try:
            self._tokenizer = Tokenizer.from_file(str(file / "tokenizer.json" if file.is_dir() else file))
        except Exception as error:  # what the library raises has no class of its own
            raise ValueError(f"the tokenizer {path} cannot be read: {error}") from None

    def fill(self, events: Events) -> Events:
        """The same events, with ids wherever there were none."""
        return tuple(map(self._filled, events))

    def tokenize(self, request: Tokenize) -> Tokens | None:
        """The tokens of a text; None for a conversation, whose template is the remote's."""
        if not isinstance(request.prompt, TextPrompt):
            return None
        text = request.prompt.text
        encoding = self._tokenizer.encode(text, add_special_tokens=request.add_special_tokens)
        return Tokens(
            tuple(
                TokenSpan(id, text[start:stop], start, stop)
                for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
            ),
            text,
        )

    def _filled(self, event: Event) -> Event:
        if isinstance(event, Started) and event.prompts:
            return replace(event, prompts=tuple(tuple(map(self._known, prompt)) for prompt in event.prompts))
        if not isinstance(event, Delta):
            return event
        if not event.tokens:
            return replace(event, tokens=self._tokens(event.text)) if event.text else event
        return replace(event, tokens=tuple(map(self._known, event.tokens)))

    def _tokens(self, text: str) -> tuple[Token, ...]:
        """Tokens that say `text`; of several for one character, the first has it."""
        encoding: Encoding = self._tokenizer.encode(text, add_special_tokens=False)
        tokens, done = [], 0
        for place, (id, (_, stop)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True), 1):
            stop = len(text) if place == len(encoding.ids) else max(stop, done)  # noqa: PLW2901
            tokens.append(Token(id, text[done:stop]))
            done = stop
        return tuple(tokens)

    def _known(self, token: Token) -> Token:
        """A token that has a text, and the likeliest in its place: each with its id, if that is one token's."""
        top = tuple(replace(other, id=self._id(other)) for other in token.top)
        return replace(token, id=self._id(token), top=top)

    def _id(self, token: Token | TopToken) -> int | None:
        if token.id is not None:
            return token.id
        ids = self._tokenizer.encode(token.text, add_special_tokens=False).ids
        return ids[0] if len(ids) == 1 else None
