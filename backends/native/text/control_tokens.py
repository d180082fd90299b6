"""Names of control tokens in what clients send: they stay text, so that no message forges a turn (prompt injection)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from schemas.errors import InvalidRequest

T = TypeVar("T")


class ControlTokens:
    """The control tokens of a tokenizer, as the text around messages writes them.

    Args:
        tokenizer: a `transformers.PreTrainedTokenizerBase`.
        literals: the text that is written around messages, of a template or of a prompt.
    """

    def __init__(self, tokenizer: Any, literals: str) -> None:
        # All added tokens, special or not: the tokenizer finds each of them in any text. `(?!)` never matches.
        self._names = re.compile("|".join(map(re.escape, tokenizer.added_tokens_encoder)) or "(?!)")
        self._mark = _marker(tokenizer, literals)

    def named_in(self, texts: Iterable[str]) -> bool:
        """Whether texts of a client contain the name of one."""
        # The separator keeps two strings from forming a token's name together.
        return self._names.search("\0".join(texts)) is not None

    def mark(self, given: T) -> T:
        """Mark the names in the strings of messages, for `encode_templated`.

        Raises:
            schemas.errors.InvalidRequest: transformers is too old to tell a name from the token.
        """
        if self._mark is None:  # transformers before 5.20: a message could forge another role's turn
            raise InvalidRequest(
                "The messages contain the name of a control token, which this server cannot distinguish from the "
                "token.",
                param="messages",
            )
        marked: T = self._mark(given)
        return marked


def encode_templated(tokenizer: Any, text: str, *, marked: bool) -> tuple[int, ...]:
    """Tokenize a text that writes its own special tokens; if `marked`, names that were marked stay plain text."""
    sanitized = {"sanitize_control_tokens": True} if marked else {}
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False, **sanitized)["input_ids"])


def _marker(tokenizer: Any, literals: str) -> Callable[[Any], Any] | None:
    """What marks the names of control tokens; None if transformers is too old.

    Control tokens are the special ones, and the added ones that `literals` contains: as in transformers, which would
    parse the template for it in this process.
    """
    try:
        from transformers.utils.chat_template_utils import mark_control_tokens
    except ImportError:
        return None
    names = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special or (token.content in literals and not token.content.isspace())
    ]
    # Longer names first: a token goes before those that it contains. `(?!)` never matches.
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
    return partial(mark_control_tokens, control_tokens_re=pattern)
