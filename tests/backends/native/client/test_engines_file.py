from __future__ import annotations

import os
from pathlib import Path

from structlog.testing import capture_logs

from backends.native.client.engines_file import EnginesFile, count_waiting, waiting_folder
from backends.native.client.transports import Connect
from backends.native.protocol.addresses import TcpAddress
from tests.backends.native.fake_engine import FakeEngine, ask, new_client, until


async def test_a_client_uses_the_engines_that_a_file_lists(tmp_path: Path) -> None:
    engines = {port: FakeEngine() for port in (1, 2, 3)}

    def connect(address: TcpAddress | Path) -> Connect:
        assert isinstance(address, TcpAddress)
        return engines[address.port].connect

    path, always = tmp_path / "engines", FakeEngine()
    file = EnginesFile(path, connect, {"0": always.connect})
    client = new_client()
    await file.start(client)
    await client.start()
    assert [link.name for link in client.links] == ["0"], "there is no file yet"

    async def write(text: str) -> list[str]:
        path.with_suffix(".new").write_text(text)
        os.replace(path.with_suffix(".new"), path)
        await file.look(client)
        await until(lambda: all(link.ready for link in client.links))
        return [link.name for link in client.links]

    assert await write("tcp://h:1 a1\ntcp://h:2   # no incarnation\n\n# none\n") == ["0", "h:1/a1", "h:2"]
    assert await write("tcp://h:1 a2\ntcp://h:3 c1\n") == ["0", "h:1/a2", "h:3/c1"], "another one at the same address"
    with capture_logs() as logs:
        assert await write("h:1\ntcp://h:3 c1\n") == ["0", "h:3/c1"]
    assert logs[0]["event"] == "engine.unreadable"
    path.unlink()
    await file.look(client)
    assert len(client.links) == 2, "a file that is gone changes nothing"
    await file.aclose()
    await file.aclose()
    await client.aclose()


async def test_what_waits_for_an_engine_is_said_beside_the_file(tmp_path: Path) -> None:
    path, engine = tmp_path / "engines", FakeEngine()
    path.write_text("tcp://h:1\n")
    file, client = EnginesFile(path, lambda _: engine.connect, {}), new_client()
    await file.start(client)
    await client.start()
    engine.up = False
    engine.die()
    await until(lambda: client.ready is None)
    waits = [ask(client, 5, 5), ask(client, 5)]
    assert client.waiting == 3
    await file.look(client)
    assert os.listdir(tmp_path) == ["engines"], "whoever wants to know makes the folder"
    assert count_waiting(path) == 0

    waiting_folder(path).mkdir()
    await file.look(client)
    assert count_waiting(path) == 3
    killed = waiting_folder(path) / "killed"
    killed.write_text("7")
    assert count_waiting(path) == 10
    os.utime(killed, (0, 0))
    assert count_waiting(path) == 3
    assert not killed.exists()

    client.release(waits[0])
    await file.look(client)
    assert count_waiting(path) == 1
    engine.up = True
    await until(lambda: client.ready is not None)
    await file.look(client)
    assert count_waiting(path) == client.waiting == 0, "it has been given to the engine"
    client.release(waits[1])
    await file.aclose()
    await client.aclose()
    assert os.listdir(waiting_folder(path)) == []
