"""Devices: which there is, what it has, and copies to it that the host does not wait for.

Everything is asked of `torch.accelerator`, which knows CUDA, ROCm (as `cuda`), XPU, MPS and whatever an extension adds
(Ascend's `npu`), so that no other module names a kind of device.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

_DTYPES = {"q": torch.int64, "i": torch.int32, "f": torch.float32}
"""Of the numbers of an `array`, by its type code."""
_ALIGNMENT = 8

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
"""What lack of memory raises, on a device and on the host."""

# Not taken unless it is named: on Apple's machines the CPU is the device that the engine has been run on.
_NOT_BY_DEFAULT = {"mps"}


def accelerator() -> torch.device | None:
    """The kind of accelerator that torch finds here; None: only the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) if torch.accelerator.is_available() else None


def default_device() -> torch.device:
    """The accelerator if there is one, or the CPU."""
    found = accelerator()
    return torch.device("cpu") if found is None or found.type in _NOT_BY_DEFAULT else found


def is_present(device: torch.device) -> bool:
    """Whether torch can use the device here."""
    if device.type in ("cpu", "meta"):
        return True
    found = accelerator()
    return found is not None and found.type == device.type and (device.index or 0) < torch.accelerator.device_count()


def make_current(device: torch.device) -> None:
    """Have this thread's kernels run on a device that has a number: Triton's, and graphs, take the thread's own."""
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 itself. CUDA's older cards emulate it, slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu" or accelerator() is None:
        return True
    supported: set[torch.dtype] = torch.accelerator.get_device_capability(device)["supported_dtypes"]
    return torch.bfloat16 in supported


def free_memory(device: torch.device) -> int:
    """Bytes that are free on an accelerator."""
    return int(torch.accelerator.get_memory_info(device)[0])


def release_memory() -> None:
    """Give the memory that torch keeps for later tensors back to the accelerator, if there is one, and to its host."""
    if accelerator() is not None:
        torch.accelerator.empty_cache()
        if hasattr(torch.accelerator, "empty_host_cache"):  # not in older versions
            torch.accelerator.empty_host_cache()


@contextmanager
def refusing_waits(device: torch.device) -> Iterator[None]:
    """Have torch raise where the host would wait for the device, if it can tell: on CUDA and ROCm."""
    if device.type != "cuda":
        yield
        return
    was = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype, of which not all is noticed
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(was)


def send(device: torch.device, *arrays: array[Any]) -> list[Tensor]:
    """Copy arrays of type code q (int64), i (int32) or f (float32) to a device; one tensor each.

    An accelerator gets all in one copy from pinned memory, which the host does not wait for. On the CPU the tensors
    share the arrays' memory, so an array must not be changed afterwards (and cannot grow: BufferError).
    """
    if device.type == "cpu":
        return [_shared(each) for each in arrays]
    joined = bytearray()
    ends: list[tuple[int, int]] = []
    for each in arrays:
        first = len(joined)
        joined += memoryview(each).cast("B")
        ends.append((first, len(joined)))
        joined += bytes(-len(joined) % _ALIGNMENT)
    if not joined:
        return [torch.empty(0, dtype=_DTYPES[each.typecode], device=device) for each in arrays]
    sent = to_device(torch.frombuffer(joined, dtype=torch.uint8), device)
    return [sent[first:end].view(_DTYPES[each.typecode]) for each, (first, end) in zip(arrays, ends, strict=True)]


@dataclass(slots=True, eq=False)
class ExtraArrays:
    """Arrays that go to a device with those of somebody else, in the same copy.

    Attributes:
        arrays: as `send` takes them.
        sent: the tensors, once they were sent; None: nobody took them along.
        unread: token ids on the device, which the host has not read; None: it has read all.
    """

    arrays: Sequence[array[Any]]
    sent: Sequence[Tensor] | None = None
    unread: Tensor | None = None

    def on(self, device: torch.device) -> Sequence[Tensor]:
        """The tensors; sent now, if nobody has."""
        return send(device, *self.arrays) if self.sent is None else self.sent

    def fill_in(self, ids: Tensor) -> None:
        """Put those of `unread` into `ids` [tokens], in place, whose rows stand there as `~row`."""
        if self.unread is not None:
            rows = ids.bitwise_not().clamp_(min=0)
            # Of a row from which none could be chosen, any: nobody reads what follows it.
            torch.where(ids < 0, self.unread.index_select(0, rows).clamp_(min=0), ids, out=ids)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for the copy, where the device can."""
    if device.type == "cpu":
        return tensor
    # torch does not use the pinned memory again before the copy is done: its allocator notes the stream.
    return tensor.pin_memory().to(device, non_blocking=True) if can_pin(device) else tensor.to(device)


def can_pin(device: torch.device) -> bool:
    """Whether it is an accelerator that copies from pinned memory and to it."""
    return device.type != "cpu" and _pins(device.type)


def index_tensor(values: Iterable[int], device: torch.device) -> Tensor:
    """[values] int64. By way of an array, in a seventh of the time that `torch.tensor` takes for a list."""
    return send(device, values if isinstance(values, array) else array("q", values))[0]


@lru_cache(maxsize=256)
def constant(device: torch.device, typecode: str, values: tuple[float, ...]) -> Tensor:
    """A tensor of `values`, which nobody may change: the same one as long as a step asks for what the last one did.

    For what stays equal from step to step while the batch does, as parameters of sampling do.
    """
    return send(device, array(typecode, values))[0]


def _shared(numbers: array[Any]) -> Tensor:
    dtype = _DTYPES[numbers.typecode]
    # `frombuffer` refuses an empty buffer. The tensor keeps the array alive, and an array whose buffer is exported
    # cannot grow, so nothing can move the memory under the tensor.
    return torch.frombuffer(numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype)


@cache
def _pins(kind: str) -> bool:  # noqa: ARG001 - what the result is kept for
    """Whether the accelerator copies from pinned memory."""
    try:
        torch.empty(1).pin_memory()
    except (RuntimeError, NotImplementedError):
        return False
    return True
