"""The graph checker: could steps be captured as a graph, which replays one list of operations on fixed addresses?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from backends.native.engine.runner import graphs
from tests.backends.native.engine.pretended.device import DeviceTensor, PretendedDevice, address
from tests.backends.native.engine.pretended.kernels import pretend_triton
from tests.backends.native.engine.pretended.trace import Operation


@contextmanager
def graphs_on(patch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """A pretended device that captures."""
    with PretendedDevice() as device:
        patch.setattr(graphs, "capture_on_cuda", device.capture)
        yield device


class StepChecker:
    """Compares the runs of a step with its first one.

    Args:
        device: on which the step runs.
        buffers: the tensors that it reads its inputs from and writes its outputs to.
    """

    def __init__(self, device: PretendedDevice, buffers: Callable[[], Iterable[Tensor]] = lambda: ()) -> None:
        self._device = device
        self._buffers = buffers
        self._places: list[int] | None = None
        self._operations: list[Operation] | None = None

    def why_not(self, step: Callable[[], object]) -> str | None:
        """Run the step; why this run could not be a replay of the first one. None: it could."""
        before = [address(each) for each in self._buffers()]
        self._device.trace.clear()
        step()
        trace = self._device.trace
        if trace.waits or trace.copies:
            return f"it waits or copies: {trace.report()}"
        after = [address(each) for each in self._buffers()]
        if before != after or (self._places is not None and before != self._places):
            return "it has its buffers elsewhere"
        pairs = zip_longest(self._operations or (), trace.operations)
        if self._operations is not None and self._operations != trace.operations:
            return next(f"it differs: {was} became {now}" for was, now in pairs if was != now)
        self._places, self._operations = after, list(trace.operations)
        return None


def why_not_captured(
    device: PretendedDevice,
    step: Callable[[], object],
    steps: int,
    buffers: Callable[[], Iterable[Tensor]] = lambda: (),
) -> str | None:
    """Why `steps` calls of `step` could not be replays of one graph; None: they could.

    Args:
        device: on which `step` runs.
        step: what would be captured.
        steps: at least 2.
        buffers: see `StepChecker`.
    """
    checker = StepChecker(device, buffers)
    whys = (checker.why_not(step) for _ in range(steps))
    return next((f"step {number}: {why}" for number, why in enumerate(whys) if why is not None), None)


class CheckedCapture:
    """Captures steps as `PretendedDevice.capture` does, and runs each of them before each replay without the graph.

    Attributes:
        device: the device.
        captures: how many there were.
        replays: likewise.
        whys: why a run could not have been a replay, or what a replay had computed otherwise.
    """

    def __init__(self, device: PretendedDevice) -> None:
        self.captures = 0
        self.replays = 0
        self.whys: list[str] = []
        self.device = device

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `PretendedDevice.capture`."""
        self.captures += 1
        replay, found = self.device.capture(step)
        checker = StepChecker(self.device)

        def checked_replay() -> None:
            self.replays += 1
            expected: list[Tensor] = []
            why = checker.why_not(lambda: expected.append(step()))
            replay()
            if why is None and not _equal(found, expected[0]):
                why = "a replay gives other numbers"
            if why is not None:
                self.whys.append(why)

        return checked_replay, found


@contextmanager
def checked_graphs(patch: pytest.MonkeyPatch) -> Iterator[CheckedCapture]:
    """A pretended device with Triton's routines, whose captures and replays are checked."""
    with graphs_on(patch) as device:
        pretend_triton(patch, device)
        checked = CheckedCapture(device)
        patch.setattr(graphs, "capture_on_cuda", checked)
        yield checked


def _equal(found: Tensor, expected: Tensor) -> bool:
    assert isinstance(found, DeviceTensor)
    assert isinstance(expected, DeviceTensor)
    with _disable_current_modes():
        return torch.equal(found.raw, expected.raw)
