"""Cores and memory, as far as every machine agrees."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys

import pytest

from backends.native.machine import available_memory, physical_cores, use_huge_pages


def test_there_are_physical_cores() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


def test_there_is_memory() -> None:
    assert 2**20 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_reused() -> None:
    code = """
from resource import RUSAGE_SELF, getrusage
from backends.native.machine import keep_freed_memory
def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(b"1") * 20_000_000
    return getrusage(RUSAGE_SELF).ru_minflt - before
assert keep_freed_memory()
first = faults()
assert faults() < first / 10, (first, faults())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_in_huge_pages_is_what_it_was() -> None:
    size = 2**23
    with mmap.mmap(-1, size) as memory:
        memory[:] = bytes(range(256)) * (size // 256)
        first = ctypes.c_char.from_buffer(memory)
        # The system may have none free, or none at all.
        assert use_huge_pages(ctypes.addressof(first) + 100, size // 2) in {True, False}
        del first
        assert memory[:] == bytes(range(256)) * (size // 256)


def test_memory_that_is_not_mapped_is_not_put_into_huge_pages() -> None:
    assert not use_huge_pages(0, 2**21)
