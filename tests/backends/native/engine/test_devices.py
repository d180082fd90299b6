"""Which device is taken, and copies to it in one piece."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch

from backends.native.engine.devices import (
    default_device,
    has_bfloat16,
    index_tensor,
    is_present,
    make_current,
    send,
)
from backends.native.engine.errors import LoadError
from backends.native.engine.loading.weights import pick_device
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import PretendedDevice

pytestmark = pytest.mark.torch

ARRAYS = (array("q", [1, 2**40]), array("i", [5, -6, 7]), array("q"), array("f", [0.5]), array("q", [9]))


@pytest.mark.parametrize("values", [[], [3], [1, 2**40], array("q", [7, 8])])
def test_an_index_tensor_holds_64_bit_integers(values: Any) -> None:
    found = index_tensor(values, torch.device("cpu"))
    assert (found.dtype, found.tolist()) == (torch.int64, list(values))


def test_arrays_share_their_memory_with_tensors_of_the_cpu() -> None:
    found = send(torch.device("cpu"), *ARRAYS)
    assert [each.tolist() for each in found] == [each.tolist() for each in ARRAYS]
    ARRAYS[0][0] = 3
    assert found[0][0] == 3
    ARRAYS[0][0] = 1


@needs_compiler
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_an_accelerator_gets_all_arrays_in_one_copy_without_a_wait(kind: str) -> None:
    with PretendedDevice(kind) as device:
        found = send(device.device, *ARRAYS)
        assert not device.trace.waits
        assert device.trace.copies.total() == 1
        assert [each.dtype for each in found] == [torch.int64, torch.int32, torch.int64, torch.float32, torch.int64]
        assert [each.tolist() for each in found] == [each.tolist() for each in ARRAYS]
        assert [len(each) for each in send(device.device, array("q"), array("f"))] == [0, 0]


@needs_compiler
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_accelerator_that_torch_finds_is_the_default(kind: str) -> None:
    with PretendedDevice(kind):
        assert default_device() == pick_device("auto") == torch.device(kind)
        assert is_present(torch.device(kind, 0))
        assert not is_present(torch.device(kind, 1))
        assert has_bfloat16(torch.device(kind))
        with pytest.raises(LoadError, match="torch finds no MPS device"):
            pick_device("mps")


def test_without_an_accelerator_it_is_the_cpu() -> None:
    assert default_device() == torch.device("cpu")
    assert has_bfloat16(torch.device("cpu"))


@pytest.mark.parametrize(("name", "chosen"), [("cpu", []), ("cuda", []), ("cuda:0", [0]), ("cuda:1", [1])])
def test_kernels_run_on_the_device_that_has_a_number(
    name: str, chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", found.append)
    make_current(torch.device(name))
    assert found == chosen
