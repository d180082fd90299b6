"""The engines of a backend: the commands that start them, and how each is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.native.backend import NativeBackend
from backends.native.cluster.placement import ModelSpec
from gateway.config import Config
from gateway.registry import on_ray


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


def test_a_worker_follows_the_file_of_the_engines_that_ray_runs() -> None:
    options = {"model": "folder", "ray": "10.0.0.1:6379", "replicas": {"max": 3}, "engines": ["tcp://10.0.0.9:7000"]}
    (command,) = NativeBackend.engine_commands(options, Path("/run/llama-0123"))
    assert command.arguments[1:5] == (
        "-m",
        "backends.native.cluster",
        "--ray=10.0.0.1:6379",
        "--file=/run/llama-0123-engines",
    )
    spec = msgspec.json.decode(command.arguments[5].removeprefix("--spec="), type=ModelSpec)
    assert (spec.name, spec.options.model, spec.scaling.max) == ("folder", "folder", 3)
    given = NativeBackend.shared_options(options, (command,))
    assert NativeBackend.engine_commands(given, Path("/run/e")) == ()
    assert given == {
        "model": "folder",
        "replicas": 0,
        "engines": ["tcp://10.0.0.9:7000"],
        "secret_env": "ENGINE_SECRET",
        "engines_file": "/run/llama-0123-engines",
    }
    assert list(NativeBackend("b", given).engine_states) == ["10.0.0.9:7000"]


@pytest.mark.parametrize(
    ("section", "placed"),
    [
        ({}, True),
        ({"replicas": 2}, True),
        ({"replicas": {"max": 2}}, True),
        ({"engines": ["tcp://a:1"], "replicas": 1}, True),
        ({"engines": ["tcp://a:1"]}, False),
        ({"engines_file": "list"}, False),
        ({"engine": "inprocess"}, False),
    ],
)
def test_which_backends_a_cluster_runs_the_engines_of(section: dict[str, Any], placed: bool) -> None:
    config = Config(backends={"n": {"kind": "native", **section}, "s": {"kind": "scripted"}})
    found = on_ray(config, "auto").backends
    assert found["n"] == {"kind": "native", **section, **({"ray": "auto"} if placed else {})}
    assert found["s"] == {"kind": "scripted"}
    said = {"kind": "native", "ray": "10.0.0.1:6379"}
    assert on_ray(Config(backends={"n": said}), "auto").backends == {"n": said}, "the file says more"
