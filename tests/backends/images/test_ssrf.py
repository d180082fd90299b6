"""No connection but to what is allowed, whatever a client writes, a site redirects to, or a name resolves to; seen at
the socket. And no file but under the folder, whatever URL or path says so.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from adapters.openai.inbound.messages import image_part as openai_part
from adapters.tgi.inputs import image_part as tgi_part
from backends.images import ImageLoader, ImageOptions
from schemas.errors import InvalidRequest
from tests.backends.images import files
from tests.backends.images.audit import watching
from tests.backends.images.test_addresses import ADDRESSES_THAT_ARE_NOT, URLS_THAT_ARE_NOT
from tests.backends.images.test_fetch import redirect, site
from tests.backends.images.test_files import NOT_READ

LOOPBACKS = [
    *("http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://127.1:{port}/", "http://0:{port}/"),
    *("http://0x7f000001:{port}/", "http://2130706433:{port}/", "http://017700000001:{port}/", "http://[::1]:{port}/"),
    *("http://[::ffff:127.0.0.1]:{port}/", "http://[::ffff:7f00:1]:{port}/", "http://0.0.0.0:{port}/"),
    *("http://user:word@127.0.0.1:{port}/", "http://pics.example@127.0.0.1:{port}/", "http:\\\\127.0.0.1:{port}\\"),
    *("http://127.0.0.1:{port}#@pics.example/", "http://pics.example:80@127.0.0.1:{port}/", "//127.0.0.1:{port}/"),
    *(
        "http://127。0。0。1:{port}/",
        "http://①②⑦.0.0.1:{port}/",
        "http://127.0.0.1.:{port}/",
        "HTTP://LOCALHOST:{port}",
    ),
]
"""Ways to write an address of this machine, which is not listed."""


def connected(seen: list[tuple[str, tuple[object, ...]]]) -> list[Any]:
    return [arguments[1] for event, arguments in seen if event == "socket.connect"]


def resolved(seen: list[tuple[str, tuple[object, ...]]]) -> list[Any]:
    return [arguments[0] for event, arguments in seen if event == "socket.getaddrinfo"]


async def refused(ref: str, options: ImageOptions) -> list[tuple[str, tuple[object, ...]]]:
    """What happens on the way to a refusal, written in any of the protocols' ways."""
    loader = ImageLoader(options)
    with watching() as seen:
        for part in {tgi_part(ref), openai_part(ref)}:
            with pytest.raises(InvalidRequest) as refusal:
                await loader.read([part])
            assert "127.0.0.1" not in refusal.value.message
            assert "example" not in refusal.value.message
    await loader.aclose()
    return seen


@pytest.mark.parametrize("url", [*URLS_THAT_ARE_NOT, *LOOPBACKS])
async def test_what_a_client_writes(url: str) -> None:
    """Not even resolved."""
    options = ImageOptions(hosts=("pics.example", "other.example:8080", "[2001:db8::1]:81"))
    async with site() as secret:
        seen = await refused(url.format(port=secret.port) if "{port}" in url else url, options)
    assert not connected(seen)
    assert not resolved(seen)
    assert not secret.requests


@pytest.mark.parametrize("url", [*URLS_THAT_ARE_NOT, *LOOPBACKS])
async def test_where_a_site_redirects_to(url: str) -> None:
    """To the listed site itself and to nowhere else; the secret one is at another port of the same address."""
    async with site() as secret, site() as listed:
        listed.answer = redirect(url.format(port=secret.port) if "{port}" in url else url)
        host = f"127.0.0.1:{listed.port}"
        seen = await refused(f"http://{host}/", ImageOptions(hosts=(host,), networks=("127.0.0.0/8",)))
    assert set(connected(seen)) == {("127.0.0.1", listed.port)}
    assert not secret.requests


@pytest.mark.parametrize("address", [each for each in ADDRESSES_THAT_ARE_NOT if each not in ("", "localhost")])
async def test_what_a_name_resolves_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert not connected(await refused("http://pics.example/a.png", ImageOptions(hosts=("pics.example",))))


@pytest.mark.parametrize("path", [path for path in NOT_READ if path])
async def test_what_a_path_says(path: str, tmp_path: Path) -> None:
    """In front of the same files as `test_files`, by way of the protocols."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(files.file())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    seen = await refused(path.format(folder), ImageOptions(folder=str(folder)))
    opened = [str(arguments[0]) for event, arguments in seen if event == "open"]
    assert all(name == str(folder) or "/" not in name for name in opened)
    assert not connected(seen)
