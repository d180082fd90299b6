"""The startup monitor: incomplete or malformed answers of a worker do not stop the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.config import Config, ServerSection
from gateway.process.startup import StartupMonitor

LIMIT = 60.0  # seconds


@contextmanager
def worker(answer: bytes) -> Iterator[int]:
    """Answers one request and closes; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(LIMIT)


def reply(status: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status.encode(), size, body)


READY, LOADING, FAILED = (b'{"status":"%b","detail":"weights"}' % each for each in (b"ready", b"loading", b"failed"))
ANSWERS = {
    "loading": (reply("503 Service Unavailable", LOADING), True),
    "failed": (reply("503 Service Unavailable", FAILED), False),
    "cut after the head": (reply("503 Service Unavailable", b"", 99), True),
    "cut in the middle": (reply("503 Service Unavailable", FAILED[:9], 99), True),
    "cut while ready": (reply("200 OK", READY[:9], 99), True),
    "no HTTP": (b"\0\0\r\n\r\n", True),
    "nothing": (b"", True),
}


@pytest.mark.parametrize(("answer", "goes_on"), ANSWERS.values(), ids=ANSWERS)
def test_only_a_failed_backend_ends_the_startup_monitor(
    answer: bytes, goes_on: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with worker(answer) as port:
        monitor = StartupMonitor(Config(backends={"s": {"kind": "scripted"}}), [port])
        assert monitor.poll() is goes_on
    printed = capsys.readouterr()
    loads = answer == ANSWERS["loading"][0]
    # It greets as soon as it listens, and names what it waits for.
    assert (f"http://127.0.0.1:{port}/ui" in printed.out) is loads
    assert "curl" not in printed.out
    assert printed.err == ("waiting for weights\n" if loads else "" if goes_on else "Error: weights\n")


def test_the_address_is_printed_when_the_server_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with worker(reply("200 OK", READY)) as port:
        monitor = StartupMonitor(Config(backends={"s": {"kind": "scripted"}}), [port])
        assert monitor.poll()
    assert f"http://127.0.0.1:{port}/ui" in capsys.readouterr().out


def test_the_servers_own_health_page_is_never_asked_through_a_proxy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with worker(reply("200 OK", READY)) as port:
        config = Config(backends={"s": {"kind": "scripted"}}, server=ServerSection(keys_env="KEYS"))
        assert StartupMonitor(config, [port]).poll()
    printed = capsys.readouterr().out
    assert "Ready after" in printed
    curls = [line for line in printed.splitlines() if line.startswith("curl")]
    assert len(curls) > 3
    assert "/v1beta/models/:generateContent" in printed  # there is no endpoint whose name could be in it
    assert not [line for line in curls if "{model" in line or "{name" in line]
    assert all('-H "authorization: Bearer $KEY"' in line for line in curls)
    assert [line for line in curls if line.startswith("curl -N") and '"stream": true' in line]
