"""A state server that speaks TLS: known by its authority, and not used when it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage.shared.state_server import ServerAway, StateServer
from tests.backends.transport.servers import make_certificate
from tests.gateway.state_server import Process


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return make_certificate(tmp_path, "state")


@pytest.fixture
def secure_process(tmp_path: Path, certificate: Path) -> Iterator[Process]:
    process = Process(tmp_path, certificate)
    yield process
    process.kill()


async def ping(process: Process, url: str) -> object:
    server = StateServer(process.settings(url=url))
    try:
        return await server.run(lambda redis: redis.ping())
    finally:
        await server.aclose()


async def test_a_state_server_is_known_by_its_authority(secure_process: Process, certificate: Path) -> None:
    assert await ping(secure_process, f"valkeys://localhost:{{port}}?ssl_ca_certs={certificate}") is True


async def test_the_connection_that_waits_speaks_tls(secure_process: Process, certificate: Path) -> None:
    server = StateServer(secure_process.settings(url=f"valkeys://localhost:{{port}}?ssl_ca_certs={certificate}"))
    await server.run(lambda redis: redis.rpush(server.key("news"), b"it changed"))
    assert await server.pop(server.key("news"), 5.0) == b"it changed"
    await server.aclose()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("valkeys://localhost:{port}", "certificate verify failed"),
        ("valkeys://127.0.0.1:{port}?ssl_ca_certs=CERTIFICATE", "doesn't match|not valid for"),
        ("valkey://localhost:{port}", "."),
    ],
)
async def test_a_state_server_that_cannot_be_known_is_away(
    secure_process: Process, certificate: Path, url: str, why: str
) -> None:
    with pytest.raises(ServerAway, match=why):
        await ping(secure_process, url.replace("CERTIFICATE", str(certificate)))
