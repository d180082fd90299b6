"""`gateway check` refuses what `serve` would refuse: every mistake with its line, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.remote.connect import connect
from backends.remote.options import RemoteOptions
from gateway.app import create_app
from gateway.check import read_file
from gateway.cli import main
from gateway.config import ConfigError
from gateway.process.orders import Orders
from gateway.process.supervisor import Supervisor
from tests.gateway.wrong_files import BAD, GOOD, changed


def check(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["check", str(path), *options])
    return result.exit_code, result.output


def test_there_are_enough_bad_files() -> None:
    assert len(BAD) >= 60


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_reported_with_its_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    change, line, words = BAD[name]
    file = tmp_path / "gateway.toml"
    file.write_text(changed(change, line))
    code, output = check(file)
    assert code == 1
    first = output.removeprefix("Error: ").splitlines()[0]
    assert words in output
    if line > 0:
        assert any(each.startswith(f"{file}:{line}: ") and words in each for each in output[7:].splitlines()), output
    # `serve` reads the same, and stops before it listens.
    served = CliRunner().invoke(main, ["serve", "--config", str(file)])
    assert (served.exit_code, served.output) == (1, output)
    assert first


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    text = GOOD.replace("port = 0", "prt = 0\nworkers = 0").replace("scripted", "scriptd").replace('"b"', '"b c"')
    file.write_text(text + "task = 'x'\nkeys = 1\n")
    _, output = check(file)
    lines = [each.removeprefix(f"{file}:").partition(":")[0] for each in output.removeprefix("Error: ").splitlines()]
    assert lines == ["2", "3", "6", "15", "17", "18"]


def test_a_good_file_passes_and_a_mark_at_its_beginning_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("\ufeff" + GOOD, "utf-8")
    assert check(file)[0] == 0


def test_offline_leaves_the_machine_out(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(GOOD.replace("[endpoints", "api_key_env = 'NOT_SET'\nca_file = '/no/such'\n[endpoints"))
    assert check(file)[0] == 1
    assert check(file, "--offline")[0] == 0
    file.write_text(GOOD.replace("port = 0", "state_file = '/no/such/state.json'"))
    assert check(file)[0] == 1
    assert check(file, "--offline")[0] == 0


def test_arms_without_numpy_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.endpoint.find_spec", lambda name: None)
    file = tmp_path / "gateway.toml"
    file.write_text(GOOD)
    code, output = check(file)
    assert (code, output.splitlines()[0].partition(" ")[2]) == (
        1,
        f"{file}:11: endpoints.chat: served entities and feedback are compared with NumPy: "
        "pip install 'interlingua[experiments]'",
    )
    assert check(file, "--offline")[0] == 0
    file.write_text(
        GOOD.replace("60 },", "100 },").replace('  { name = "b", backend = "far", traffic_percentage = 40 },\n', "")
    )
    assert check(file)[0] == 0


def test_what_comes_from_the_state_file_is_marked(tmp_path: Path) -> None:
    state, file = tmp_path / "state.json", tmp_path / "gateway.toml"
    file.write_text(GOOD.replace("port = 0", f"state_file = '{state}'"))
    assert "state.json" not in check(file)[1]
    endpoint = tomllib.loads(GOOD)["endpoints"]["chat"]
    endpoint["served_entities"][0]["traffic_percentage"], endpoint["served_entities"][1]["traffic_percentage"] = 63, 37
    state.write_bytes(msgspec.json.encode({"endpoints": {"chat": {"endpoint": endpoint, "version": 2}}}))
    code, output = check(file)
    assert code == 0, output
    assert f"(from {state})" in output
    assert " 63 %  a" in output


def test_what_the_state_file_has_deleted_and_what_leads_there_is_named(tmp_path: Path) -> None:
    state, file = tmp_path / "state.json", tmp_path / "gateway.toml"
    two = '[endpoints.two]\naliases = ["other"]\nserved_entities = [{ name = "a", backend = "toy" }]\n'
    server = f"""port = 0
