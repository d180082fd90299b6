"""Methods of transformers' classes that call other functions than their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any


def with_functions(method: Callable[..., Any], functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A bound method, without its decorators, that finds `functions` by the names of those of its module.

    It is a copy with other globals: nothing of transformers is changed for anybody else.
    """
    bound: Any = method
    own: Any = inspect.unwrap(bound.__func__)
    made = FunctionType(own.__code__, {**own.__globals__, **functions}, own.__name__, own.__defaults__, own.__closure__)
    made.__kwdefaults__ = own.__kwdefaults__
    return MethodType(made, bound.__self__)


def function_of(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function that a method, without its decorators, finds by a name."""
    bound: Any = method
    found: Callable[..., Any] = inspect.unwrap(bound.__func__).__globals__[name]
    return found
