"""What the server runs with: locked by hashes, and under licences that may be used together with its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.supply_chain import GATEWAY, UNLOCKED, canonical, closure, incompatible, licence

ROOT = Path(__file__).parents[2]
LISTED = dict(re.findall(r"^\| ([\w-]+) \| (.+) \|$", (ROOT / "docs/licences.md").read_text(), re.MULTILINE))


def locked(name: str) -> dict[str, str]:
    return dict(re.findall(r"^(\S+)==(\S+ --hash=sha256:[0-9a-f]{64})$", (ROOT / name).read_text(), re.MULTILINE))


LOCKED = locked("requirements.lock")
GATEWAY_LOCKED = locked("requirements-gateway.lock")


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("MIT", []),
        ("Apache-2.0 AND CNRI-Python", []),
        ("Apache-2.0 WITH LLVM-exception", []),
        ("GPL-3.0-or-later OR MIT", []),
        ("(MIT AND Zlib)", []),
        ("GPL-3.0-only", ["gpl-3.0-only"]),
        ("MIT AND AGPL-3.0", ["agpl-3.0"]),
        ("unknown", ["unknown"]),
    ],
)
def test_which_licences_are_compatible(expression: str, wrong: list[str]) -> None:
    assert incompatible(expression) == wrong


@pytest.mark.slow
def test_no_package_has_an_incompatible_licence() -> None:
    found = {package.metadata["Name"]: licence(package) for package in closure()}
    assert {name: stated for name, stated in found.items() if incompatible(stated)} == {}
    listed = {name: stated for name, stated in LISTED.items() if name != "package"}
    assert {name: stated for name, stated in listed.items() if incompatible(stated)} == {}


@pytest.mark.slow
def test_every_package_is_listed_and_locked() -> None:
    needed = {canonical(package.metadata["Name"]) for package in closure()}
    assert len(needed) > 20
    assert needed - LISTED.keys() == set()
    assert needed - LOCKED.keys() - UNLOCKED == set()


@pytest.mark.slow
def test_a_gateway_alone_is_locked_without_an_engine() -> None:
    assert {canonical(package.metadata["Name"]) for package in closure(extras=GATEWAY)} == GATEWAY_LOCKED.keys()
    assert not {"transformers", "safetensors", "llguidance", "pillow"} & GATEWAY_LOCKED.keys()
    assert GATEWAY_LOCKED.items() <= LOCKED.items()


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    constraints = {canonical(name): version for name, version in pins}
    found = {name: pin.partition(" ")[0] for name, pin in LOCKED.items()}
    assert {name: version for name, version in found.items() if constraints.get(name, version) != version} == {}