state_file = '{state}'
default = "two"
mounts = [{{ prefix = "/a", endpoint = "chat" }}, {{ prefix = "/b", endpoint = "other" }}]
listeners = [{{ port = 10, endpoint = "two" }}]"""
    file.write_text(GOOD.replace("port = 0", server) + two)
    code, output = check(file)
    assert (code, "there is no endpoint" in output, "deleted" in output) == (0, False, False), output
    state.write_bytes(msgspec.json.encode({"endpoints": {"two": None}}))
    code, output = check(file)
    assert (code, output.splitlines()[-4:]) == (
        0,
        [
            f"two  (deleted by {state})",
            "server.default: there is no endpoint 'two'",
            "server.mounts[1].endpoint: there is no endpoint 'other'",
            "server.listeners[0].endpoint: there is no endpoint 'two'",
        ],
    )
    state.write_bytes(msgspec.json.encode({"endpoints": {"two": None, "chat": None}}))
    assert check(file)[1].startswith(f"chat  (deleted by {state})\n")


def test_a_filter_that_an_endpoint_of_the_state_file_needs_is_missed(tmp_path: Path) -> None:
    state, file = tmp_path / "state.json", tmp_path / "gateway.toml"
    file.write_text(GOOD.replace("port = 0", f"state_file = '{state}'"))
    endpoint = tomllib.loads(GOOD)["endpoints"]["chat"] | {"filters": ["red"]}
    state.write_bytes(msgspec.json.encode({"endpoints": {"chat": {"endpoint": endpoint, "version": 2}}}))
    code, output = check(file)
    assert (code, "endpoints.chat.filters: there is no filter 'red' (from the state file)" in output) == (1, True)


def test_backends_without_endpoints_are_served_by_what_they_list(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(GOOD.partition("[endpoints")[0])
    assert check(file) == (0, "every model that toy (scripted) lists\nevery model that far (openai) lists\n")


# --- check and serve never differ

scalars = st.one_of(
    st.integers(-2, 70000),
    st.booleans(),
    st.floats(-1, 2),
    st.sampled_from(["", "chat", "toy", "far", "a", "/x", "hash"]),
)
SECTIONS: dict[str, dict[str, Any]] = {
    "server": {
        "port": st.integers(-1, 70000),
        "workers": st.integers(-1, 70),
        "default": st.sampled_from(["chat", "chatt"]),
        "strict": st.booleans(),
        "keep_alive": st.integers(-1, 3),
        "drain_delay": st.floats(-1, 2),
        "dialects": st.dictionaries(
            st.sampled_from(["tgi", "openai", "x"]), st.sampled_from(["tgi", "mindie", "openai"])
        ),
        "mounts": st.lists(st.fixed_dictionaries({"prefix": st.sampled_from(["/a", "/b", "c", "/v1"])}), max_size=2),
        "listeners": st.lists(st.fixed_dictionaries({"port": st.integers(-1, 9)}), max_size=2),
        "dialect_options": st.dictionaries(st.sampled_from(["mindie", "x"]), st.just({"full_text": True}), max_size=1),
    },
    "backends": {
        "toy": st.fixed_dictionaries(
            {"kind": st.sampled_from(["scripted", "scripted", "vllm"])}, optional={"scripts": scalars}
        ),
        "far": st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["openai", "tgi", "triton"]),
                "url": st.sampled_from(["http://h/v1", "h", "http://h?q=1"]),
            },
            optional={
                "timeouts": st.dictionaries(st.sampled_from(["connect", "idle", "x"]), st.floats(-1, 5), max_size=2),
                "failures": scalars,
                "http2": scalars,
                "proxy": st.sampled_from(["direct", "http://p:1", "x", "http://u:p@h"]),
                "headers": st.dictionaries(st.sampled_from(["a", "b\n"]), scalars, max_size=1),
            },
        ),
    },
    "endpoints": {
        "chat": st.fixed_dictionaries(
            {
                "served_entities": st.lists(
                    st.fixed_dictionaries(
                        {"name": st.sampled_from(["a", "b", "c d"]), "backend": st.sampled_from(["toy", "far", "x"])},
                        optional={
                            "traffic_percentage": st.sampled_from([0, 40, 60, 100, 101]),
                            "task": st.sampled_from(["chat", "embeddings", "x"]),
                            "shadow": st.just({}),
                            "paired": st.fixed_dictionaries({}, optional={"share": st.floats(-1, 2)}),
                        },
                    ),
                    max_size=2,
                )
            },
            optional={
                "task": st.sampled_from(["chat", "x"]),
                "aliases": st.lists(st.sampled_from(["m", "chat", "[x"]), max_size=1),
            },
        )
    },
}
files = st.fixed_dictionaries(
    {}, optional={name: st.fixed_dictionaries({}, optional=section) for name, section in SECTIONS.items()}
)


def toml(value: Any) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{msgspec.json.encode(key).decode()} = {toml(each)}" for key, each in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return msgspec.json.encode(value).decode()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=files)
def test_no_file_passes_check_and_fails_to_serve(fields: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("".join(f"{name} = {toml(section)}\n" for name, section in fields.items()) or "\n")
    try:
        config = read_file(file, insecure=True)
    except ConfigError as error:
        # Every line of the refusal names a line of the file.
        count = file.read_text().count("\n")
        for each in str(error).splitlines():
            assert 1 <= int(each.removeprefix(f"{file}:").partition(":")[0]) <= count, each
        return
    # What a supervisor and a worker make of it, and what a backend makes at its start.
    for name, section in config.backends.items():
        if "url" in section:
            given_options = {key: value for key, value in section.items() if key != "kind"}
            connect(name, msgspec.convert(given_options, RemoteOptions))
    config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=0, listeners=()))
    Supervisor(lambda: config).close()
    create_app(msgspec.json.decode(msgspec.json.encode(Orders(config, ())), type=Orders).config)
