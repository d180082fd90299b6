"""One list of keys for several gateways, by a real state server."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.keys_file import keys_file, new_key, read_keys, revoke_key
from gateway.access.shared_keys import SharedKeys
from gateway.config import Limit
from gateway.storage.shared.state_server import StateServer
from tests.gateway.state_server import Process

pytestmark = pytest.mark.cluster


class Place:
    """The keys file of a gateway."""

    def __init__(self, folder: Path, server: StateServer, *names: str) -> None:
        folder.mkdir()
        self.file = keys_file(folder / "keys.json")
        self.file.change(lambda _: _)
        self.folder = folder
        for name in names:
            new_key(self.file, name)
        self.shared = SharedKeys(server, self.file.path)

    @property
    def names(self) -> list[str]:
        return [key.name for key in read_keys(self.file)]


@pytest.mark.slow
async def test_keys_made_and_revoked_at_one_gateway_are_so_at_all(state_process: Process, tmp_path: Path) -> None:
    server = state_process.client()
    first, second = Place(tmp_path / "a", server, "one", "two"), Place(tmp_path / "b", server, "three")
    await first.shared.look()
    await second.shared.look()
    await first.shared.look()
    assert first.names == ["one", "two", "three"]
    assert sorted(second.names) == ["one", "three", "two"]
    assert not first.shared.is_due()
    # At both at once; an edit, too.
    revoke_key(first.file, "three")
    new_key(first.file, "four", limits=(Limit(requests=5),))
    revoke_key(second.file, "one")
    assert first.shared.is_due()
    for each in (first, second, first):
        await each.shared.look()
    assert first.names == ["two", "four"]
    assert sorted(second.names) == ["four", "two"]
    assert {key.name: key.limits for key in read_keys(second.file)}["four"] == (Limit(requests=5),)
    # A gateway that was away, and has lost what it knew of the others, brings no revoked key back.
    gone = Place(tmp_path / "c", server, "five")
    gone.file.change(lambda found: type(found)(keys=(*found.keys, *read_keys(first.file)[:1])))
    revoke_key(first.file, "two")
    await first.shared.look()
    await gone.shared.look()
    assert sorted(gone.names) == ["five", "four"]
    # Of two keys with a name, the first one stays.
    clash = Place(tmp_path / "d", server, "five")
    await clash.shared.look()
    assert {key.digest for key in read_keys(clash.file) if key.name == "five"} == {
        key.digest for key in read_keys(gone.file) if key.name == "five"
    }
    await server.aclose()


async def test_a_server_that_has_lost_its_data_is_given_the_keys_again(state_process: Process, tmp_path: Path) -> None:
    server = state_process.client()
    first, second = Place(tmp_path / "a", server, "one"), Place(tmp_path / "b", server, "two")
    for each in (first, second, first):
        await each.shared.look()
    await server.run(lambda redis: redis.delete(server.key("keys")))
    revoke_key(first.file, "one")
    for each in (second, first, second):
        await each.shared.look()
    assert first.names == second.names == ["two"]
    # Nothing is taken for revoked because the process ended between two writes.
    new_key(second.file, "three")
    await second.shared.look()
    base = first.shared._base.read()
    await first.shared.look()
    first.shared._base.change(lambda _: base)
    for each in (first, second):
        await each.shared.look()
    assert sorted(first.names) == sorted(second.names) == ["three", "two"]
    await server.aclose()
