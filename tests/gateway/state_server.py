"""A real state server in a process of its own, and gateways of this process that share it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from gateway.config import StateSection
from gateway.storage.shared.state_server import StateServer
from tests.missing_tools import missing
from tests.ports import free_port

_URL, _NUMBER = "TEST_STATE_URL", count()


class Process:
    """`redis-server` or `valkey-server`, without anything on the disk.

    Args:
        folder: where it runs.
        certificate: with which it speaks TLS; its key is beside it.
    """

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        pytest.importorskip("redis", reason=missing("redis-py"))
        program = shutil.which("valkey-server") or shutil.which("redis-server")
        if program is None:
            pytest.skip(missing("redis-server"))
        self.port = free_port()
        ports = ["--port", str(self.port)]
        if certificate is not None:
            ports = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            ports += ["--tls-cert-file", str(certificate), "--tls-key-file", str(certificate.with_suffix(".key"))]
            ports += ["--tls-ca-cert-file", str(certificate)]
        self._command = [program, *ports, "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self.start()

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            else:
                assert self._process.poll() is None, "another server has the port"
                return

    def kill(self) -> None:
        """End it with all that it holds."""
        self._process.kill()
        self._process.wait()

    @contextmanager
    def halted(self, *clients: StateServer) -> Iterator[None]:
        """Have it say nothing, with its connections open. Only meanwhile, these clients soon give up."""
        os.kill(self._process.pid, signal.SIGSTOP)
        timeouts = [client._timeout for client in clients]
        for client in clients:
            client._timeout = 0.1
        try:
            yield
        finally:
            for client, seconds in zip(clients, timeouts, strict=True):
                client._timeout = seconds
            os.kill(self._process.pid, signal.SIGCONT)

    def settings(self, timeout: float = 5.0, url: str = "valkey://127.0.0.1:{port}") -> StateSection:
        """A section `state` that shares nothing with others."""
        os.environ[_URL] = url.format(port=self.port)
        # A busy machine must not look like a server that is away.
        return StateSection(url_env=_URL, prefix=f"test{next(_NUMBER)}", timeout=timeout)

    def client(self) -> StateServer:
        """A client that shares nothing with others."""
        return StateServer(self.settings())
