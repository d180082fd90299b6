from __future__ import annotations

from gateway.config import parse
from gateway.config.changes import changes

BEFORE = """
[server]
port = 1
[backends.a]
kind = "scripted"
[backends.b]
kind = "scripted"
[endpoints.x]
served_entities = [{ name = "a", backend = "a" }]
[endpoints.y]
served_entities = [{ name = "a", backend = "a" }]
"""


def test_changes_are_named_by_section() -> None:
    after = BEFORE.replace("port = 1", "port = 2\nworkers = 3").replace("[endpoints.y]", "[endpoints.z]")
    after = after.replace('name = "a", backend = "a" }]\n[endpoints.z', 'name = "a", backend = "b" }]\n[endpoints.z')
    assert changes(parse(BEFORE), parse(after)) == {
        "added_endpoints": ["z"],
        "removed_endpoints": ["y"],
        "changed_endpoints": ["x"],
        "changed_server": ["port", "workers"],
    }
    assert changes(parse(BEFORE), parse(BEFORE)) == {}
