"""Literal text in llguidance's Lark, for a tokenizer that has some of it as special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

ANY = "(?s:.*)"


class Tags:
    """The tokens that no text of a grammar contains, and how to write text with them.

    Args:
        ids: the tokens that llguidance takes for special, by name.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        # Longer names first: a token goes before those that it contains. `(?!)` never matches.
        names = "|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True))
        self._split = re.compile(f"({names})" if names else "(?!)")

    def starts(self, text: str) -> bool:
        """Whether a text begins with a token."""
        return bool(text) and self._split.match(text) is not None

    def is_token(self, text: str) -> bool:
        """Whether a text is one token."""
        return text in self._ids

    def literal(self, text: str, *, optional_breaks: bool = True) -> str:
        """An expression for a literal text; "" for none. Line breaks in it may be left out if `optional_breaks`."""
        pieces = []
        for part in self._split.split(text):
            if part in self._ids:
                # Lark's `<[7]>` is the token of that id; in quotes its name would be text.
                pieces.append(f"<[{self._ids[part]}]>")
            elif part:
                pieces += _quoted(part) if optional_breaks else [json.dumps(part)]
        return " ".join(pieces)

    def until(self, rule: str, closes: str, body: str = ANY) -> list[str]:
        """Lines that define `rule`: text that matches `body`, up to the first `closes` and with it."""
        if self.starts(closes):
            terminal = rule.upper()
            return [f"{rule}: {terminal} {self.literal(closes, optional_breaks=False)}", f"{terminal}: /{body}/"]
        text = self.before_token(closes)
        if len(text) < len(closes):
            # The token ends the text: what precedes it in the tag may occur in the text, too.
            terminal, rest = rule.upper(), self.literal(closes[len(text) :], optional_breaks=False)
            return [f"{rule}: {terminal} {rest}", f"{terminal}: /({body}){escaped(text)}/"]
        # `suffix` ends the text at the first place where it follows, without looking further.
        return [f"{rule}: {rule}_text", f"{rule}_text[suffix={json.dumps(text)}]: /{body}/"]

    def before_token(self, text: str) -> str:
        """A text up to the first token in it; the whole text if there is none."""
        return self._split.split(text)[0]


def _quoted(text: str) -> list[str]:
    return [r'"\n"?' if part == "\n" else json.dumps(part) for part in re.split(r"(\n)", text) if part]


def escaped(text: str) -> str:
    """A text as a part of a regular expression in Lark."""
    # As code points, since a text may have characters that mean something in a regular expression or in Lark.
    return "".join(f"\\x{{{ord(character):X}}}" for character in text)


def ordered(rule: str, members: list[tuple[str, bool]], separator: str) -> list[str]:
    """Lines that define `rule`: members in their order, with separators, of which some may be left out.

    Args:
        rule: the name of the rule.
        members: an expression and whether it must be there, for each.
        separator: an expression; "" for none.
    """
    # `first` has no member before it, `more` has: only the latter begins with a separator.
    lines, last = [], len(members)
    for place, (member, required) in enumerate(members):
        here = rule if place == 0 else f"{rule}_first_{place}"
        after_first, after_more = f"{rule}_more_{place + 1}", f"{rule}_more_{place + 1}"
        skipped = "" if required else f" | {rule}_first_{place + 1}"
        lines.append(f"{here}: {member} {after_first}{skipped}")
        if place:
            follows = f"{separator} {member}" if separator else member
            lines.append(f"{rule}_more_{place}: ({follows}){'' if required else '?'} {after_more}")
    if not members:
        return [f'{rule}: ""']
    # The end, with and without a member before it.
    return [*lines, f'{rule}_first_{last}: ""', f'{rule}_more_{last}: ""']
