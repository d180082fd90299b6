"""The pretended device itself: right numbers, each refusal, each wait, and copies that take effect late."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.copies import Refused
from tests.backends.native.engine.pretended.device import PretendedDevice, address
from tests.backends.native.engine.pretended.engines import counted

pytestmark = [pytest.mark.torch, needs_compiler, counted]


@pytest.fixture(params=["cuda", "xpu"])
def device(request: pytest.FixtureRequest) -> Iterator[PretendedDevice]:
    with PretendedDevice(request.param) as device, torch.inference_mode():
        yield device


def on(device: PretendedDevice, *shape: int) -> torch.Tensor:
    """Numbers from 0 on, on the device, of which nothing is noted."""
    made = torch.arange(float(torch.Size(shape).numel())).view(shape).to(device.device)
    device.trace.clear()
    return made


def test_numbers_are_right_and_stay_on_the_device(device: PretendedDevice) -> None:
    rows = on(device, 2, 3)
    found = (rows @ rows.T).softmax(-1).add_(1)
    assert found.device == device.device
    assert not device.trace.waits
    expected = torch.arange(6.0).view(2, 3)
    torch.testing.assert_close(found.cpu(), (expected @ expected.T).softmax(-1) + 1)


def test_a_view_is_no_kernel_and_a_matrix_product_is_one(device: PretendedDevice) -> None:
    rows = on(device, 2, 3)
    rows.view(3, 2).transpose(0, 1)[1:].unsqueeze(0)
    assert not device.trace.kernels
    rows.T @ rows
    assert device.trace.kernels.total() == 1


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda rows: rows[0, 0].item(),
    "bool": lambda rows: bool(rows.sum() > 1),
    "tolist": lambda rows: rows.tolist(),
    "cpu": lambda rows: rows.cpu(),
    "nonzero": lambda rows: rows.nonzero(),
    "where": lambda rows: torch.where(rows > 1),
    "a mask": lambda rows: rows[rows > 1],
    "an index on the host": lambda rows: rows[torch.tensor([0, 1])],
    "from pageable memory": lambda rows: torch.ones(3).to(rows.device),
    "not blocking, from pageable memory": lambda rows: torch.ones(3).to(rows.device, non_blocking=True),
    "a list": lambda rows: torch.tensor([1, 2], device=rows.device),
    "repeat_interleave": lambda rows: rows.repeat_interleave(rows[0].long(), dim=1),
    "equal": lambda rows: torch.equal(rows, rows),
    "unique": lambda rows: rows.unique(),
    "masked_select": lambda rows: rows.masked_select(rows > 1),
    "synchronize": lambda rows: torch.accelerator.synchronize(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_is_noted(device: PretendedDevice, wait: str) -> None:
    rows = on(device, 2, 3)
    WAITS[wait](rows)
    assert device.trace.waits.total() >= 1, device.trace.report()


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "two devices": lambda rows: rows + torch.ones(2, 3),
    "a weight on the host": lambda rows: torch.nn.functional.linear(rows, torch.ones(2, 3)),
    "indexing the host by the device": lambda rows: torch.ones(9)[rows.long()],
    "an address": lambda rows: rows.data_ptr(),
    "values on the host": lambda rows: rows.index_put_((rows[0, :2].long(),), torch.ones(2, 3)),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_a_device_refuses_is_refused(device: PretendedDevice, refused: str) -> None:
    rows = on(device, 2, 3)
    with pytest.raises(Refused):
        REFUSED[refused](rows)


def test_numpy_is_refused_as_by_torch(device: PretendedDevice) -> None:
    with pytest.raises(TypeError, match="can't convert"):
        on(device, 3).numpy()


def test_a_pinned_copy_does_not_wait(device: PretendedDevice) -> None:
    pinned = torch.arange(3).pin_memory()
    assert pinned.is_pinned()
    found = pinned.to(device.device, non_blocking=True)
    assert not device.trace.waits
    assert device.trace.copies.total() == 1
    assert found.tolist() == [0, 1, 2]


def test_a_copy_to_the_host_is_read_too_early(device: PretendedDevice) -> None:
    rows = on(device, 3)
    found = rows.to("cpu", non_blocking=True)
    assert found.tolist() == [-1, -1, -1]
    torch.accelerator.synchronize()
    assert found.tolist() == [0, 1, 2]


def test_an_event_is_waited_for(device: PretendedDevice) -> None:
    """What was copied before it is there, and nothing else; memory that is copied to again is not read."""
    rows, more = on(device, 3), on(device, 3).add_(1)
    stream = torch.accelerator.current_stream(device.device)
    first, second = (torch.empty(3, pin_memory=True) for _ in range(2))
    first.copy_(rows, non_blocking=True)
    event = stream.record_event()
    second.copy_(more, non_blocking=True)
    event.synchronize()
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [-1, -1, -1])
    first.copy_(rows, non_blocking=True)
    event = stream.record_event()
    first.copy_(more, non_blocking=True)
    event.synchronize()
    assert first.tolist() == [-1, -1, -1]
    stream.record_event().synchronize()
    assert (first.tolist(), second.tolist()) == ([1, 2, 3], [1, 2, 3])
    assert device.trace.waits.total() == 3


def test_a_pinned_tensor_is_written_too_early(device: PretendedDevice) -> None:
    pinned = torch.arange(3).pin_memory()
    pinned.to(device.device, non_blocking=True)
    pinned += 1
    with pytest.raises(Refused, match="written while"):
        torch.accelerator.synchronize()


def test_operations_in_place_keep_the_address(device: PretendedDevice) -> None:
    rows = on(device, 3)
    before = address(rows)
    assert rows.add_(1) is rows
    assert address(rows) == before


def test_without_it_there_is_no_accelerator() -> None:
    assert not torch.accelerator.is_available()
