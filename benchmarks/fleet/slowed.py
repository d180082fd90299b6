"""An engine process of which a step takes `SLOWDOWN` times its CPU time: `python -m benchmarks.fleet.slowed ...`.

Several engines on a few cores that do other work, too, are as fast as the scheduler of the kernel lets them be. The CPU
time of a step is that of the step; the engine sleeps for the rest. The arguments are those of the engine process. When
it is stopped it writes its steps to the file that `STEPS` names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from backends.native.engine.loop import Engine
from backends.native.engine.scheduling.sequence import Work
from backends.native.engine.serving import __main__ as process
from backends.native.engine.serving import management
from backends.native.protocol.messages import Step
from benchmarks.fleet.engines import Measured


class SlowedEngine(management.ManagedEngine):
    """Sleeps after each step."""

    measured: list[Measured] = []  # noqa: RUF012 - of the process

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._slowdown = float(os.environ["SLOWDOWN"])
        self._spent = time.thread_time()
        self._composition = (0, 0, 0)
        self._began: float | None = None  # the latest step, if there is more to do at once
        assert isinstance(self._engine, Engine)
        scheduler = self._engine._scheduler  # noqa: SLF001 - nothing else knows what is in a step
        schedule: Callable[[], list[Work]] = scheduler.schedule

        def noted() -> list[Work]:
            works = schedule()
            decoding = [work for work in works if work.sequence.generated]
            prompt = sum(work.count for work in works if not work.sequence.generated)
            self._composition = (len(works), sum(work.start for work in decoding), prompt)
            return works

        scheduler.schedule = noted  # type: ignore[method-assign]

    def step(self) -> dict[int, Step]:
        """Run a step, and wait."""
        began = time.monotonic()
        if self._began is not None:
            self._note(self._began, began)
        steps = super().step()
        # With what was done since the last step: messages that were read and sent.
        now = time.thread_time()
        spent, self._spent = now - self._spent, now
        time.sleep(max(0.0, began + self._slowdown * spent - time.monotonic()))
        self._began = began if self.busy else None
        if self._began is None:
            self._note(began, time.monotonic())
        return steps

    def _note(self, began: float, ended: float) -> None:
        if self._composition[0]:
            self.measured.append(Measured(*self._composition, began, ended - began))


def main() -> int:
    """Run the engine process."""
    management.ManagedEngine = SlowedEngine  # type: ignore[assignment, misc]
    code = process.main()
    Path(os.environ["STEPS"]).write_bytes(msgspec.msgpack.encode(SlowedEngine.measured))
    return code


if __name__ == "__main__":
    sys.exit(main())
