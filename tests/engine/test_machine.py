"""Cores and memory, as far as any machine must agree."""

from __future__ import annotations

import os

from backends.native.engine.machine import available_memory, physical_cores


def test_cores() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


def test_memory() -> None:
    assert 2**20 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
