"""The machine: its device, what drives that, and how fast memory is copied."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from msgspec import Struct

from backends.native.engine.devices import accelerator, free_memory, has_bfloat16
from backends.native.engine.kernels import jit
from backends.native.machine import available_memory, physical_cores

_PACKAGES = ("interlingua", "torch", "transformers", "triton")
_DRIVER = Path("/proc/driver/nvidia/version")
_COPIES = 8


class Machine(Struct, frozen=True):
    """What the engine runs on.

    Attributes:
        device: as torch names it.
        device_name: the accelerator's name, or the CPU that kernels are compiled for.
        driver: the accelerator's driver, as far as the system tells it.
        accelerator: the kind that torch finds, used or not.
        bfloat16: whether the device multiplies bfloat16 itself.
        free_bytes: memory that is free on the device.
        cores: physical cores of the CPU.
        system: the operating system and its architecture.
        python: its version.
        packages: versions by name; None: not installed.
        copy_bytes_per_second: bytes read and written by a copy within the device's memory.
        send_bytes_per_second: bytes copied from pinned memory of the host; None on a CPU.
    """

    device: str
    device_name: str
    driver: str | None
    accelerator: str | None
    bfloat16: bool
    free_bytes: int
    cores: int
    system: str
    python: str
    packages: dict[str, str | None]
    copy_bytes_per_second: float
    send_bytes_per_second: float | None


def look_at(device: torch.device, copied_bytes: int) -> Machine:
    """Describe `device` and its machine; copies are of `copied_bytes` each."""
    found = accelerator()
    is_cpu = device.type == "cpu"
    return Machine(
        device=str(device),
        device_name=jit.target() if is_cpu else _name_of(device),
        driver=None if is_cpu or not _DRIVER.exists() else _DRIVER.read_text().splitlines()[0],
        accelerator=None if found is None else found.type,
        bfloat16=bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) if is_cpu else has_bfloat16(device),  # noqa: SLF001
        free_bytes=available_memory() if is_cpu else free_memory(device),
        cores=physical_cores(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: _version_of(name) for name in _PACKAGES},
        copy_bytes_per_second=_copy_bandwidth(device, copied_bytes),
        send_bytes_per_second=None if is_cpu else _send_bandwidth(device, copied_bytes),
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _name_of(device: torch.device) -> str:
    # torch's module of each kind of device has it, under this name.
    name = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return device.type if name is None else str(name(device))


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _copy_bandwidth(device: torch.device, size: int) -> float:
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(device, lambda: target.copy_(source))


def _send_bandwidth(device: torch.device, size: int) -> float:
    source = torch.ones(size // 4, dtype=torch.float32).pin_memory()
    target = torch.empty(size // 4, dtype=torch.float32, device=device)
    return size / _seconds(device, lambda: target.copy_(source, non_blocking=True))


def _seconds(device: torch.device, run: Callable[[], object]) -> float:
    """Of one `run`, after a first one."""
    run()
    synchronize(device)
    began = time.perf_counter()
    for _ in range(_COPIES):
        run()
    synchronize(device)
    return (time.perf_counter() - began) / _COPIES
