"""The feedback store: which arm answered a request, found by any worker, and the feedback received for it."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from gateway.experiments.feedback_ring import Answered, FeedbackRing

WORKER, OTHER = "ab" * 8, "cd" * 8
SOMEBODY = Answered(2**30 - 1, 255, 511)


def replace(ring: FeedbackRing, id: str, metric: int, value: float) -> float | None:
    """Store a value; return the one that it replaces."""
    with ring.replacing(id, metric, value) as old:
        return old


def test_an_entry_is_found_until_it_is_overwritten() -> None:
    ring = FeedbackRing(WORKER)
    first, later = WORKER + "00000003", WORKER + "00010003"
    ring.note(first, SOMEBODY)
    assert ring.find(first) == SOMEBODY
    assert ring.find(later) is None
    ring.note(later, Answered(0, 0, 0))
    assert ring.find(first) is None
    assert ring.find(later) == Answered(0, 0, 0)


@pytest.mark.parametrize("number", ["00000000", "00000001", "0000ffff", "00010000", "ffffffff"])
def test_a_request_that_was_never_written_is_not_found(number: str) -> None:
    ring = FeedbackRing(WORKER)
    assert ring.find(WORKER + number) is None
    assert replace(ring, WORKER + number, 0, 1.0) is None
    assert ring.find(WORKER + number) is None


@pytest.mark.parametrize("id", ["", "no-such", WORKER, WORKER + "0000000g", WORKER + "000000000", "../" * 8])
def test_what_is_no_request_id_is_not_found(id: str, tmp_path: Path) -> None:
    for ring in (FeedbackRing(WORKER), FeedbackRing(WORKER, tmp_path)):
        assert ring.find(id) is None


def test_a_value_is_replaced_and_a_new_answer_has_none() -> None:
    ring, id = FeedbackRing(WORKER), WORKER + "00000000"
    ring.note(id, SOMEBODY)
    assert [replace(ring, id, 7, value) for value in (1.0, 2.0, 2.0)] == [None, 1.0, 2.0]
    assert replace(ring, id, 0, 5.0) is None
    ring.note(WORKER + "00010000", SOMEBODY)
    assert replace(ring, WORKER + "00010000", 7, 1.0) is None


def _receive_feedback(folder: Path, id: str, replaced: SimpleQueue[float | None]) -> None:
    ring = FeedbackRing(OTHER, folder, "1")
    for _ in range(100):
        replaced.put(replace(ring, id, 0, 1.0))


def test_feedback_given_several_times_to_several_processes_is_new_once(tmp_path: Path) -> None:
    ring, id = FeedbackRing(WORKER, tmp_path, "0"), WORKER + "00000001"
    ring.note(id, SOMEBODY)
    spawn = get_context("spawn")
    replaced: SimpleQueue[float | None] = spawn.SimpleQueue()
    processes = [spawn.Process(target=_receive_feedback, args=(tmp_path, id, replaced)) for _ in range(2)]
    for process in processes:
        process.start()
    values = [replaced.get() for _ in range(200)]
    for process in processes:
        process.join()
    assert values.count(None) == 1


def _be_killed_while_counting(folder: Path, id: str) -> None:
    with FeedbackRing(OTHER, folder, "1").replacing(id, 0, 1.0):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_value_that_a_killed_process_was_counting_is_not_stored(tmp_path: Path) -> None:
    ring, id = FeedbackRing(WORKER, tmp_path, "0"), WORKER + "00000001"
    ring.note(id, SOMEBODY)
    process = get_context("spawn").Process(target=_be_killed_while_counting, args=(tmp_path, id))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert replace(ring, id, 0, 2.0) is None, "the next value is a new one"
    assert replace(ring, id, 0, 3.0) == 2.0


def test_the_ring_of_the_last_predecessor_is_kept(tmp_path: Path) -> None:
    workers = [f"{number:016x}" for number in range(4)]
    for worker in workers:
        FeedbackRing(worker, tmp_path, "0").note(worker + "00000000", SOMEBODY)
    FeedbackRing(OTHER, tmp_path, "1")
    ring = FeedbackRing(OTHER, tmp_path, "1")
    assert [ring.find(worker + "00000000") for worker in workers] == [None, None, SOMEBODY, SOMEBODY]
