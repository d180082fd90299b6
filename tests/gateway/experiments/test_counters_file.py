"""Counters of an experiment: each worker writes its own file, and reading adds the files up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gateway.experiments.counters_file import CountersFile


def test_counts_and_sums_are_those_of_all_workers(tmp_path: Path) -> None:
    one, two = (CountersFile(2, 3, 4, tmp_path / "key", worker) for worker in ("one", "two"))
    one.add(1, 2, 511, 0.5)
    two.add(1, 2, 511, 1.5)
    two.correct(1, 2, 511, -1.0)
    two.add(0, 0, 0, 7.0)
    one.count(1, 3)
    two.count(1, 3)
    for counters in (one, two):
        sums, totals = counters.read()
        assert sums.shape == (2, 3, 2, 512)
        assert sums[1, 2, :, 511].tolist() == [2.0, 1.0]
        assert sums[0, 0, :, 0].tolist() == [1.0, 7.0]
        assert (np.count_nonzero(sums), totals.tolist()) == (4, [[0, 0, 0, 0], [0, 0, 0, 2]])


def test_a_worker_continues_the_file_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    CountersFile(1, 1, 1, tmp_path / "key", "0").count(0, 0)
    CountersFile(1, 1, 1, tmp_path / "key", "0").count(0, 0)
    assert CountersFile(1, 1, 1, tmp_path / "key", "1").read()[1].tolist() == [[2.0]]


def test_closing_removes_the_files_of_all_workers_and_counting_goes_on(tmp_path: Path) -> None:
    one, two = (CountersFile(1, 1, 1, tmp_path / "key", worker) for worker in ("one", "two"))
    one.close()
    two.count(0, 0)
    assert list(tmp_path.iterdir()) == []
    assert two.read()[1].tolist() == [[0.0]]


def test_without_a_folder_the_counters_are_in_memory() -> None:
    counters = CountersFile(1, 1, 2)
    counters.add(0, 0, 3, 2.0)
    counters.count(0, 1)
    sums, totals = counters.read()
    assert (sums[0, 0, :, 3].tolist(), totals.tolist()) == ([1.0, 2.0], [[0.0, 1.0]])
    counters.close()
