"""Reading the options of a native backend."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from backends.autoscaling import Scaling
from backends.native.backend import NativeBackend
from backends.native.cluster.placement import Resources
from backends.native.options import NativeOptions, problems_of, read_options
from backends.native.protocol.engine_options import EngineOptions
from tests.missing_tools import needs_engine

LORA = {"support": "./lora/support"}
PER_SEQUENCE = 'execution_path = "per_sequence"'


@pytest.mark.parametrize(
    ("given", "read", "warnings"),
    [
        ({"adapters": LORA}, {"lora_adapters": LORA}, [("adapters", "lora_adapters")]),
        ({"patience": 5.0}, {"reconnect_timeout": 5.0}, [("patience", "reconnect_timeout")]),
        ({"tier": "packed"}, {"execution_path": "packed"}, [("tier", "execution_path")]),
        ({"execution_path": "cache"}, {"execution_path": "per_sequence"}, [('execution_path = "cache"', PER_SEQUENCE)]),
        (
            {"tier": "cache"},
            {"execution_path": "per_sequence"},
            [("tier", "execution_path"), ('execution_path = "cache"', PER_SEQUENCE)],
        ),
    ],
)
def test_former_names_and_values_are_read_with_a_warning(
    given: dict[str, Any], read: dict[str, Any], warnings: list[tuple[str, str]]
) -> None:
    with capture_logs() as logs:
        assert read_options(given) == NativeOptions(**read)
    assert logs == [
        {"event": "backend.option_deprecated", "log_level": "warning", "option": option, "use": use}
        for option, use in warnings
    ]


def test_present_names_are_read_without_a_warning() -> None:
    present: dict[str, Any] = {"lora_adapters": LORA, "execution_path": "per_sequence", "reconnect_timeout": 5.0}
    with capture_logs() as logs:
        assert read_options(present) == NativeOptions(**present)
    assert logs == []


def test_the_former_name_reaches_a_shared_engine_process_too() -> None:
    (command,) = NativeBackend.engine_commands({"adapters": LORA}, Path("socket"))
    assert f"--lora-adapters={msgspec.json.encode(LORA).decode()}" in command.arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adapters": LORA, "lora_adapters": LORA}, "`adapters` is the former name of `lora_adapters`"),
        ({"tier": "packed", "execution_path": "packed"}, "`tier` is the former name of `execution_path`"),
        ({"patience": 3.0, "reconnect_timeout": 3.0}, "`patience` is the former name of `reconnect_timeout`"),
        ({"adapters": 3}, "lora_adapters"),
        ({"adaptor": {}}, "unknown field `adaptor`"),
        ({"engines": ["tcp://nowhere"]}, "no address of an engine"),
        ({"engines": ["unix:///a", "unix:///a"]}, "twice"),
        ({"replicas": 0}, "without an engine"),
        ({"engine": "inprocess", "replicas": 2}, "no replicas"),
        ({"engine": "inprocess", "ray": "auto"}, "no replicas"),
        ({"replicas": {"min": 1, "max": 2}}, "are for engines on Ray: set `ray`"),
        ({"resources": {"num_gpus": 1}}, "are for engines on Ray: set `ray`"),
        ({"ray": "auto", "replicas": {"min": 3}}, "must be at least `min`"),
        ({"ray": "10.0.0.1"}, "matching regex"),
        ({"ray": "auto", "warm_engine": True}, "no `warm_engine`"),
        ({"ray": "auto", "engines_file": "list"}, "no `engines_file`"),
        ({"ray": "auto", "tensor_parallel": 2}, "cannot be placed on Ray"),
        ({"ray": "auto", "device": "cuda"}, "needs `resources = { num_gpus = 1 }`"),
        ({"engine": "inprocess", "tensor_parallel": 2}, "takes processes"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
    ],
)
def test_wrong_options_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        read_options(given)


def test_the_engine_gets_its_own_options_only() -> None:
    options = read_options({"model": "folder", "heartbeat": 2.0, "max_sequences": 3})
    assert options.own_engines == (EngineOptions(model="folder", max_sequences=3),)


def test_engines_of_ones_own_and_engines_that_others_run() -> None:
    assert [own.replica_number for own in read_options({"replicas": 2}).own_engines] == [0, 1]
    assert read_options({"engines": ["tcp://a:1"]}).own_engines == ()
    assert read_options({"socket": "/run/s"}).elsewhere == ("unix:///run/s",)
    both = read_options({"engines": ["tcp://a:1"], "replicas": 1})
    assert (len(both.own_engines), both.elsewhere) == (1, ("tcp://a:1",))


@needs_engine
def test_engines_over_tcp_need_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"engines": ["tcp://127.0.0.1:7000"]}
    (problem,) = problems_of(options)
    assert problem[0] == ("secret_env",)
    monkeypatch.setenv("THE_SECRET", "too short")
    (problem,) = problems_of({**options, "secret_env": "THE_SECRET"})
    assert "has 9 characters" in problem[1]
    monkeypatch.setenv("THE_SECRET", "long enough, is it")
    assert list(problems_of({**options, "secret_env": "THE_SECRET"})) == []


def test_what_is_placed_on_ray() -> None:
    options = read_options({"model": "folder", "threads": 3, "ray": "10.0.0.1:6379", "replicas": 2, "hung_after": 9.0})
    assert options.own_engines == ()
    placed = options.placed("llama")
    assert placed.options == EngineOptions(model="folder", threads=3)
    assert (placed.name, placed.secret_env, placed.hung_after) == ("llama", "ENGINE_SECRET", 9.0)
    assert (placed.scaling.min, placed.scaling.max, placed.resources) == (2, 2, Resources())
    limits = read_options({"ray": "auto", "replicas": {"max": 5}, "resources": {"num_gpus": 0.5}, "secret_env": "S"})
    assert limits.placed("").scaling == Scaling(max=5)
    assert limits.placed("").resources == Resources(num_gpus=0.5)
    assert limits.placed("").secret_env == "S"
    assert read_options({"ray": "auto"}).placed("").scaling == Scaling()


@needs_engine
def test_engines_on_ray_need_a_secret_and_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_SECRET", raising=False)
    found = dict(problems_of({"ray": "auto"}))
    assert "ENGINE_SECRET is not set" in found[("secret_env",)]
    lacking = {} if find_spec("ray") else {("ray",): "engines on Ray need it: pip install 'interlingua[cluster]'"}
    monkeypatch.setenv("ENGINE_SECRET", "long enough, is it")
    assert dict(problems_of({"ray": "auto"})) == lacking


@needs_engine
def test_the_check_refuses_a_model_whose_heads_cannot_be_split() -> None:
    assert list(problems_of({"tensor_parallel": 2})) == []  # the bundled model has 6 heads, and 2 for keys
    for options, why in (
        ({"tensor_parallel": 3}, "its num_key_value_heads of 2 cannot be divided by 3"),
        ({"tensor_parallel": 2, "lora_adapters": LORA}, "LoRA adapters are not split"),
    ):
        ((path, problem),) = problems_of(options)
        assert path == ("tensor_parallel",)
        assert problem.endswith(why)
