"""The feedback store: which arm answered a request, found by any worker, and the feedback received for it."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from gateway.experiments.feedback_ring import Answered, FeedbackRing, name_of

SOMEBODY = Answered(2**64 - 1, 255, 511)
NAME, ALIAS = name_of("0" * 32, b""), name_of("mine", b"", of_client=True)


def replace(ring: FeedbackRing, name: bytes, metric: str, value: float) -> float | None:
    """Store a value; return the one that it replaces."""
    with ring.replacing(name, metric, value) as old:
        return old


@pytest.mark.no_cover
@pytest.mark.slow
def test_an_entry_is_found_until_it_is_overwritten() -> None:
    ring = FeedbackRing()
    # On average 146 names fall into one of the 1,024 sets, deviation 12: each of the sets, of 64 entries, is full.
    names = [name_of(f"{number:032x}", b"") for number in range(150_000)]
    for number, name in enumerate(names):
        ring.note(name, Answered(number, 1, 2))
    kept = [number for number, name in enumerate(names) if (found := ring.find(name)) and found.stratum == number]
    assert len(kept) == 65_536
    assert set(range(125_000, 150_000)) <= set(kept), "the last ones are kept"


def test_what_was_never_written_is_not_found(tmp_path: Path) -> None:
    for ring in (FeedbackRing(), FeedbackRing(tmp_path)):
        for id in ("", "no-such", "0" * 32, "\ud800"):
            assert ring.find(name_of(id, b"")) is None
            assert replace(ring, name_of(id, b""), "liked", 1.0) is None
            assert ring.find(name_of(id, b"")) is None


def test_only_the_key_that_asked_finds_an_answer() -> None:
    ring = FeedbackRing()
    ring.note(name_of("id", b"one"), SOMEBODY, name_of("mine", b"one", of_client=True))
    assert ring.find(name_of("id", b"one")) == ring.find(name_of("mine", b"one", of_client=True)) == SOMEBODY
    for owner in (b"two", b""):
        assert ring.find(name_of("id", owner)) is None
        assert ring.find(name_of("mine", owner, of_client=True)) is None
    assert ring.find(name_of("mine", b"one")) is None, "a client's own id is no request id"


def test_a_value_is_replaced_and_a_new_answer_has_none() -> None:
    ring = FeedbackRing()
    ring.note(NAME, SOMEBODY, ALIAS)
    assert [replace(ring, NAME, "liked", value) for value in (1.0, 2.0, 2.0)] == [None, 1.0, 2.0]
    assert replace(ring, ALIAS, "liked", 3.0) == 2.0, "both names are of one answer"
    assert replace(ring, NAME, "thumbs", 5.0) is None
    assert replace(ring, NAME, "liked", 0.0) == 3.0
    ring.note(name_of("1" * 32, b""), SOMEBODY, ALIAS)
    assert replace(ring, ALIAS, "liked", 1.0) is None, "the latest answer with the client's id"


def test_metrics_beyond_those_of_an_endpoint_take_the_place_of_old_ones() -> None:
    ring = FeedbackRing()
    ring.note(NAME, SOMEBODY)
    for number in range(20):
        assert replace(ring, NAME, f"metric {number}", 1.0) is None
        assert replace(ring, NAME, f"metric {number}", 2.0) == 1.0


def _receive_feedback(folder: Path, replaced: SimpleQueue[float | None]) -> None:
    ring = FeedbackRing(folder, 1)
    for _ in range(100):
        replaced.put(replace(ring, NAME, "liked", 1.0))


@pytest.mark.slow
def test_feedback_given_several_times_to_several_processes_is_new_once(tmp_path: Path) -> None:
    FeedbackRing(tmp_path, 0).note(NAME, SOMEBODY)
    FeedbackRing(tmp_path, 1)
    spawn = get_context("spawn")
    replaced: SimpleQueue[float | None] = spawn.SimpleQueue()
    processes = [spawn.Process(target=_receive_feedback, args=(tmp_path, replaced)) for _ in range(2)]
    for process in processes:
        process.start()
    values = [replaced.get() for _ in range(200)]
    for process in processes:
        process.join()
    assert values.count(None) == 1


def _be_killed_while_counting(folder: Path) -> None:
    with FeedbackRing(folder, 1).replacing(NAME, "liked", 1.0):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_value_that_a_killed_process_was_counting_is_not_stored(tmp_path: Path) -> None:
    ring = FeedbackRing(tmp_path, 0)
    ring.note(NAME, SOMEBODY)
    process = get_context("spawn").Process(target=_be_killed_while_counting, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert replace(ring, NAME, "liked", 2.0) is None, "the next value is a new one"
    assert replace(ring, NAME, "liked", 3.0) == 2.0


@pytest.mark.parametrize("slot", [0, 1])
def test_answers_outlive_their_worker(tmp_path: Path, slot: int) -> None:
    FeedbackRing(tmp_path, 0).note(NAME, SOMEBODY)
    assert FeedbackRing(tmp_path, slot).find(NAME) == SOMEBODY
