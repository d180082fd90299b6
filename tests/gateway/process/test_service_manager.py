"""sd_notify: datagrams to a real Unix socket, with a path or in the abstract namespace."""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path

import pytest

from gateway.process.service_manager import READY, notify, notify_reloading, status


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_a_service_manager_gets_datagrams(abstract: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{tempfile.mkdtemp(dir='/tmp')}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path if abstract else path)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + path if abstract else path)
        before = time.monotonic_ns() // 1000
        notify(READY, status("waiting for\nthe model"))
        notify_reloading()
        assert manager.recv(4096) == b"READY=1\nSTATUS=waiting for the model"
        name, moment = manager.recv(4096).decode().split("\n")
        assert name == "RELOADING=1"
        assert before <= int(moment.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_without_one_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify(READY)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(READY)
