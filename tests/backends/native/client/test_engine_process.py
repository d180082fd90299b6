from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from backends.native.client.engine_process import EngineProcess, engine_command
from backends.native.protocol.engine_options import EngineOptions
from backends.process import BackOff
from tests.backends.native.fake_engine import until

NOTES = """
import os, signal, sys, time
if sys.argv[2] == "stubborn": signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as notes: notes.write(f"{os.getpid()}\\n")
if sys.argv[2] == "broken": sys.exit(3)
time.sleep(60)
"""


QUICK = BackOff(first=0.01, step=0.01, longest=0.1)


def process(notes: Path, kind: str, exits: list[int]) -> EngineProcess:
    command = [sys.executable, "-c", NOTES, str(notes), kind]
    return EngineProcess(command, exits.append, stop_timeout=0.2, back_off=QUICK)


def pids(notes: Path) -> list[int]:
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_runs_until_it_is_stopped(tmp_path: Path) -> None:
    engine = process(tmp_path / "notes", "calm", exits := [])
    await engine.start()
    await until(lambda: bool(pids(tmp_path / "notes")))
    (pid,) = pids(tmp_path / "notes")
    await engine.aclose()
    await engine.aclose()
    assert not alive(pid)
    assert exits == []


@pytest.mark.slow
async def test_it_is_started_again_although_that_fails_at_first(tmp_path: Path) -> None:
    engine = process(tmp_path / "notes", "calm", exits := [])
    await engine.start()
    await until(lambda: bool(pids(tmp_path / "notes")))
    program, engine._command[0] = engine._command[0], str(tmp_path / "nothing")
    os.kill(pids(tmp_path / "notes")[0], signal.SIGKILL)
    await until(lambda: bool(exits))
    await asyncio.sleep(0.2)
    engine._command[0] = program
    await until(lambda: len(pids(tmp_path / "notes")) == 2)
    await engine.aclose()


@pytest.mark.slow
async def test_it_is_started_again(tmp_path: Path) -> None:
    engine = process(tmp_path / "notes", "calm", exits := [])
    await engine.start()
    await until(lambda: bool(pids(tmp_path / "notes")))
    os.kill(pids(tmp_path / "notes")[0], signal.SIGKILL)
    await until(lambda: len(pids(tmp_path / "notes")) == 2)
    assert exits == [-signal.SIGKILL]
    await engine.aclose()
    assert not any(map(alive, pids(tmp_path / "notes")))


async def test_its_exit_is_reported(tmp_path: Path) -> None:
    engine = process(tmp_path / "notes", "broken", exits := [])
    await engine.start()
    await until(lambda: exits[:1] == [3])
    await engine.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.slow
async def test_a_stubborn_one_is_killed(tmp_path: Path) -> None:
    engine = process(tmp_path / "notes", "stubborn", [])
    await engine.start()
    await until(lambda: bool(pids(tmp_path / "notes")))
    await engine.aclose()
    assert not any(map(alive, pids(tmp_path / "notes")))


PARENT = """
import asyncio, sys
from backends.native.client.engine_process import EngineProcess
async def main():
    await EngineProcess(sys.argv[1:], print).start()
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
async def test_it_ends_with_the_process_that_started_it(tmp_path: Path, number: int) -> None:
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", PARENT, sys.executable, "-c", NOTES, str(notes), "stubborn"]
    parent = await asyncio.create_subprocess_exec(*command)
    await until(lambda: bool(pids(notes)))
    parent.send_signal(number)
    await parent.wait()
    # The kernel hands it to init, which reaps it.
    await until(lambda: not alive(pids(notes)[0]))


@pytest.mark.torch
def test_the_engine_reads_its_arguments() -> None:
    from backends.native.engine.serving.__main__ import parse

    lora_adapters = {"team/a": "folder 'a'", "b": '"b"'}
    options = EngineOptions(
        "folder",
        threads=2,
        kv_tokens=100,
        prefix_caching=False,
        execution_path="per_sequence",
        lora_adapters=lora_adapters,
    )
    assert parse(engine_command(options, Path("s"))[3:]) == (Path("s"), None, options, None)
    assert parse(engine_command(options, Path("s"), warm=True)[3:]) == (Path("s"), None, options, "imported")
