"""The length of regular expressions with their repetitions expanded."""

from __future__ import annotations

import pytest

from backends.native.grammar.regex_limits import MAX_EXPANDED_LENGTH, check_regex, expanded_length
from schemas.errors import InvalidRequest


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("a{5}", 5),
        ("a{2,7}", 7),
        ("a{3,}", 3),
        ("a{,4}", 4),
        ("a{0}", 1),
        ("ab{5}c", 7),
        ("[a-z{9}]{5}", 5),
        (r"\p{L}{5}\{9}", 8),
        (r"[\]{9}]{4}", 4),
        ("[]{9}]{4}", 4),
        ("(ab){10}", 30),
        ("(a{10}b){10}", 120),
        ("((a{10}){10}){10}", 1_110),
        ("(a{1000}){1000}", 1_001_000),
        ("(a{1000})*{1000}", 1_002_000),
        ("a+?b*", 5),
        ("(?:a?)*{3}", 18),
        ("(a){999999999999}", 2 * 999_999_999),
        ("(((", 0),
        (")))", 3),
        ("{5}{6}a", 1),
        ("[" * 60_000, 1),  # looked at once each, or it would take a minute
        (r"\p{" * 20_000, 1),
        (r"[a\]b", 1),
        ("a[b", 2),
    ],
)
def test_expanded_length(pattern: str, size: int) -> None:
    assert expanded_length(pattern) == size


def test_an_expression_that_expands_too_far_is_rejected() -> None:
    check_regex("(a{300}){300}", "response_format")
    for pattern in ("(a{1000}){1000}", "((a{100}){100}){100}", "x{1,100001}", "(" * 20 + "a" + "{9})" * 20):
        with pytest.raises(InvalidRequest, match=str(MAX_EXPANDED_LENGTH)) as raised:
            check_regex(pattern, "response_format")
        assert raised.value.param == "response_format"
