"""What the tables of all protocols (`adapters/<protocol>/dialects.py`) are made of: bounds, failures, groups of fields.

A protocol's `Dialect` is a frozen struct of groups, each of one idea:

    requests    which fields a request may have and how they are read
    limits      intervals, counts, lengths, patterns
    defaults    what a value is where the request does not say
    answers     the shape of answers and streams
    wording     finish reasons and errors in the protocol's words
    remote      how a remote server of the dialect is called and understood

A protocol leaves out the groups that it has no fields for. A configuration names a field without its group
(`dialect_options.mindie.full_text`), so a field's name occurs in one group only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from schemas.errors import GatewayError

T = TypeVar("T")


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The interval of a numeric parameter. An absent end is infinite; an open end does not belong to the interval.

    `message` is the refusal, in which `{value}` stands for the refused value; None is the protocol's own sentence.
    """

    name: str
    low: int | float | None = None  # an integer end stays exact: 2**64 - 1 is no float
    high: int | float | None = None
    open_low: bool = False
    open_high: bool = False
    message: str | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the interval."""
        return not self.below(value) and not self.above(value)

    def below(self, value: float) -> bool:
        """Whether `value` is too small."""
        return self.low is not None and (value < self.low or (self.open_low and value == self.low))

    def above(self, value: float) -> bool:
        """Whether `value` is too large."""
        return self.high is not None and (value > self.high or (self.open_high and value == self.high))

    def interval(self) -> str:
        """The interval in mathematical notation, with whole numbers as ends: `(0,2]`, `[1,inf)`."""
        # `int`: "(0,2]", not "(0.0,2.0]"; the ends in all tables are whole numbers.
        left = "(-inf" if self.low is None else f"{'(' if self.open_low else '['}{int(self.low)}"
        right = "inf)" if self.high is None else f"{int(self.high)}{')' if self.open_high else ']'}"
        return f"{left},{right}"


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to one kind of error (`GatewayError.kind`).

    Attributes:
        status: HTTP status.
        type: the protocol's type of error.
        code: the protocol's code of the error, where it has one beside the type.
        text: the message; `{message}` stands for the error's own.
        final: tells OpenAI's SDKs not to retry (`x-should-retry: false`).
    """

    status: int
    type: str = ""
    code: str | None = None
    text: str = "{message}"
    final: bool = False


def row_for(table: Mapping[str, T], error: GatewayError) -> T:
    """The row of a table by `GatewayError.kind`: of the error's own kind, or of its nearest parent that has one.

    So a new kind of error needs a row only where a protocol has words of its own for it.
    """
    parents = (each for each in type(error).__mro__ if issubclass(each, GatewayError))
    return next(table[each.kind] for each in parents if each.kind in table)


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of a dialect that belong together. Subclasses repeat the keyword arguments."""


S = TypeVar("S", bound=msgspec.Struct)


def option_names(dialect: msgspec.Struct) -> tuple[str, ...]:
    """The fields that a configuration may set: those of all groups, and those outside of groups."""
    names: list[str] = []
    for name in dialect.__struct_fields__:
        value = getattr(dialect, name)
        names.extend(option_names(value) if isinstance(value, Group) else (name,))
    return tuple(names)


def with_options(dialect: S, options: Mapping[str, Any]) -> S:
    """A copy of `dialect` with some fields replaced, whatever group they are in. Unknown names have no effect.

    Raises:
        msgspec.ValidationError: a value is not of the field's type.
    """
    # Each group takes the options that it has a field for; a field's name is in one group only, so none is set twice.
    groups = {
        name: with_options(value, options)
        for name in dialect.__struct_fields__
        if isinstance(value := getattr(dialect, name), Group)
    }
    given = {name: options[name] for name in dialect.__struct_fields__ if name in options and name not in groups}
    if given:
        # Converted as a whole struct, so that nested values (a table of `Failure`s) become structs and types are
        # checked. Only the given fields are taken over: the rest keep the values of the groups that were replaced
        # above.
        converted = msgspec.convert(msgspec.to_builtins(dialect) | given, type(dialect))
        given = {name: getattr(converted, name) for name in given}
    return msgspec.structs.replace(dialect, **groups, **given)
