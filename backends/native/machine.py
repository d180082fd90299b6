"""What the machine offers this process: cores and memory. Imports no torch."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# glibc's malloc.h. The least that is got from the system piece by piece, and the most that is kept when it is freed.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_LARGE, _PICTURE, _MOST_KEPT = 2**28, 2**22, 2**31 - 1


def physical_cores() -> int:
    """Physical cores this process may use; two threads of one core share its arithmetic units."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return len(cores)


def available_memory() -> int:
    """Bytes that can still be had, page cache counted in where the system tells."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def keep_freed_memory() -> bool:
    """Let freed memory be used again rather than go back to the system; whether this system can.

    A step frees what the next one needs again. Memory fresh from the system comes page by page, zeroed: for a batch's
    logits that takes longer than what is done to them. Call it when weights are loaded, lest theirs are kept, too.
    """
    return _mallopt(_M_MMAP_THRESHOLD, _LARGE) and _mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT)


def return_large_blocks() -> bool:
    """Let blocks as large as a picture go back to the system when they are freed, for a process that seldom needs them;
    whether this system can. glibc would keep more of them each time, in pieces.
    """
    return _mallopt(_M_MMAP_THRESHOLD, _PICTURE)


def _mallopt(option: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return bool(mallopt and mallopt(option, value))
