"""The examination on a CPU and on a pretended accelerator: all of it is there, and a wrong routine is a fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from backends.native.engine.attention import registry
from backends.native.engine.attention.registry import CPU_PAGED
from backends.native.engine.doctor import report, routines
from backends.native.engine.doctor.report import Report, examine
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import save, wide

pytestmark = [pytest.mark.torch, needs_compiler]

SMALL = {"steps": 2, "copied_bytes": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    yield save("llama", tmp_path_factory.mktemp("llama"))
    torch.set_num_threads(threads)


def test_a_cpu(folder: Path) -> None:
    found = examine(str(folder), "cpu", **SMALL)
    assert not found.faults
    assert (found.machine.device, found.dtype, found.execution_path) == ("cpu", "float32", "packed")
    assert found.machine.packages["torch"] == torch.__version__
    used = {(each.name, each.dtype): each.used for each in found.routines}
    assert used["cpu_paged", "float32"]
    assert not used["cpu_paged", "float16"]
    assert [each.sequences for each in found.decoding] == [1, 8, 32]
    assert all(each.step_seconds > 0 and each.share_of_floor for each in found.decoding)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


@wide
def test_an_accelerator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SEQUENCES", (1, 2))
    with PretendedDevice():
        found = examine(str(folder), "auto", **SMALL)
    assert not found.faults
    assert (found.machine.device, found.machine.device_name) == ("cuda", "a pretended device")
    assert found.machine.send_bytes_per_second
    triton = [each for each in found.routines if each.name == "triton_paged"]
    assert [each.used for each in triton] == [False] * 3
    assert all(each.why for each in triton), "nothing can be compiled for a pretended device"
    assert {each.name for each in found.routines if each.used} == {"top_k_top_p (torch)", "gumbel (torch)"}
    assert [each.sequences for each in found.decoding] == [1, 2]


def test_a_wrong_routine_and_a_model_that_cannot_be_run_are_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = dataclasses.replace(CPU_PAGED, attend=lambda queries, *_: torch.zeros_like(queries))
    for module in (registry, routines):
        monkeypatch.setattr(module, "KERNELS", (wrong, *registry.KERNELS[1:]))
    found = examine(str(tmp_path), "cpu", **SMALL)
    assert "cpu_paged in float32 differs from torch's by 1.0" in found.faults
    assert "the model cannot be run" in found.faults[-1]
