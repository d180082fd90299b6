"""The error tree as the docstring draws it."""

from __future__ import annotations

import re

import pytest

from schemas import errors


def drawn() -> dict[str, str]:
    """Each class with its parent, by the drawing in the module's docstring."""
    parents: dict[str, str] = {}
    path = ["GatewayError"]
    for line in (errors.__doc__ or "").splitlines():
        branch = re.match(r"    ((?:│   |    )*)[├└]── ((?:\w+, )*\w+)", line)
        if branch is None:
            continue
        depth = len(branch[1]) // 4 + 1
        for name in branch[2].split(", "):
            path[depth:] = [name]
            parents[name] = path[depth - 1]
    return parents


DRAWN = drawn()


@pytest.mark.parametrize("name", DRAWN)
def test_a_class_has_the_parent_that_is_drawn(name: str) -> None:
    assert getattr(errors, name).__bases__ == (getattr(errors, DRAWN[name]),)


def test_every_class_is_drawn() -> None:
    classes = {
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.GatewayError)
    }
    assert set(DRAWN) | {"GatewayError"} == classes


def test_the_kinds_that_every_table_has_are_of_the_tree() -> None:
    assert set(errors.KINDS) <= {getattr(errors, name).kind for name in DRAWN}
    assert len(errors.KINDS) == len(set(errors.KINDS))
