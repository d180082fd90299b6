"""The literal texts of families as patterns."""

from __future__ import annotations

import regex

NUMBER = "\ue000"
"""In a literal: any number. A private character, which no literal has."""
_JSON_PUNCTUATION = "{}[]:,"


def loose(literal: str) -> str:
    """A pattern for a literal, with any white space where it has some and around the punctuation of JSON."""
    pattern = ""
    for character in literal:
        if character.isspace():
            pattern += r"\s*"
        elif character == NUMBER:
            pattern += r"\d+"
        elif character in _JSON_PUNCTUATION:
            pattern += rf"\s*{regex.escape(character)}\s*"
        else:
            pattern += regex.escape(character)
    while r"\s*\s*" in pattern:
        pattern = pattern.replace(r"\s*\s*", r"\s*")
    return pattern
