"""A limit on the size of a regular expression with its repetitions expanded, with which compile time grows.

A single pass over groups, classes and braces, not a parser: the compiler reports syntax errors. An unclosed class or
group extends to the end, so that many unclosed ones do not take quadratic time.
"""

from __future__ import annotations

import re

from schemas.errors import InvalidRequest

MAX_EXPANDED_LENGTH = 100_000
"""Characters of an expression with its repetitions expanded: a third of a second to compile."""

# Possessive quantifiers (`*+`, Python 3.11) never backtrack, so the scan takes linear time whatever the input. The
# optional closing `}` and `]` accept what is unclosed up to the end.
_TOKEN = re.compile(
    r"""
    \\(?:[pPx]\{[^}]*+\}?|.)            # an escape, `\p{L}` and `\x{41}` included
    | \[\^?\]?(?:\\.|[^\]\\])*+\]?      # a character class
    | \{(?P<least>\d*)(?:(?P<comma>,)(?P<most>\d*))?\}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)

_MARKS = frozenset("*+?")


def check_regex(pattern: str, param: str) -> None:
    """Reject an expression that is too large.

    Raises:
        schemas.errors.InvalidRequest: it is.
    """
    if "{" in pattern and expanded_length(pattern) > MAX_EXPANDED_LENGTH:  # without braces nothing is repeated
        message = (
            f"A regular expression may have at most {MAX_EXPANDED_LENGTH} characters with its repetitions expanded."
        )
        raise InvalidRequest(message, param=param)


def expanded_length(pattern: str) -> int:
    """The number of characters of an expression with every repetition expanded to its upper bound."""
    # An item is a character, an escape, a class or a group, with the marks behind it (`*`, `+`, `?`), which count as
    # one character each: `(a*){9}` and `a*{9}` both repeat them.
    open_groups = [0]  # the length of each open group, without `last`
    last = 0  # the length of the item that a repetition would repeat
    for token in _TOKEN.finditer(pattern):
        if token["least"] is not None:
            # Nested repetitions multiply: a group's length includes what is repeated within it.
            last *= _times(token["least"], token["most"])
            continue
        if token[0] in _MARKS:
            last += 1
            continue
        open_groups[-1] += last
        last = 1
        if token[0] == "(":
            open_groups.append(0)
            last = 0
        elif token[0] == ")" and len(open_groups) > 1:
            last = open_groups.pop() + 1
    # Groups that are not closed count, too.
    return sum(open_groups) + last


def _times(least: str, most: str | None) -> int:
    # Nine digits exceed the limit already, and `int` of a long number takes quadratic time. `x{0}` counts as one x.
    numbers = [int(number[:9]) for number in (least, most) if number]
    return max(numbers, default=1) or 1
