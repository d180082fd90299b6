"""Bounds, and options of a configuration that reach a field in whatever group it is."""

from __future__ import annotations

import math
from collections import Counter
from importlib.metadata import entry_points
from typing import Any

import msgspec
import pytest

from adapters.dialect import Bound, Group, option_names, row_for, with_options
from adapters.triton.grpc.failures import STATUSES
from schemas import errors

DIALECTS = [
    pytest.param(dialect, id=name)
    for point in sorted(entry_points(group="gateway.adapters"), key=lambda point: point.name)
    for name, dialect in point.load().dialects.items()
]


class Limits(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_stop: int = 4
    bounds: tuple[Bound, ...] = (Bound("n", 1, 2),)


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = "some"
    strict: bool = False
    limits: Limits = Limits()


@pytest.mark.parametrize(
    ("bound", "held", "refused", "interval"),
    [
        (Bound("x"), [-math.inf, 0, math.inf], [], "(-inf,inf)"),
        (Bound("x", 0, 2), [0, 1.5, 2], [-0.1, 2.1], "[0,2]"),
        (Bound("x", 0, 2, open_low=True), [0.1, 2], [0, 2.1], "(0,2]"),
        (Bound("x", 0, 2, open_high=True), [0, 1.9], [-0.1, 2], "[0,2)"),
        (Bound("x", 1), [1, 10**30], [0], "[1,inf)"),
        (Bound("x", high=1), [-(10**30), 1], [2], "(-inf,1]"),
    ],
)
def test_a_bound_holds_what_lies_in_its_interval(
    bound: Bound, held: list[float], refused: list[float], interval: str
) -> None:
    assert all(bound.holds(value) for value in held)
    assert not any(bound.holds(value) for value in refused)
    assert all(bound.below(value) != bound.above(value) for value in refused)
    assert bound.interval() == interval


def test_an_option_reaches_its_field_in_a_group_and_outside_of_groups() -> None:
    assert option_names(Dialect()) == ("name", "strict", "max_stop", "bounds")
    changed = with_options(Dialect(), {"max_stop": 9, "strict": True})
    assert changed == Dialect(strict=True, limits=Limits(max_stop=9))
    bounds = with_options(Dialect(), {"bounds": [{"name": "seed", "high": 2**64 - 1}]}).limits.bounds
    assert bounds == (Bound("seed", high=2**64 - 1),)
    assert not bounds[0].holds(2**64)


def test_an_option_of_a_wrong_type_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.max_stop`"):
        with_options(Dialect(), {"max_stop": "9"})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_field_of_a_dialect_is_an_option_with_a_name_of_its_own(dialect: Any) -> None:
    names = option_names(dialect)
    assert [name for name, count in Counter(names).items() if count > 1] == []
    values = _values(dialect)
    assert set(values) == set(names)
    assert with_options(dialect, values) == dialect


def _values(struct: msgspec.Struct) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        values |= _values(value) if isinstance(value, Group) else {name: msgspec.to_builtins(value)}
    return values


class QuotaUsedUp(errors.RateLimited):
    """What a newcomer adds: no table has a row for its kind."""

    kind = "quota_used_up"


def tables(dialect: Any) -> list[dict[str, Any]]:
    """The tables of a dialect by `GatewayError.kind`."""
    return [table for name in ("failures", "statuses") if (table := getattr(dialect.wording, name, None)) is not None]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_has_a_row_for_every_kind_of_error(dialect: Any) -> None:
    [table] = tables(dialect)
    known = {each.kind for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "kind")}
    assert set(errors.KINDS) <= set(table) <= known


def test_a_call_over_grpc_has_a_status_for_every_kind_of_error() -> None:
    assert set(STATUSES) == set(errors.KINDS)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_without_a_row_of_its_own_is_answered_like_its_parent(dialect: Any) -> None:
    [table] = tables(dialect)
    assert row_for(table, QuotaUsedUp("No.")) is table["rate_limited"]
    assert row_for(table | {"quota_used_up": "a row"}, QuotaUsedUp("No.")) == "a row"
    assert row_for({"internal": "the root"}, QuotaUsedUp("No.")) == "the root"
