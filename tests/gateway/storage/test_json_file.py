"""The state file: replaced as a whole, changed by one process at a time, noticed by all."""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from gateway.config import ConfigError, Endpoint, ServedEntity
from gateway.deployment.deployments import Deployment, State
from gateway.storage.json_file import JsonFile

ENDPOINT = Endpoint(served_entities=(ServedEntity(name="a", backend="s"),))


def add(file: JsonFile[State], name: str) -> None:
    file.change(lambda state: State(endpoints=state.endpoints | {name: Deployment(endpoint=ENDPOINT)}))


def test_a_file_that_is_not_there_is_an_empty_state(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "state.json", State())
    assert (file.stamp(), file.read()) == (0, State())
    file.change(lambda state: state)
    assert not (tmp_path / "state.json").exists(), "nothing was changed"


def test_another_process_sees_a_change(tmp_path: Path) -> None:
    one, other = (JsonFile(tmp_path / "state.json", State()) for _ in range(2))
    before = other.stamp()
    add(one, "new")
    assert other.stamp() != before
    assert other.read() == State(endpoints={"new": Deployment(endpoint=ENDPOINT)})


def test_two_changes_in_one_tick_of_the_clock_have_different_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JsonFile(tmp_path / "state.json", State())
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    stamps = [0]
    for number in range(3):
        add(file, f"new-{number}")
        stamps.append(file.stamp())
    monkeypatch.setattr(time, "time_ns", lambda: now - 10**9)  # the clock was set back
    add(file, "new-3")
    stamps.append(file.stamp())
    assert len(set(stamps)) == 5


def test_a_change_that_raises_changes_nothing(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "state.json", State())
    add(file, "new")
    before = (file.stamp(), file.read())

    def fail(state: State) -> State:
        state.endpoints.clear()
        raise KeyError

    with pytest.raises(KeyError):
        file.change(fail)
    assert (file.stamp(), file.read()) == before


def test_a_file_that_cannot_be_read_counts_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.symlink_to(path)
    assert JsonFile(path, State()).stamp() == -1
    with pytest.raises(ConfigError, match=r"state\.json: cannot be read"):
        JsonFile(path, State()).read()


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    JsonFile(tmp_path / "state.json", State()).check("server.state_file")
    with pytest.raises(ConfigError, match=r"server\.state_file: the folder '.*' cannot be written to"):
        JsonFile(tmp_path / "none" / "state.json", State()).check("server.state_file")


def _add_many(path: Path) -> None:
    for number in range(20):
        add(JsonFile(path, State()), f"{os.getpid()}-{number}")


@pytest.mark.slow
def test_no_change_is_lost_when_several_processes_make_them(tmp_path: Path) -> None:
    processes = [get_context("spawn").Process(target=_add_many, args=(tmp_path / "state.json",)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(JsonFile(tmp_path / "state.json", State()).read().endpoints) == 40
