"""How large a regular expression is, once its repetitions are written out: what the time to compile it grows with.

A look at its brackets and braces, no parser: what is wrong with an expression, its compiler says. It is one pass: what
is not closed goes on to the end, or many that are not would take the square of their number.
"""

from __future__ import annotations

import re

from schemas.errors import InvalidRequest

MOST_CHARACTERS = 100_000
"""Of an expression with its repetitions written out: a third of a second to compile."""

_TOKEN = re.compile(
    r"""
    \\(?:[pPx]\{[^}]*+\}?|.)            # an escape, `\p{L}` and `\x{41}` included
    | \[\^?\]?(?:\\.|[^\]\\])*+\]?      # a class of characters
    | \{(?P<least>\d*)(?:(?P<comma>,)(?P<most>\d*))?\}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def check_regex(pattern: str, param: str) -> None:
    """Refuse an expression that is too large.

    Raises:
        schemas.errors.InvalidRequest: says so.
    """
    if "{" in pattern and written_out(pattern) > MOST_CHARACTERS:  # else it is as long as it looks
        message = f"A regular expression may have at most {MOST_CHARACTERS} characters, its repetitions written out."
        raise InvalidRequest(message, param=param)


def written_out(pattern: str) -> int:
    """Characters of an expression whose repetitions are written out, each as often as it may be."""
    open_groups = [0]  # what is in each group that is still open, without `last`
    last = 0  # what a repetition would repeat
    for token in _TOKEN.finditer(pattern):
        if token["least"] is not None:
            last *= _times(token["least"], token["most"])
            continue
        open_groups[-1] += last
        last = 1
        if token[0] == "(":
            open_groups.append(0)
            last = 0
        elif token[0] == ")" and len(open_groups) > 1:
            last = open_groups.pop() + 1
    return sum(open_groups) + last


def _times(least: str, most: str | None) -> int:
    numbers = [int(number[:9]) for number in (least, most) if number]
    return max(numbers, default=1) or 1
