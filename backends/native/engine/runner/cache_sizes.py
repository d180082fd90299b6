"""How the memory for caches is divided: pages of keys and values, recurrent states, and snapshots of these."""

from __future__ import annotations

from msgspec import Struct, structs

from backends.native.engine.runner.packed import PackedRunner

_STATE_SHARE = 0.5
"""Of the memory, at most this share is for the states of running sequences, and half as much for snapshots."""
_SNAPSHOTS_EACH = 2
"""Snapshots for each sequence: one of its prompt's end, one of where it is."""


class CacheSizes(Struct, frozen=True):
    """What the caches hold.

    Attributes:
        blocks: pages of keys and values.
        sequences: the most that run at once.
        snapshots: the most snapshots of recurrent state.
    """

    blocks: int
    sequences: int
    snapshots: int = 0

    def within(self, memory: int, probe: PackedRunner, beside: int = 0) -> CacheSizes:
        """What of these sizes fits into `memory` bytes, for a runner that has run a step; 0 for what does not fit.

        `beside` are the bytes of a page that another model has for each page of this one.
        """
        sizes = self
        state = probe.states.bytes_per_sequence if probe.states is not None else 0
        if state:
            sequences = min(self.sequences, int(memory * _STATE_SHARE) // state)
            snapshots = min(_SNAPSHOTS_EACH * sequences, int(memory * _STATE_SHARE / 2) // state)
            memory -= (sequences + snapshots) * state
            sizes = structs.replace(sizes, sequences=sequences, snapshots=snapshots)
        # A model without attention has no pages; its blocks only say what prefixes have in common.
        page = probe.cache.bytes_per_block + beside
        return structs.replace(sizes, blocks=min(self.blocks, memory // page)) if page else sizes
