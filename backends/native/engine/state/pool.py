"""The state pool: for every layer with recurrent state, a row for each sequence, and snapshots of rows.

Keys and values of all tokens stay in pages; a recurrent layer keeps only what the last token left. The pool holds that
in arrays whose rows are slots, one for each sequence that runs.

- *Dense slots*: slots are 0 to the number of sequences - 1, always. The sequence with the last slot moves into a slot
  that becomes free, so sequences in decode are neighbours and their states are one slice, read and written in place.
- *Length*: how many tokens a sequence's state has seen. While a step runs it is `_IN_STEP`: layers change rows in
  place, so after a step that failed the state is neither that before it nor that after it. It is then made anew, from
  a snapshot or from the first token.
- *Snapshots*: copies of rows under the prefix-cache key of the last block that the state has seen. Pages of a prefix
  are of no use to a recurrent layer without the state behind them, so a prefix hit is as long as its last snapshot.
  Their number is bounded; the least recently used is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from backends.native.engine.scheduling.sequence import Sequence, Work

StateKey = tuple[int, str, int]
"""(layer, kind of state, number among the layer's states of this kind)."""

_IN_STEP = -1


class StatePool:
    """The recurrent states of all running sequences.

    Args:
        block_size: tokens of a block; snapshots are taken at multiples of it.
        snapshots: the most that are kept.
    """

    def __init__(self, block_size: int, snapshots: int = 0) -> None:
        self._block_size = block_size
        self._most_snapshots = snapshots
        self._arrays: dict[StateKey, Tensor] = {}
        self._rows = 1
        self._slots: dict[Sequence, int] = {}
        self._lengths: dict[Sequence, int] = {}
        self._snapshots: OrderedDict[bytes, dict[StateKey, Tensor]] = OrderedDict()
        self._replaceable: dict[Sequence, bytes] = {}

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of one slot, over all layers that have been run."""
        return sum(array[0].numel() * array.element_size() for array in self._arrays.values())

    def slot(self, sequence: Sequence) -> int:
        """The slot of a sequence for which `begin` was called."""
        return self._slots[sequence]

    def lacking(self, work: Work) -> Work | None:
        """The tokens before `work` that must be run first, because no state of them is left; None: it is there.

        Loads the best snapshot, where there is one.
        """
        sequence = work.sequence
        self._give_slot(sequence)
        if self._lengths.get(sequence) == work.start:
            return None
        self._lengths[sequence] = self._load_snapshot(sequence, work.start)
        start = self._lengths[sequence]
        return Work(sequence, start, work.start - start, samples=False) if start < work.start else None

    def begin(self, works: Seq[Work]) -> None:
        """Note that the states of `works` change from now on."""
        for work in works:
            self._lengths[work.sequence] = _IN_STEP

    def commit(self, works: Seq[Work]) -> None:
        """Note that the states of `works` have seen their tokens."""
        for work in works:
            self._lengths[work.sequence] = work.start + work.count

    def forget(self, sequence: Sequence) -> None:
        """Free the slot of a sequence that ended or was preempted. Its snapshots stay."""
        self._lengths.pop(sequence, None)
        self._replaceable.pop(sequence, None)
        slot = self._slots.pop(sequence, None)
        if slot is None or slot == len(self._slots):
            return
        last = next(other for other, its in self._slots.items() if its == len(self._slots))
        for array in self._arrays.values():
            array[slot].copy_(array[len(self._slots)])
        self._slots[last] = slot

    def resumable(self, keys: Seq[bytes]) -> int:
        """How many of the leading blocks with these keys can be skipped: up to the last that has a snapshot."""
        return next((count for count in range(len(keys), 0, -1) if keys[count - 1] in self._snapshots), 0)

    def save(self, sequence: Sequence, key: bytes, *, replace: bool) -> None:
        """Keep a copy of the state of `sequence`, which has seen all tokens up to the block with this key.

        Args:
            sequence: one whose last step ended with a full block.
            key: of that block.
            replace: whether it takes the place of the last one that was saved so, for this sequence.
        """
        if not self._most_snapshots:
            return
        former = self._replaceable.pop(sequence, None)
        if replace:
            if former is not None:
                self._snapshots.pop(former, None)
            # A snapshot that is there belongs to others, too, and must not be dropped with the next one.
            if key not in self._snapshots:
                self._replaceable[sequence] = key
        slot = self._slots[sequence]
        if key not in self._snapshots:
            self._snapshots[key] = {name: array[slot].clone() for name, array in self._arrays.items()}
        self._snapshots.move_to_end(key)
        while len(self._snapshots) > self._most_snapshots:
            self._snapshots.popitem(last=False)

    def rows(self, sequence: Sequence, tokens: int) -> dict[StateKey, Tensor] | None:
        """The state of a sequence, not copied; None: it is not that behind its first `tokens` tokens."""
        if self._lengths.get(sequence) != tokens:
            return None
        return {name: array[self._slots[sequence]] for name, array in self._arrays.items()}

    def set_rows(self, sequence: Sequence, rows: dict[StateKey, Tensor], tokens: int) -> None:
        """Make copies of `rows` the state of a sequence, which has seen `tokens` tokens."""
        self._give_slot(sequence)
        for name, row in rows.items():
            self._arrays[name][self._slots[sequence]].copy_(row, non_blocking=True)
        self._lengths[sequence] = tokens

    def array(self, name: StateKey) -> Tensor | None:
        """[slots, ...], a layer's state; None before its first token."""
        return self._arrays.get(name)

    def make(self, name: StateKey, like: Tensor) -> Tensor:
        """The array of a state, made for rows of the shape and dtype of `like` [sequences, ...] if there is none."""
        if name not in self._arrays:
            self._arrays[name] = like.new_zeros(self._rows, *like.shape[1:])
        return self._arrays[name]

    def _give_slot(self, sequence: Sequence) -> None:
        if sequence in self._slots:
            return
        self._slots[sequence] = len(self._slots)
        if len(self._slots) > self._rows:
            self._rows *= 2
            for name, array in self._arrays.items():
                self._arrays[name] = torch.cat([array, torch.zeros_like(array)])

    def _load_snapshot(self, sequence: Sequence, tokens: int) -> int:
        """Set the state to that of the longest snapshot of at most `tokens` tokens; how many they are."""
        keys = sequence.block_keys[: tokens // self._block_size]
        blocks = self.resumable(keys)
        if blocks:
            saved = self._snapshots[keys[blocks - 1]]
            self._snapshots.move_to_end(keys[blocks - 1])
            self.set_rows(sequence, saved, blocks * self._block_size)
        return blocks * self._block_size
