"""The engines of a backend: the commands that start them, and how each is reached."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backends.native.backend import NativeBackend


def test_the_commands_for_shared_engines() -> None:
    (command,) = NativeBackend.engine_commands({"model": "folder", "threads": 3}, Path("/run/engine"))
    assert command.arguments[1:5] == ("-m", "backends.native.engine.serving", "--socket", "/run/engine-0.sock")
    assert {"--model=folder", "--threads=3", "--prefix-caching"} <= set(command.arguments)
    assert not command.warm
    (warm,) = NativeBackend.engine_commands({"warm_engine": True}, Path("s"))
    assert warm.warm
    assert "--standby=imported" in warm.arguments
    (loaded,) = NativeBackend.engine_commands({"warm_engine": "loaded"}, Path("s"))
    assert loaded.warm
    assert "--standby=loaded" in loaded.arguments
    assert NativeBackend.engine_commands({"engine": "inprocess"}, Path("s")) == ()
    assert NativeBackend.engine_commands({"socket": "/run/other"}, Path("s")) == ()
    with pytest.raises(msgspec.ValidationError, match="thread"):
        NativeBackend.engine_commands({"thread": 3}, Path("s"))


def test_a_worker_is_given_the_addresses_of_the_engines_that_its_supervisor_started() -> None:
    options = {"model": "folder", "replicas": 2, "engines": ["unix:///run/other"]}
    commands = NativeBackend.engine_commands(options, Path("/run/e"))
    assert [command.address for command in commands] == ["unix:///run/e-0.sock", "unix:///run/e-1.sock"]
    given = NativeBackend.shared_options(options, commands)
    assert NativeBackend.engine_commands(given, Path("/run/e")) == ()
    assert given["engines"] == ["unix:///run/e-0.sock", "unix:///run/e-1.sock", "unix:///run/other"]
    assert list(NativeBackend("b", given).engine_states) == ["0", "1", "2"]
