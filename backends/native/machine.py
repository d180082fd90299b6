"""The machine's resources for this process: cores and memory. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# Parameters of glibc's mallopt: the least size that is allocated by mmap, and the most free memory that is kept.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_LARGE_BLOCK, _IMAGE_BLOCK, _MAX_KEPT = 2**28, 2**22, 2**31 - 1
# Linux's number of the advice to put memory into huge pages at once (madvise(2), since 6.1), and their size on x86-64
# and on ARM with pages of 4 KiB.
_MADV_COLLAPSE, _HUGE_PAGE = 25, 2**21


def physical_cores() -> int:
    """The number of physical cores that this process may use; hardware threads of a core share its arithmetic units."""
    # The affinity mask, not the number of CPUs: containers (cpusets) and `taskset` restrict it.
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        # The hardware threads of a core list the same siblings (such as `0,4`), so the set has one entry per core.
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return len(cores)


def available_memory() -> int:
    """Available memory in bytes, including the page cache where the system reports it."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        # /proc/meminfo counts in KiB.
        return int(fields["MemAvailable"].split()[0]) * 1024
    # Systems without /proc (macOS): half of the physical memory is taken to be available.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def resident_memory() -> int:
    """Bytes of memory that this process has now; 0 where the system does not report them."""
    try:
        # The second field: pages that are resident (proc(5)).
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory instead of returning it to the system; False if the system does not support it.

    A step allocates what the previous one freed. Fresh memory is zeroed page by page, which takes longer for a batch's
    logits than the arithmetic on them. Call it after weights are loaded, so that their buffers are returned.
    """
    # Smaller blocks come from the heap, whose free top is kept up to `_MAX_KEPT` (mallopt takes an int). Setting either
    # parameter stops glibc from adapting both while the process runs (mallopt(3)).
    return _mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK) and _mallopt(_M_TRIM_THRESHOLD, _MAX_KEPT)


def use_huge_pages(address: int, size: int) -> bool:
    """Put `size` bytes at `address` into huge pages, and what shares those; False if that is impossible.

    What is read in order then needs one look into the page tables for 2 MiB, not for 4 KiB, which a virtual machine
    makes by two levels of tables. Call it after what lies beside is freed: freeing a part of a huge page splits it.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if madvise is None:
        return False
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    first, last = address // _HUGE_PAGE, -(-(address + size) // _HUGE_PAGE)
    return bool(madvise(first * _HUGE_PAGE, (last - first) * _HUGE_PAGE, _MADV_COLLAPSE) == 0)


def return_freed_memory() -> bool:
    """Return all freed memory to the system now; False if the system does not support it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc's
    return bool(trim and trim(0))


def return_large_blocks() -> bool:
    """Make malloc return image-sized blocks to the system when they are freed; False if the system does not support it.

    For processes that seldom need them: glibc would keep ever more of them, fragmented.
    """
    # Blocks above the threshold are mapped on their own, and `free` unmaps them.
    return _mallopt(_M_MMAP_THRESHOLD, _IMAGE_BLOCK)


def _mallopt(option: int, value: int) -> bool:
    # `CDLL(None)` has the symbols of the running process; musl and macOS have no `mallopt`.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return bool(mallopt and mallopt(option, value))
