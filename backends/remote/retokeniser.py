"""Token ids for the answers of servers that return none, by a tokenizer that the operator configures.

Each delta is encoded by itself. Servers mostly send one token per delta, and then these ids are the model's own. For
longer deltas the ids decode to the same text, but the model may have chosen others.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from tokenizers import Encoding, Tokenizer

from schemas.ir import Delta, Event, Events, Started, TextPrompt, Token, Tokenize, Tokens, TokenSpan, TopToken


class Retokeniser:
    """Fills in token ids with one tokenizer.

    Args:
        path: a `tokenizer.json`, or the folder of one.

    Raises:
        ValueError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        file = Path(path)
        try:
            self._tokenizer = Tokenizer.from_file(str(file / "tokenizer.json" if file.is_dir() else file))
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"the tokenizer {path} cannot be read: {error}") from None

    def fill(self, events: Events) -> Events:
        """The same events, with token ids wherever there were none. Ids that are there are kept."""
        return tuple(map(self._fill_event, events))

    def tokenize(self, request: Tokenize) -> Tokens | None:
        """The tokens of a text; None for a conversation, because the server's chat template is unknown."""
        if not isinstance(request.prompt, TextPrompt):
            return None
        text = request.prompt.text
        # `offsets` count characters of the text, not bytes.
        encoding = self._tokenizer.encode(text, add_special_tokens=request.add_special_tokens)
        return Tokens(
            tuple(
                TokenSpan(id, text[start:stop], start, stop)
                for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
            ),
            text,
        )

    def count(self, text: str, *, add_special_tokens: bool = True) -> int:
        """The number of tokens of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _fill_event(self, event: Event) -> Event:
        # Echoed prompts have tokens, but no ids, on servers that report texts and log-probabilities only.
        if isinstance(event, Started) and event.prompts:
            return replace(event, prompts=tuple(tuple(map(self._with_id, prompt)) for prompt in event.prompts))
        if not isinstance(event, Delta):  # `Usage` and `Relayed` have no tokens
            return event
        # Text without tokens: the server reports neither ids nor log-probabilities.
        if not event.tokens:
            return replace(event, tokens=self._tokens(event.text)) if event.text else event
        return replace(event, tokens=tuple(map(self._with_id, event.tokens)))

    def _tokens(self, text: str) -> tuple[Token, ...]:
        """The tokens of `text`. Of several tokens for one character, the first carries its text."""
        # A delta continues a text: a BOS in front of it would be a token that the model did not generate.
        encoding: Encoding = self._tokenizer.encode(text, add_special_tokens=False)
        # Tokens of one character have that character's range each; `done` keeps its text from being counted twice.
        tokens, done = [], 0
        for place, (id, (_, stop)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True), 1):
            # Tokenizers may drop characters (normalization, spaces at the end): the last token carries the rest.
            stop = len(text) if place == len(encoding.ids) else max(stop, done)  # noqa: PLW2901
            tokens.append(Token(id, text[done:stop]))
            done = stop
        return tuple(tokens)

    def _with_id(self, token: Token) -> Token:
        """The token with its id, and those of its top alternatives, each where the text is exactly one token."""
        top = tuple(replace(other, id=self._id(other)) for other in token.top)
        return replace(token, id=self._id(token), top=top)

    def _id(self, token: Token | TopToken) -> int | None:
        if token.id is not None:
            return token.id
        # Not one token: a server's own token was split, or its text is empty or half a character. No id is better than
        # a wrong one.
        ids = self._tokenizer.encode(token.text, add_special_tokens=False).ids
        return ids[0] if len(ids) == 1 else None
