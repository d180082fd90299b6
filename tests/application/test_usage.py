"""Usage adds up exactly between answers, log, sums and files, while workers are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from benchmarks.usage import CONFIG, drive, judge, read_usage
from gateway.access.keys_file import keys_file, new_key
from tests.gateway.processes import serving

KILLS = 2


@pytest.mark.slow
def test_everything_adds_up_through_kills_of_workers(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "keys.json")
    keys = {name: new_key(file, name) for name in ("a", "b")}
    admin = new_key(file, "root", roles=("admin",))
    config = tmp_path / "gateway.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    chance = random.Random(0)
    with serving("--config", str(config), log=tmp_path / "log") as gateway:

        def kill() -> None:
            if workers := gateway.workers():
                os.kill(chance.choice(workers), signal.SIGKILL)

        seen = asyncio.run(drive(gateway.url, keys, 150, 8, kill, KILLS))
        export, sums = read_usage(gateway.url, admin)
        wrong = judge(seen, (tmp_path / "log").read_bytes(), export, sums, KILLS)
    assert not wrong, wrong
    assert len(seen.answers) > 100
    assert not list(tmp_path.glob("usage.sqlite3.spool/*.spool"))  # all workers have ended: nothing waits
