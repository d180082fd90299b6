"""How many model types take the packed execution path, and that docs/models.md lists them."""

from __future__ import annotations

import re

import pytest
import transformers

from tests.backends.native.engine.loading.coverage import PACKED, PAGE, coverage, listed_as_packed, page, version_of

pytestmark = pytest.mark.torch


def test_the_page_names_the_transformers_version_that_constraints_install() -> None:
    constraints = (PAGE.parents[1] / "constraints.txt").read_text()
    (pinned,) = re.findall(r"^transformers==(\S+)$", constraints, re.MULTILINE)
    assert version_of(PAGE.read_text()) == pinned, "rewrite docs/models.md with the module `coverage`"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_and_fifty_types_are_packed_and_the_page_lists_them() -> None:
    written, found = PAGE.read_text(), coverage()
    listed = listed_as_packed(written)
    assert len(listed) >= 150
    lost = {name: found[name] for name in listed if name in found and found[name] != PACKED}
    assert not lost, "listed as packed, and not packed by this version of transformers"
    assert sum(outcome == PACKED for outcome in found.values()) >= 150
    if version_of(written) == transformers.__version__:
        assert page(found) == written
