"""How an engine in another environment is asked: a line of JSON for a line of JSON, over its standard input and output.

Both ends are here. The far one (`answer`) runs in that environment, so nothing is imported but the standard library.
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


def answer(load: Callable[[], System]) -> None:
    """Load, then run what comes line by line, until no more does. What the engine itself prints goes to the log."""
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run = load()
    print(json.dumps("ready"), file=told)
    for line in sys.stdin:
        print(json.dumps(run([(prompt, new) for prompt, new in json.loads(line)])), file=told)


@contextmanager
def asked(python: Path, module: str, *arguments: str, log: Path, threads: int) -> Iterator[System]:
    """The far end, in the environment of `python`.

    Raises:
        RuntimeError: it ended; the log says why.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )

    def said() -> list[list[int]]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended:\n{log.read_text()[-2000:]}")
        return json.loads(line)

    def run(jobs: Sequence[Job]) -> list[list[int]]:
        assert process.stdin is not None
        process.stdin.write(json.dumps(jobs) + "\n")
        process.stdin.flush()
        return said()

    try:
        said()
        yield run
    finally:
        process.kill()
        process.communicate()
