"""Run a system in another process or environment: a line of JSON in, a line of JSON out, over its standard streams.

Both ends are here. `serve_lines` runs in the other environment, so this module imports the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Job = tuple[list[int], int]
"""A prompt, and how many tokens to generate."""
System = Callable[[Sequence[Job]], list[list[int]]]

ROOT = Path(__file__).parents[1]


def serve_lines(load: Callable[[], System]) -> None:
    """Load a system, then run the jobs of each input line until the input ends. Its own output goes to the log."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run = load()
    print(json.dumps("ready"), file=results)
    for line in sys.stdin:
        print(json.dumps(run([(prompt, new) for prompt, new in json.loads(line)])), file=results)


@contextmanager
def line_system(python: Path, module: str, *arguments: str, log: Path, threads: int | None = None) -> Iterator[System]:
    """Start a system as a module in the environment of `python`; yields a function that runs jobs in it.

    It has so many `threads` of OpenMP; None: as it likes.

    Raises:
        RuntimeError: the process ended; the end of its log is in the text.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )

    def read() -> list[list[int]]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended:\n{log.read_text()[-2000:]}")
        found: list[list[int]] = json.loads(line)
        return found

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        assert process.stdin is not None
        process.stdin.write(json.dumps(jobs) + "\n")
        process.stdin.flush()
        return read()

    try:
        read()
        yield run
    finally:
        process.kill()
        process.communicate()
