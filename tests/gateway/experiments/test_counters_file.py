"""Counters of an experiment: each worker writes its own file, and reading adds the files up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gateway.experiments.counters_file import CountersFile, Layout
from gateway.experiments.statistics.histogram import BINS

LAYOUT = Layout(arms=2, rows=3, histograms=2, totals=4)
ONE = Layout(arms=1, rows=1, totals=1)


def test_counts_and_sums_are_those_of_all_workers(tmp_path: Path) -> None:
    one, two = (CountersFile(LAYOUT, tmp_path / "key", slot) for slot in (0, 1))
    one.add(1, 511, ((2, 0.5), (1, 4.0)))
    two.add(1, 511, ((2, 1.5),))
    for each in (one, two):
        each.data[each.histograms(1) + BINS + 7] += 1.0
    two.correct(1, 511, 2, -1.0)
    two.add(0, 0, ((0, 7.0),))
    for each in (one, two):
        each.count(1, 3)
    for counters in (one, two):
        sums = counters.read()
        assert sums.rows.shape == (2, 3, 2, 512)
        assert sums.rows[1, 2, :, 511].tolist() == [2.0, 1.0]
        assert sums.rows[1, 1, :, 511].tolist() == [1.0, 4.0]
        assert sums.rows[0, 0, :, 0].tolist() == [1.0, 7.0]
        assert np.count_nonzero(sums.rows) == 6
        assert (np.count_nonzero(sums.histograms), sums.histograms[1, 1, 7]) == (1, 2.0)
        assert sums.totals.tolist() == [[0, 0, 0, 0], [0, 0, 0, 2]]


def test_a_worker_continues_the_file_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    CountersFile(ONE, tmp_path / "key", 0).count(0, 0)
    CountersFile(ONE, tmp_path / "key", 0).count(0, 0)
    assert CountersFile(ONE, tmp_path / "key", 1).read().totals.tolist() == [[2.0]]


def test_a_record_is_the_counters_of_an_arm_and_a_bucket() -> None:
    counters = CountersFile(LAYOUT)
    counters.add(1, 5, ((0, 1.0), (2, 3.0)))
    at = counters.offset(1, 5)
    record = counters.record(at)
    assert record == (1.0, 1.0, 0.0, 0.0, 1.0, 3.0)
    counters.replace(at, *record[:3], record[3] + 0.5, *record[4:])
    assert counters.read().rows[1, :, :, 5].tolist() == [[1.0, 1.0], [0.0, 0.5], [1.0, 3.0]]
    assert np.count_nonzero(counters.read().rows) == 5


def test_without_a_folder_the_counters_are_in_memory() -> None:
    counters = CountersFile(Layout(1, 1, 0, 2))
    counters.add(0, 3, ((0, 2.0),))
    counters.count(0, 1)
    sums = counters.read()
    assert (sums.rows[0, 0, :, 3].tolist(), sums.totals.tolist()) == ([1.0, 2.0], [[0.0, 1.0]])
