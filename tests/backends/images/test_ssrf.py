"""Server-side request forgery: no connection and no file that is not allowed, by any URL, redirect, name or path.

Checked at the system calls, with Python's audit hooks.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from adapters.openai.inbound.parts import image_part as openai_part
from adapters.tgi.inputs import image_part as tgi_part
from backends.images import ImageLoader, ImageOptions
from schemas.errors import InvalidRequest
from tests.backends.images import files
from tests.backends.images.audit import recorded_events
from tests.backends.images.test_addresses import FORBIDDEN_ADDRESSES, FORBIDDEN_URLS
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
"""Spellings of this machine's address, which is not listed."""


def connected(seen: list[tuple[str, tuple[object, ...]]]) -> list[Any]:
    return [arguments[1] for event, arguments in seen if event == "socket.connect"]


def resolved(seen: list[tuple[str, tuple[object, ...]]]) -> list[Any]:
    return [arguments[0] for event, arguments in seen if event == "socket.getaddrinfo"]


async def refused(ref: str, options: ImageOptions) -> list[tuple[str, tuple[object, ...]]]:
    """The audit events until `ref` is refused, as an image of each protocol that takes references."""
    loader = ImageLoader(options)
    with recorded_events() as seen:
        for part in {tgi_part(ref), openai_part(ref)}:
            with pytest.raises(InvalidRequest) as refusal:
                await loader.read([part])
            assert "127.0.0.1" not in refusal.value.message
            assert "example" not in refusal.value.message
    await loader.aclose()
    return seen


@pytest.mark.parametrize("url", [*FORBIDDEN_URLS, *LOOPBACKS])
async def test_a_forbidden_url_is_not_even_resolved(url: str) -> None:
    options = ImageOptions(hosts=("pics.example", "other.example:8080", "[2001:db8::1]:81"))
    async with site() as secret:
        seen = await refused(url.format(port=secret.port) if "{port}" in url else url, options)
    assert not connected(seen)
    assert not resolved(seen)
    assert not secret.requests


@pytest.mark.slow
@pytest.mark.parametrize("url", [*FORBIDDEN_URLS, *LOOPBACKS])
async def test_a_redirect_leads_to_no_forbidden_url(url: str) -> None:
    """Only the listed site is connected to; the secret one is at another port of the same address."""
    async with site() as secret, site() as listed:
        listed.answer = redirect(url.format(port=secret.port) if "{port}" in url else url)
        host = f"127.0.0.1:{listed.port}"
        seen = await refused(f"http://{host}/", ImageOptions(hosts=(host,), networks=("127.0.0.0/8",)))
    assert set(connected(seen)) == {("127.0.0.1", listed.port)}
    assert not secret.requests


@pytest.mark.parametrize("address", [each for each in FORBIDDEN_ADDRESSES if each not in ("", "localhost")])
async def test_a_name_of_a_forbidden_address_is_not_connected_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert not connected(await refused("http://pics.example/a.png", ImageOptions(hosts=("pics.example",))))


@pytest.mark.parametrize("path", [path for path in NOT_READ if path])
async def test_a_path_leads_to_no_file_outside_the_folder(path: str, tmp_path: Path) -> None:
    """The paths of `test_files`, through the codecs of the protocols."""
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(files.file())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    seen = await refused(path.format(folder), ImageOptions(folder=str(folder)))
    opened = [str(arguments[0]) for event, arguments in seen if event == "open"]
    assert all(name == str(folder) or "/" not in name for name in opened)
    assert not connected(seen)
