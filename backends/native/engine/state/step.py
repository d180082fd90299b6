"""A step as recurrent layers see it: groups of sequences, each with the states of its sequences as a cache object.

A packed step is one row of the tokens of all sequences. A recurrent layer must not carry state from one sequence to the
next, so its rows are taken apart: all sequences in decode are one batch, every prompt or chunk is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from backends.native.engine.scheduling.sequence import Work
from backends.native.engine.state.pool import StateKey, StatePool

_T = TypeVar("_T")


class _ByIndex(Generic[_T]):
    """A function as a list that is only read."""

    def __init__(self, get: Callable[[int], _T]) -> None:
        self._get = get

    def __getitem__(self, index: int) -> _T:
        return self._get(index)


class StateView:
    """The states of a group's sequences, with the methods of transformers' `Cache` that recurrent layers call.

    Args:
        pool: the states of all sequences.
        slots: of the group's sequences: a slice if they are neighbours, whose states are then changed in place.
        fresh: whether the sequences have no state, as before their first token.
    """

    def __init__(self, pool: StatePool, slots: slice | Tensor, *, fresh: bool) -> None:
        self._pool = pool
        self._slots = slots
        self._fresh = fresh
        self._copies: dict[StateKey, Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """[sequences, channels, tokens], the last inputs of a convolution; None before a sequence's first token."""
        return self._get((layer_idx, "conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """[sequences, ...], whatever a layer stored; None before a sequence's first token."""
        return self._get((layer_idx, "recurrent", state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Append new inputs, [sequences, channels, tokens]; all inputs that the convolution must see."""
        name = (layer_idx, "conv", state_idx)
        array = self._pool.array(name)
        # The first call of a layer fixes its width, as in transformers' `LinearAttentionLayer`.
        width = array.shape[-1] if array is not None else conv_kernel_size or conv_states.shape[-1]
        before = self._get(name)
        if before is not None:
            inputs = torch.cat([before, conv_states], dim=-1)
        else:
            inputs = torch.nn.functional.pad(conv_states, (max(0, width - conv_states.shape[-1]), 0))
        self._set(name, inputs[..., -width:])
        return inputs

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Store [sequences, ...]."""
        self._set((layer_idx, "recurrent", state_idx), recurrent_states)
        return recurrent_states

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """Whether the sequences have run before."""
        return not self._fresh

    def is_recording_past(self, *_: Any) -> bool:
        """False: states are not rolled back."""
        return False

    @property
    def layers(self) -> _ByIndex[_LayerStates]:
        """What layers read in place of `get_conv_state` and `get_recurrent_state` in transformers 5.17."""
        return _ByIndex(partial(_LayerStates, self))

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        """MiniMax' name for `get_recurrent_state`."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        """MiniMax' name for `update_recurrent_state`."""
        self.update_recurrent_state(linear_cache, layer_idx)

    def write_back(self) -> None:
        """Store the states of sequences that are not neighbours, which layers were given copies of."""
        for name, copy in self._copies.items():
            array = self._pool.make(name, copy)
            array[self._slots] = copy.to(array.dtype)
        self._copies.clear()

    def _get(self, name: StateKey) -> Tensor | None:
        array = None if self._fresh else self._pool.array(name)
        if array is None:
            return None
        if isinstance(self._slots, slice):
            return array[self._slots]
        if name not in self._copies:
            self._copies[name] = array[self._slots]
        return self._copies[name]

    def _set(self, name: StateKey, state: Tensor) -> None:
        if isinstance(self._slots, slice):
            own = self._pool.make(name, state)[self._slots]
            # What was changed in place is there already.
            if not own.is_set_to(state):
                own.copy_(state)
        else:
            self._copies[name] = state


class _LayerStates:
    """A layer of `StateView`, as transformers' cache has them: `layers[layer_idx].conv_states[state_idx]`."""

    record_past = False

    def __init__(self, states: StateView, layer_idx: int) -> None:
        self.conv_states = _ByIndex(partial(states.get_conv_state, layer_idx))
        self.recurrent_states = _ByIndex(partial(states.get_recurrent_state, layer_idx))


@dataclass(slots=True, eq=False, frozen=True)
class Group:
    """Sequences that go through a recurrent layer as one batch; all have equally many new tokens.

    Attributes:
        works: theirs.
        rows: where their tokens stand in the pack: a slice, or [sequences * tokens].
        states: their states.
    """

    works: Seq[Work]
    rows: Tensor | slice
    states: StateView

    def select(self, packed: Tensor) -> Tensor:
        """[1, tokens of the pack, ...] to [sequences, tokens, ...]."""
        return packed[0, self.rows].view(len(self.works), -1, *packed.shape[2:])


def groups_of(works: Seq[Work], pool: StatePool, device: torch.device) -> list[Group]:
    """The groups of a step. Every work's sequence has a slot."""
    starts = list(accumulate((work.count for work in works[:-1]), initial=0))
    # A prompt of one token has no state yet, so it is no decode.
    decodes = [index for index, work in enumerate(works) if work.count == 1 and work.start > 0]
    decoding = set(decodes)
    groups = []
    for index, work in enumerate(works):
        if index not in decoding:
            slot = pool.slot(work.sequence)
            states = StateView(pool, slice(slot, slot + 1), fresh=work.start == 0)
            groups.append(Group([work], slice(starts[index], starts[index] + work.count), states))
    if decodes:
        decodes.sort(key=lambda index: pool.slot(works[index].sequence))
        slots = [pool.slot(works[index].sequence) for index in decodes]
        adjacent = slots[-1] - slots[0] == len(slots) - 1
        rows = [starts[index] for index in decodes]
        ordered = rows == list(range(rows[0], rows[0] + len(rows)))
        groups.append(
            Group(
                [works[index] for index in decodes],
                slice(rows[0], rows[0] + len(rows)) if ordered else torch.tensor(rows, device=device),
                StateView(
                    pool,
                    slice(slots[0], slots[-1] + 1) if adjacent else torch.tensor(slots, device=device),
                    fresh=False,
                ),
            )
        )
    return groups


_current: ContextVar[list[Group] | None] = ContextVar("interlingua_states", default=None)


def current_groups() -> list[Group] | None:
    """The groups of the step that runs in this context; None outside of a step."""
    return _current.get()


@contextmanager
def grouped(groups: list[Group]) -> Iterator[None]:
    """Make `groups` those of the current step, for models called inside."""
    token = _current.set(groups)
    try:
        yield
    finally:
        _current.reset(token)
