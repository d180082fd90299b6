"""Places for the requests of several keys."""

from __future__ import annotations

import pytest

from gateway.routing.shares import Shares
from schemas.errors import RateLimited


def filled(made: Shares, key: str) -> int:
    """How many requests of a key are taken until one is refused."""
    for count in range(1000):
        try:
            made.enter(key)
        except RateLimited as error:
            return count if error.retry_after else -1
    return 1000


def test_a_key_alone_leaves_some_places_to_others() -> None:
    made = Shares(80)
    assert filled(made, "a") == 70
    assert filled(made, "b") == 40


def test_a_key_over_its_share_waits_until_its_requests_end() -> None:
    made = Shares(80)
    filled(made, "a")
    for _ in range(10):
        made.enter("b")
    for _ in range(30):
        made.leave("a")
        with pytest.raises(RateLimited):
            made.enter("a")
        made.enter("b")
    with pytest.raises(RateLimited):
        made.enter("b")
    for _ in range(40):
        made.leave("b")
    made.enter("a")


def test_while_half_is_free_everybody_is_taken() -> None:
    made = Shares(80)
    for key in "abcdefgh":
        for _ in range(5):
            made.enter(key)
    assert filled(made, "a") == 5
