"""How many model types take the packed execution path, and that docs/models.md lists them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import transformers

from backends.native.engine.attention.interface import Kernel
from backends.native.engine.layers.fuse_model import fuse_layers
from backends.native.engine.loading import self_check
from backends.native.engine.loading.execution_path import replace_in_small_copy
from backends.native.engine.loading.self_check import Change
from tests.backends.native.engine.loading.coverage import PACKED, PAGE, coverage, listed_as_packed, page, version_of
from tests.backends.native.engine.pretended.engines import WIDE

pytestmark = pytest.mark.torch


def test_the_page_names_the_transformers_version_that_constraints_install() -> None:
    constraints = (PAGE.parents[1] / "constraints.txt").read_text()
    (pinned,) = re.findall(r"^transformers==(\S+)$", constraints, re.MULTILINE)
    assert version_of(PAGE.read_text()) == pinned, "rewrite docs/models.md with the module `coverage`"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_and_fifty_types_are_packed_and_the_page_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own, whys = self_check.compare, list[str | None]()

    def compare(model: Any, kernel: Kernel, change: Change) -> str | None:
        whys.append(own(model, kernel, change))
        return whys[-1]

    monkeypatch.setattr(self_check, "compare", compare)
    written, found = PAGE.read_text(), coverage()
    listed = listed_as_packed(written)
    assert len(listed) >= 150
    lost = {name: found[name] for name in listed if name in found and found[name] != PACKED}
    assert not lost, "listed as packed, and not packed by this version of transformers"
    packed = sum(outcome == PACKED for outcome in found.values())
    assert packed >= 150
    assert whys.count(None) >= packed, "each has given the logits of transformers"
    if version_of(written) == transformers.__version__:
        assert page(found) == written


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not WIDE, reason="a minute more of the same")
def test_each_packed_type_gives_the_same_logits_with_the_layers_that_replace_its_own() -> None:
    """Else it would be served packed nevertheless, and slower."""
    found = coverage(partial(replace_in_small_copy, fuse=partial(fuse_layers, longest=512)))
    lost = {name: found[name] for name in listed_as_packed(PAGE.read_text()) if found.get(name, PACKED) != PACKED}
    assert not lost
