"""A step of the packed execution path as numbers: the tokens of all works in one row, and where they belong."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

from msgspec import Struct

from backends.native.engine.scheduling.sequence import Work


# `gc=False`: arrays of numbers are part of no reference cycle.
class Pack(Struct, frozen=True, eq=False, gc=False):
    """What a forward of a step needs beside the model and its caches; int64 each.

    Attributes:
        ids: [tokens], one sequence after the other.
        positions: [tokens], each token's index in its sequence.
        rows: [wanted], the rows whose logits are wanted.
        slots: [tokens], the cache slot for each token's keys and values.
        counts: [sequences], tokens of each in this step. A work with drafts attends as a sequence for each token.
        ends: [sequences], tokens of each up to the end of this step.
        tables: [sequences * width], each one's blocks, padded with block 0.
    """

    ids: array[int]
    positions: array[int]
    rows: array[int]
    slots: array[int]
    counts: array[int]
    ends: array[int]
    tables: array[int]

    def numbers(self) -> array[int]:
        """All of it in one array, which `of_numbers` reads."""
        parts = (self.ids, self.positions, self.rows, self.slots, self.counts, self.ends, self.tables)
        joined = array("q", map(len, parts))
        for part in parts:
            joined.extend(part)
        return joined

    @classmethod
    def of_numbers(cls, joined: array[int]) -> Pack:
        """The pack whose `numbers` these are."""
        first, parts = _FIELDS, []
        for length in joined[:_FIELDS]:
            parts.append(joined[first : first + length])
            first += length
        return cls(*parts)


_FIELDS = len(Pack.__struct_fields__)


def pack_of(works: Seq[Work], block_size: int, *, doubling: bool = False) -> Pack:
    """Pack the works of a step.

    Args:
        works: in any order.
        block_size: tokens of a cache block.
        doubling: whether block tables have a power of two as their width.
    """
    ids, positions = _tokens_and_positions(works)
    counts, ends, blocks = _attending(works)
    width = table_width(max(ends), block_size, doubling=doubling)
    slots = _slots(works, block_size)
    return Pack(ids, positions, wanted_rows(works), slots, counts, ends, _block_tables(blocks, width))


def table_width(context: int, block_size: int, *, doubling: bool) -> int:
    """Blocks of a sequence of `context` tokens; rounded up to a power of two if `doubling`."""
    width = -(-context // block_size)
    return 1 << (width - 1).bit_length() if doubling else width


def _tokens_and_positions(works: Seq[Work]) -> tuple[array[int], array[int]]:
    """The pack's tokens and their positions in their sequences."""
    # Steady decode: one token each, without an `extend` for each sequence.
    if all(work.count == 1 for work in works):
        return array("q", [work.sequence.tokens[work.start] for work in works]), array("q", [w.start for w in works])
    ids, positions = array("q"), array("q")
    for work in works:
        ids.extend(work.tokens)
        positions.extend(range(work.start, work.start + work.count))
    return ids, positions


def _attending(works: Seq[Work]) -> tuple[array[int], array[int], list[array[int]]]:
    """Tokens in the step, tokens up to its end, and blocks, of all that attends as one sequence.

    Each token of a work with drafts is a sequence in decode of its own. All keys and values of a step are stored before
    attention, so a draft sees those before it, by the same kernel as in a step of its own.
    """
    counts, ends = array("q"), array("q")
    blocks: list[array[int]] = []
    for work in works:
        end = work.start + work.count
        own = range(work.start + 1, end + 1) if work.drafts else (end,)
        ends.extend(own)
        counts.extend([1] * len(own) if work.drafts else [work.count])
        blocks.extend([work.sequence.blocks] * len(own))
    return counts, ends, blocks


def _slots(works: Seq[Work], size: int) -> array[int]:
    """Of each token of the pack, the slot in the cache: its block by its position, and its place in the block."""
    if all(work.count == 1 for work in works):
        return array("q", [work.sequence.blocks[work.start // size] * size + work.start % size for work in works])
    slots = array("q")
    for work in works:
        end = work.start + work.count
        for index in range(work.start // size, -(-end // size)):
            # The tokens of the work that lie in this block.
            first, last = max(work.start, index * size), min(end, (index + 1) * size)
            moved = (work.sequence.blocks[index] - index) * size
            slots.extend(range(first + moved, last + moved))
    return slots


def _block_tables(every: Seq[array[int]], width: int) -> array[int]:
    """[sequences * width], each one's blocks, padded with block 0."""
    # Arrays of 64-bit integers: `extend` copies whole tables in C, where a list of lists would be converted number by
    # number.
    padding = array("q", bytes(8 * width))
    tables = array("q")
    for blocks in every:
        lacking = width - len(blocks)
        # A sequence may hold more blocks than the longest one of this step needs: a prompt has all its blocks from its
        # admission on, and is run in chunks.
        tables.extend(blocks if lacking >= 0 else blocks[:width])
        if lacking > 0:
            tables.extend(padding[:lacking])
    return tables


def wanted_rows(works: Seq[Work]) -> array[int]:
    """The rows of the pack whose logits are wanted."""
    # Steady decode: every row is wanted.
    if all(work.count == 1 and work.samples for work in works):
        return array("q", range(len(works)))
    rows = array("q")
    end = 0
    for work in works:
        end += work.count
        # Wanted rows are the last of a work: the row of its last token predicts the next one. 0 rows: a chunk before
        # the end of its prompt.
        if work.wanted == 1:
            rows.append(end - 1)
        else:
            rows.extend(range(end - work.wanted, end))
    return rows
