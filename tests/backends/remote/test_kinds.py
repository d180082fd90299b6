"""The table of remote kinds."""

from __future__ import annotations

import runpy
from enum import StrEnum
from importlib.metadata import entry_points

import pytest

from backends import base
from backends.base import Feature
from backends.remote import kinds
from backends.remote.kinds import Kind

KINDS = {name: kind for name, kind in vars(kinds).items() if isinstance(kind, Kind)}


def test_every_kind_has_an_entry_point() -> None:
    registered = [point.load() for point in entry_points(group="gateway.backends")]
    assert {id(kind) for kind in KINDS.values()} == {id(kind) for kind in registered if isinstance(kind, Kind)}


def test_a_new_feature_is_claimed_by_no_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is run again beside a `Feature` that has one member more."""
    members = {feature.name: feature.value for feature in Feature} | {"NEW": "new"}
    monkeypatch.setattr(base, "Feature", StrEnum("Feature", members))
    fresh = runpy.run_path(kinds.__file__)
    for name, kind in KINDS.items():
        assert {str(feature) for feature in fresh[name].features} == {feature.value for feature in kind.features}


@pytest.mark.parametrize("name", KINDS)
def test_a_backend_of_every_kind_can_be_made(name: str) -> None:
    backend = KINDS[name]("far", {"url": "http://host/v1", "features": ["chat", "watermark"]})
    assert backend.capabilities.features == KINDS[name].features & {Feature.CHAT, Feature.WATERMARK}
    assert backend.capabilities.embeddings == KINDS[name].embeddings
