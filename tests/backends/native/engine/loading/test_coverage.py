"""How many kinds of models are fast, and that the page which says so is up to date."""

from __future__ import annotations

import pytest
import transformers

from tests.backends.native.engine.loading.coverage import PACKED, PAGE, coverage, page

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_hundred_types_are_packed_and_the_page_says_which() -> None:
    found = coverage()
    assert sum(outcome == PACKED for outcome in found.values()) >= 100
    written = PAGE.read_text()
    if f"transformers\n{transformers.__version__}." in written:
        assert page(found) == written
