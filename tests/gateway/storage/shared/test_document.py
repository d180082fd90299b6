"""Documents that gateways share by a real state server: no change is lost, and a server that is away loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config import StateSection
from gateway.storage.json_file import JsonFile
from gateway.storage.shared.document import Revised, SharedDocument
from gateway.storage.shared.state_server import ServerAway, StateServer
from tests.gateway.state_server import Process
from tests.missing_tools import missing


class Names(Revised, frozen=True):
    names: tuple[str, ...] = ()


def added(name: str) -> object:
    return lambda old: Names(names=(*old.names, name), revision=old.revision)


def document(folder: Path, server: StateServer) -> SharedDocument[Names]:
    folder.mkdir(exist_ok=True)
    return SharedDocument(JsonFile(folder / "names.json", Names()), server, "names", Names())


@pytest.mark.slow
async def test_of_fifty_writers_at_two_gateways_no_change_is_lost(state_process: Process, tmp_path: Path) -> None:
    settings = state_process.settings()
    servers = [StateServer(settings) for _ in range(2)]
    documents = [document(tmp_path / str(number % 2), servers[number % 2]) for number in range(50)]
    await asyncio.gather(*(each.change(added(str(number))) for number, each in enumerate(documents)))
    for each in documents[:2]:
        await each.look()
        assert sorted(each.read().names, key=int) == list(map(str, range(50)))
        assert each.read().revision == 50
    for server in servers:
        await server.aclose()


@pytest.mark.slow
async def test_what_a_server_has_lost_a_gateway_gives_it_back(fleeting_process: Process, tmp_path: Path) -> None:
    settings = fleeting_process.settings()
    server = StateServer(settings)
    first, second = (document(tmp_path / name, server) for name in "ab")
    await first.change(added("x"))
    await first.change(added("y"))
    fleeting_process.kill()
    with pytest.raises(ServerAway):
        await first.change(added("lost"))
    assert first.read().names == ("x", "y")
    assert server.is_away
    fleeting_process.start()
    while server.is_away:  # noqa: ASYNC110 - the probe's
        await asyncio.sleep(0.05)
    await second.look()
    assert second.read().names == ()
    await first.look()
    await second.look()
    assert second.read() == first.read() == Names(names=("x", "y"), revision=2)
    await second.change(added("z"))
    assert second.read() == Names(names=("x", "y", "z"), revision=3)
    await server.aclose()


async def test_the_first_gateway_gives_its_file_and_others_take_it(state_process: Process, tmp_path: Path) -> None:
    server = state_process.client()
    first, second = (document(tmp_path / name, server) for name in "ab")
    first.file.change(added("mine"))
    second.file.change(added("other"))
    await first.look()
    await second.look()
    assert first.read() == second.read() == Names(names=("mine",), revision=1)
    await server.aclose()


@pytest.mark.slow
async def test_a_server_that_says_nothing_costs_its_timeout_once(fleeting_process: Process) -> None:
    server = StateServer(fleeting_process.settings())
    await server.run(lambda redis: redis.ping())
    with fleeting_process.halted(server):
        with pytest.raises(ServerAway, match="does not answer"):
            await server.run(lambda redis: redis.ping())
        with pytest.raises(ServerAway, match="is away"):
            await server.run(lambda redis: redis.ping())
    while server.is_away:  # noqa: ASYNC110 - the probe's
        await asyncio.sleep(0.05)
    assert await server.run(lambda redis: redis.ping())
    await server.aclose()


@pytest.mark.parametrize(
    ("url", "wrong"),
    [("", "is not set"), ("http://x", "begins with none of"), ("redis://h:port", "is wrong")],
)
def test_a_wrong_url_is_refused_without_being_repeated(url: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis", reason=missing("redis-py"))
    monkeypatch.setenv("WRONG", url)
    from gateway.config import ConfigError

    with pytest.raises(ConfigError, match=wrong) as caught:
        StateServer(StateSection(url_env="WRONG"))
    assert "http://x" not in str(caught.value)
