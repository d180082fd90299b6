"""Stacks what transformers keeps between calls along the batch, and takes rows out of a stack.

Such a state is a tree: tensors, whose first dimension is the batch, in lists, dictionaries and objects of transformers'
cache classes. Nothing here knows one of the classes. Whether a model's states can be treated so is found at load by
running a small copy of the model (`loading.stacking_check`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from collections.abc import Sequence as Seq
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedConfig


class Stacking(StrEnum):
    """Which sequences share a forward of the per-sequence path."""

    PADDED = "padded"
    """Sequences of similar lengths; the shorter ones are padded at the left."""
    EQUAL = "equal"
    """Sequences of equal length."""
    NONE = "none"
    """None do."""


class Unstackable(ValueError):
    """States that differ in something else than the numbers of their tensors."""


def stack(states: Seq[Any]) -> Any:
    """One state with the rows of all of `states`, which have equal structure.

    Tensors may differ in one dimension besides the batch, which is their length: the shorter ones get zeros at its
    start. Counters that differ become the largest: they count the padding, too.

    Raises:
        Unstackable: the states differ in another way.
    """
    first = states[0]
    if isinstance(first, Tensor):
        return _stack_tensors(states)
    if _is_tree(first):
        return _walk(states, stack)
    if all(state is first or state == first for state in states):
        return first
    if all(type(state) is int for state in states):
        return max(states)
    raise Unstackable(f"states differ in {type(first).__name__}")


def select(state: Any, rows: Tensor, count: int) -> Any:
    """The `rows` of a state that has `count` rows; tensors with another first dimension belong to no row."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows) if state.dim() and len(state) == count else state
    return _walk([state], lambda parts: select(parts[0], rows, count)) if _is_tree(state) else state


def _stack_tensors(tensors: Seq[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.dim():  # a number that belongs to no row
        if all(bool(first == each) for each in tensors):
            return first
        raise Unstackable("states differ in a number")
    shapes = [list(tensor.shape[1:]) for tensor in tensors]
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    unequal = [dim for dim, size in enumerate(largest, 1) if any(shape[dim - 1] != size for shape in shapes)]
    if len(unequal) > 1:
        raise Unstackable(f"states differ in {len(unequal)} dimensions")
    for dim in unequal:
        tensors = [_padded(tensor, dim, largest[dim - 1]) for tensor in tensors]
    return torch.cat(list(tensors))


def _padded(tensor: Tensor, dim: int, size: int) -> Tensor:
    """`tensor` with zeros before its dimension `dim`, so that this has `size` entries."""
    return functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [size - tensor.shape[dim], 0])


def _is_tree(state: Any) -> bool:
    """Whether a state has parts: a collection, or an object of a cache class of transformers."""
    if isinstance(state, list | tuple | dict):
        return True
    known = type(state).__module__.startswith("transformers.") and hasattr(state, "__dict__")
    return known and not isinstance(state, PreTrainedConfig)


def _walk(states: Seq[Any], change: Callable[[list[Any]], Any]) -> Any:
    """A tree like the first of `states`, of which each part is `change` of that part of all."""
    first = states[0]
    if any(type(state) is not type(first) for state in states):
        raise Unstackable("states differ in a class")
    if isinstance(first, list | tuple):
        if any(len(state) != len(first) for state in states):
            raise Unstackable("states differ in their number of parts")
        parts = [change(list(each)) for each in zip(*states, strict=True)]
        return type(first)(parts)
    # Dictionaries of their own class, as default dictionaries, keep what else they hold.
    entries = [state if isinstance(state, dict) else vars(state) for state in states]
    if any(entry.keys() != entries[0].keys() for entry in entries):
        raise Unstackable("states differ in the names of their parts")
    changed = {name: change([entry[name] for entry in entries]) for name in entries[0]}
    made = copy.copy(first)
    (made if isinstance(made, dict) else vars(made)).update(changed)
    return made
