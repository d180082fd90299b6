"""Token ids of queries and documents for models of late interaction (ColBERT)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from backends.native.sentence_transformers import Late

Ids = tuple[int, ...]


class LateTokens:
    """What becomes of the token ids of a text that is a query or a document."""

    def __init__(self, tokenizer: Any, late: Late, *, query: bool) -> None:
        self._expansion = late.expansion if query else None
        skips = ("query" if query else "document") in late.skipped_in
        self._skipped = frozenset(_known(tokenizer, late.skipped)) if skips else frozenset()
        named = None if self._expansion is None else self._expansion.token
        self._filler = _known(tokenizer, [named or tokenizer.mask_token or tokenizer.eos_token])

    def expand(self, ids: Ids) -> tuple[Ids, int]:
        """The ids with those that fill up a query, and how many of them no other token sees."""
        if self._expansion is None:
            return ids, 0
        added = self._filler * (self._expansion.length - len(ids))
        return ids + added, 0 if self._expansion.attend else len(added)

    def kept(self, ids: Ids, rows: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
        """The vectors of those tokens that have one."""
        return tuple(row for id, row in zip(ids, rows, strict=True) if id not in self._skipped)


def add_prefixes(tokenizer: Any, prefixes: Iterable[str]) -> None:
    """Have a tokenizer read prompts as the tokens that they are, if it has them: "[unused0]", "[Q] " with a space."""
    from tokenizers import AddedToken

    vocabulary = tokenizer.get_vocab()
    for prefix in prefixes:
        own = next((token for token in (prefix, *prefix.split(None, 1)[:1]) if token in vocabulary), None)
        if own is not None and tokenizer.tokenize(own) != [own]:
            added = AddedToken(own, normalized=False, special=True)
            tokenizer.add_special_tokens({"additional_special_tokens": [added]}, replace_extra_special_tokens=False)


def _known(tokenizer: Any, tokens: Iterable[str | None]) -> Ids:
    """The ids of those tokens that a tokenizer has."""
    wanted = [token for token in tokens if token is not None]
    ids = dict(zip(wanted, tokenizer.convert_tokens_to_ids(wanted), strict=True))
    return tuple(
        id for token, id in ids.items() if token == tokenizer.unk_token or id not in (None, tokenizer.unk_token_id)
    )
