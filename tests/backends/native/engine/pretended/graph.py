"""The graph checker: could steps be captured as a graph, which replays one list of operations on fixed addresses?"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from tests.backends.native.engine.pretended.device import PretendedDevice, address


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
        buffers: the tensors that `step` reads its inputs from and writes its outputs to.
    """
    places, operations = None, None
    for number in range(steps):
        before = [address(each) for each in buffers()]
        device.trace.clear()
        step()
        if device.trace.waits or device.trace.copies:
            return f"step {number} waits or copies: {device.trace.report()}"
        after = [address(each) for each in buffers()]
        if before != after or (places is not None and before != places):
            return f"step {number} has its buffers elsewhere"
        if operations is not None and operations != device.trace.operations:
            found = zip(operations, device.trace.operations, strict=False)
            other = next((f"{was} became {now}" for was, now in found if was != now), "another number of operations")
            return f"step {number} differs: {other}"
        places, operations = after, list(device.trace.operations)
    return None
