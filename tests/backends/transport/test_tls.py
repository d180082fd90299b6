"""TLS: the certificate must be trusted and name the host."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from adapters.base import Outbound
from backends.transport import Transport
from schemas.errors import BackendUnavailable
from tests.faults.upstream import Upstream, response
from tests.missing_tools import missing

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason=missing("openssl, which makes the certificate"))
ASK = Outbound("/", b"", "GET", ())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost"], cwd=folder, check=True, capture_output=True
    )
    return folder / "cert.pem"


@pytest.mark.slow
async def test_only_a_server_with_a_trusted_certificate_for_its_name_is_reached(certificate: Path) -> None:
    there = Upstream(lambda _: (response(b"ok"),))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trusting = ssl.create_default_context(cafile=str(certificate))
    deadline = asyncio.get_running_loop().time() + 60

    transport = Transport(f"https://localhost:{port}", tls=trusting)
    for _ in range(2):
        answer = await transport.exchange(ASK, deadline)
        assert (await answer.reply(deadline)).body == b"ok"
        answer.close()
    assert there.connections == 1
    await transport.aclose()

    for url, context in ((f"https://127.0.0.1:{port}", trusting), (f"https://localhost:{port}", None)):
        with pytest.raises(BackendUnavailable) as caught:
            await Transport(url, tls=context).exchange(ASK, deadline)
        assert caught.value.code == "upstream_connect"
    server.close()
