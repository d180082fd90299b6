"""Preempted sequences of an accelerator: their pages and states go to the host's memory and come back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.native.engine.loop import Engine
from backends.native.engine.runner.swap_space import SwapSpace
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.engine.state.pool import StatePool
from backends.native.protocol.messages import Cancel, Ping, Pong, Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.engines import (
    SAMPLING,
    WIDE,
    Heard,
    accelerator,
    assert_same,
    drive,
    load,
    save,
)
from tests.backends.native.engine.tiny import ADAPTED, FAMILIES, RECURRENT, prompt

pytestmark = [pytest.mark.torch, needs_compiler]

SIZE = 4
KINDS = ("greedy", "sampled", "penalties")
ASKED = [Submit(seq, prompt(5 - seq, seq), 7, SAMPLING[KINDS[seq]]) for seq in range(3)]
"""Three sequences of up to 3 blocks each, for a cache of 4."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[defaultdict[str, Path]]:
    """Folders of families, made when they are asked for."""

    class Folders(defaultdict[str, Path]):
        def __missing__(self, family: str) -> Path:
            self[family] = save(family, tmp_path_factory.mktemp(family))
            return self[family]

    threads = torch.get_num_threads()
    yield Folders()
    torch.set_num_threads(threads)


def engine(folder: Path, device: str, **options: Any) -> Engine:
    found, _ = load(
        folder, device, kv_tokens=4 * SIZE, block_size=SIZE, execution_path="packed", max_sequences=3, **options
    )
    assert isinstance(found, Engine)
    return found


class Watch:
    """Notes how many tokens sequences had when they were preempted, and had again when they returned."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        space = engine._scheduler.swap
        assert isinstance(space, SwapSpace)
        self.engine, self.space = engine, space
        self.saved: dict[Sequence, int] = {}
        self.restored: list[tuple[int, int]] = []
        self.most = 0
        save, restore = space.save, space.restore

        def saving(sequence: Sequence) -> None:
            self.saved[sequence] = sequence.computed
            save(sequence)

        def restoring(sequence: Sequence, found: int) -> int:
            tokens = restore(sequence, found)
            self.restored.append((self.saved.get(sequence, 0), tokens))
            return tokens

        patch.setattr(space, "save", saving)
        patch.setattr(space, "restore", restoring)

    def after_step(self, _: dict[int, Heard]) -> None:
        """Compare what is reported with what is there."""
        pong = self.engine.handle(0, Ping(1))
        assert isinstance(pong, Pong)
        assert (pong.swapped, pong.swap_usage) == (self.space.sequences, self.space.usage)
        assert (pong.swap_usage > 0) >= (pong.swapped > 0)
        assert pong.swapped <= pong.waiting
        self.most = max(self.most, pong.swapped)

    def check_empty(self) -> None:
        """Nothing is left in either memory."""
        pool = self.engine._scheduler.pool
        pool.check()
        assert pool.free == pool.count
        assert (self.space.sequences, self.space.usage) == (0, 0)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"prefix_caching": False, "kv_cache_dtype": "int8"}),
    ("lfm2", {"prefix_caching": False}),
    *((family, {}) for family in ((*FAMILIES, *ADAPTED, *RECURRENT) if WIDE else ())),
]


@pytest.mark.parametrize(("family", "options"), CASES)
def test_tokens_are_those_without_preemption(
    family: str, options: dict[str, Any], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = load(folders[family], "cpu", execution_path="packed", **options)
    expected = drive(plain, ASKED)
    with accelerator():
        watch = Watch(engine(folders[family], "auto", **options), monkeypatch)
        assert_same(drive(watch.engine, ASKED, watch.after_step), expected)
        watch.check_empty()
    assert watch.most
    # All that was computed is there again. Without prefixes, sequences are preempted within a page, too.
    assert all(tokens == before for before, tokens in watch.restored)
    assert any(tokens % SIZE if options else tokens for _, tokens in watch.restored)


def test_what_finds_no_room_is_run_again(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for one page. A recurrent state is of no use without all pages."""
    for family in ("llama", "lfm2"):
        expected = drive(load(folders[family], "cpu", execution_path="packed")[0], ASKED)
        with accelerator():
            watch = Watch(engine(folders[family], "auto", prefix_caching=False), monkeypatch)
            watch.space._count = 1
            watch.space.attach(watch.space._cache)
            assert_same(drive(watch.engine, ASKED, watch.after_step), expected)
            watch.check_empty()
        assert all(tokens in (0, min(before, SIZE)) for before, tokens in watch.restored)
        assert any(before > SIZE for before, _ in watch.restored)
        assert any(tokens for before, tokens in watch.restored if before > SIZE) == (family == "llama")
    assert engine(folders["llama"], "cpu")._scheduler.swap is None
    with accelerator():
        assert engine(folders["llama"], "auto", swap_space=0)._scheduler.swap is None


def test_cancels_while_swapped_out_and_sleep(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = drive(load(folders["llama"], "cpu", execution_path="packed")[0], ASKED)
    cancelled: list[int] = []
    with accelerator():
        watch = Watch(engine(folders["llama"], "auto", prefix_caching=False), monkeypatch)

        def cancel(heard: dict[int, Heard]) -> None:
            watch.after_step(heard)
            out = [each.request.seq for each in watch.space._kept]
            if out and not cancelled:
                cancelled.append(out[0])
                watch.engine.handle(0, Cancel(out[0]))
                assert watch.space.usage == 0

        found = drive(watch.engine, ASKED, cancel)
        watch.check_empty()
        watch.engine.sleep()
        assert watch.space._free == []
        watch.engine.wake()
        assert_same(drive(watch.engine, ASKED, watch.after_step), expected)
        watch.check_empty()
    (gone,) = cancelled
    assert not found.pop(gone).ended
    assert_same(found, {seq: each for seq, each in expected.items() if seq != gone})


def _nothing_is_copied_back(patch: pytest.MonkeyPatch) -> None:
    def restore(self: SwapSpace, sequence: Sequence, _: int) -> int:
        kept = self._kept.get(sequence)
        self.drop(sequence)
        return kept.tokens if kept else 0

    patch.setattr(SwapSpace, "restore", restore)


def _room_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    save = SwapSpace.save

    def saving(self: SwapSpace, sequence: Sequence) -> None:
        free = list(self._free)
        save(self, sequence)
        self._free = free

    patch.setattr(SwapSpace, "save", saving)


def _one_page_for_all(patch: pytest.MonkeyPatch) -> None:
    save = SwapSpace.save

    def saving(self: SwapSpace, sequence: Sequence) -> None:
        # Not in another order: attention takes pages in any.
        blocks, sequence.blocks = sequence.blocks, sequence.blocks[:1] * len(sequence.blocks)
        save(self, sequence)
        sequence.blocks = blocks

    patch.setattr(SwapSpace, "save", saving)


def _other_states(patch: pytest.MonkeyPatch) -> None:
    rows = StatePool.rows

    def others(self: StatePool, sequence: Sequence, tokens: int) -> Any:
        found = rows(self, sequence, tokens)
        return found and {name: torch.zeros_like(row) for name, row in found.items()}

    patch.setattr(StatePool, "rows", others)


@pytest.mark.parametrize(
    ("mutation", "family"),
    [
        (_nothing_is_copied_back, "llama"),
        (_room_is_given_twice, "llama"),
        (_one_page_for_all, "llama"),
        (_other_states, "lfm2"),
    ],
)
def test_it_notices(
    mutation: Callable[[pytest.MonkeyPatch], None],
    family: str,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        test_tokens_are_those_without_preemption(family, {"prefix_caching": False}, folders, monkeypatch)
