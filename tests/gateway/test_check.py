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

GOOD = """\
[server]
port = 0

[backends.toy]
kind = "scripted"

[backends.far]
kind = "openai"
url = "http://127.0.0.1:9/v1"

[endpoints.chat]
served_entities = [
  { name = "a", backend = "toy", traffic_percentage = 60 },
  { name = "b", backend = "far", traffic_percentage = 40 },
]
"""
END = GOOD.count("\n") + 1  # the line of what is appended

Change = tuple[str, str]
BAD: dict[str, tuple[Change | str, int, str]] = {
    # --- syntax, and other languages
    "bracket": (("[backends.toy]", "[backends.toy"), 4, "Expected"),
    "quote": (('kind = "scripted"', 'kind = "scripted'), 5, "Illegal character"),
    "key twice": (("port = 0", "port = 0\nport = 1"), 3, "Cannot overwrite"),
    "section twice": ("[backends.toy]\n", END, "Cannot declare"),
    "json": ('{"model_list": []}\n', -1, "this is JSON, and the gateway reads TOML"),
    "yaml": (
        "model_list:\n  - model_name: x\n",
        -1,
        "this is YAML, and the gateway reads TOML",
    ),
    "other yaml": ("server:\n  port: 1\n", -1, "this is YAML"),
    "mindie": ('{"ServerConfig": {}}\n', -1, "this is JSON"),
    "cut": ("[server.limits]\nmax_body = 80", END + 1, "cut"),
    "nothing": ("\n", -1, "no endpoints and no backends"),
    # --- unknown keys, with a suggestion from the right table
    "backend": ("[backend.local]\nkind = 'x'\n", END, "backend: unknown field; did you mean 'backends'?"),
    "endpoint": ("[endpoint.x]\n", END, "endpoint: unknown field; did you mean 'endpoints'?"),
    "ports": (("port = 0", "ports = 0"), 2, "server.ports: unknown field; did you mean 'port'?"),
    "worker": (("port = 0", "worker = 2"), 2, "did you mean 'workers'?"),
    "limits": ("[server.limits]\nmax_bodyy = 1\n", END + 1, "did you mean 'max_body'?"),
    "entity": (('name = "a"', 'nam = "a"'), 13, "endpoints.chat.served_entities[0].nam: unknown field; did you mean"),
    "no name": (('name = "a", ', ""), 13, "endpoints.chat.served_entities[0]: `name` is missing"),
    "timeout": (
        ("[endpoints", "timeout = 3\n[endpoints"),
        11,
        "backends.far.timeout: unknown field; did you mean 'timeouts'?",
    ),
    "api_key": (("[endpoints", "api_key = 'x'\n[endpoints"), 11, "did you mean 'api_key_env'?"),
    "connect": (
        ("[endpoints", "timeouts.conect = 1\n[endpoints"),
        11,
        "timeouts.conect: unknown field; did you mean 'connect'?",
    ),
    "share": (
        "experiment = { margn = 0.1 }\n",
        END,
        "endpoints.chat.experiment.margn: unknown field; did you mean 'margin'?",
    ),
    "guardrail": ("experiment = { guardrail = { worse = 0.1 } }\n", END, "experiment.guardrail.worse: unknown field"),
    # --- values
    "port text": (("port = 0", 'port = "80"'), 2, "server.port: Expected `int`, got `str`"),
    "port range": (("port = 0", "port = 70000"), 2, "server.port: Expected `int` <= 65535"),
    "workers": (("port = 0", "workers = 0"), 2, "server.workers: Expected `int` >= 1"),
    "task": ("task = 'chatt'\n", END, "'chatt' is none of chat, completions, embeddings, rerank, classify; did you"),
    "routing": ("routing = 'random'\n", END, "'random' is none of hash"),
    "percent": (("= 60", "= 160"), 13, "traffic_percentage: Expected `int` <= 100"),
    "entity name": (('name = "a"', 'name = "a b"'), 13, "served_entities[0].name: Expected `str` matching"),
    "entities": (
        ("served_entities = [", "aliases = ['x y']\nserved_entities = ["),
        12,
        "aliases[0]: Expected `str` matching",
    ),
    "entities text": ("[endpoints.more]\nserved_entities = 'a'\n", END + 1, "Expected `array`, got `str`"),
    "no entities": ("[endpoints.more]\ntask = 'chat'\n", END, "endpoints.more: `served_entities` is missing"),
    "empty entities": ("[endpoints.more]\nserved_entities = []\n", END + 1, "`served_entities` is empty"),
    "drain": (("port = 0", "drain_timeout = -1.0"), 2, "Expected `float` >= 0"),
    "cors": (("port = 0", "cors_origins = ['x']"), 2, "cors_origins[0]: Expected `str` matching"),
    "mount": ("[[server.mounts]]\nprefix = 'x'\n", END + 1, "server.mounts[0].prefix: Expected `str` matching"),
    "second mount": (
        "[[server.mounts]]\nprefix = '/x'\n[[server.mounts]]\nprefix = 'y'\n",
        END + 3,
        "mounts[1].prefix",
    ),
    "timeouts": (
        ("[endpoints", 'timeouts.connect = "2s"\n[endpoints'),
        11,
        "timeouts.connect: Expected `float`, got `str`",
    ),
    "features": (("[endpoints", 'features = ["chats"]\n[endpoints'), 11, "features"),
    "raw text": (("[endpoints", 'raw_text = "chat"\n[endpoints'), 11, "'chat' is none of as_chat, refuse"),
    "header": (("[endpoints", "headers = { a = 1 }\n[endpoints"), 11, "headers.a"),
    # --- contradictions
    "sum": (("= 60", "= 50"), 11, "traffic percentages add up to 90, not 100"),
    "same name": (('name = "b"', 'name = "a"'), 11, "two served entities have the same name"),
    "no backend": (('backend = "far"', 'backend = "fra"'), 14, "no backend is called 'fra'; did you mean 'far'?"),
    "shadow": (('"b", backend = "far"', '"b", shadow = {}, backend = "far"'), 14, "a shadow answers no client"),
    "paired first": (('"a", backend', '"a", paired = {}, backend'), 13, "the one that others are `paired` with"),
    "tasks": (('"b", backend', '"b", task = "embeddings", backend'), 11, "served entities must have the same task"),
    "unit": ("experiment = { unit = ['users'] }\n", END, "there is no unit 'users'"),
    "ramp": ("experiment = { ramp = { arm = 'b' } }\n", END, "a `ramp` needs a `state_file`"),
    "ramp arm": ("experiment = { ramp = { arm = 'c' } }\n", END, "'c' is none of the served entities after the first"),
    "metric": ("experiment = { guardrails = [{ metric = 'x', worse_than = 0.1 }] }\n", END, "there is no metric 'x'"),
    "alias": (
        "aliases = ['m']\n[endpoints.m]\nserved_entities = [{ name = 'a', backend = 'toy' }]\n",
        END,
        "the name of an endpoint",
    ),
    "mounts twice": ("[[server.mounts]]\nprefix = '/x'\n" * 2, END + 2, "two of them have the prefix '/x'"),
    "port twice": (
        "[[server.listeners]]\nport = 9\n[[server.listeners]]\nport = 9\n",
        END + 2,
        "the port 9 is taken twice",
    ),
    "no certificate": (("port = 0", "ssl_keyfile = 'server.key'"), 2, "`ssl_keyfile` needs an `ssl_certfile`"),
    "server certificate": (("port = 0", "ssl_certfile = 'none.pem'"), 2, "there is no file none.pem"),
    "default": (("port = 0", "default = 'chatt'"), 2, "there is no endpoint 'chatt'; did you mean 'chat'?"),
    "export": (("port = 0", "workers = 4\nexport = { folder = '/tmp', files = 4 }"), 3, "`files` must be more"),
    "client key": (("[endpoints", "client_key = 'x'\n[endpoints"), 7, "`client_key` needs a `client_cert`"),
    "proxy password": (("[endpoints", "proxy = 'http://u:p@h:1'\n[endpoints"), 7, "is a secret"),
    "url": (("http://127.0.0.1:9/v1", "127.0.0.1:9"), 7, "not an http or https URL"),
    # --- protocols and kinds
    "kind": (('kind = "openai"', 'kind = "opena"'), 8, "no backend of kind 'opena'"),
    "vllm": (('kind = "openai"', 'kind = "vllm"'), 8, "for vllm say 'openai'"),
    "no kind": (('kind = "openai"\n', ""), 7, "`kind` is missing"),
    "no url": (('url = "http://127.0.0.1:9/v1"\n', ""), 7, "give `url`, or `urls` for several servers"),
    "dialect": ("[server.dialects]\ntgi = 'mindi'\n", END + 1, "there is no dialect 'mindi'"),
    "protocol": ("[server.dialects]\ntgii = 'mindie'\n", END + 1, "there is no protocol 'tgii'"),
    "dialect field": ("[server.dialect_options.mindie]\nfulltext = true\n", END, "did you mean 'full_text'?"),
    "mount dialect": ("[[server.mounts]]\nprefix = '/x'\ndialects = { tgi = 'x' }\n", END, "there is no dialect 'x'"),
    "template": (("[endpoints", "chat_template = 'x'\n[endpoints"), 7, "the server renders chats itself"),
    # --- this machine
    "keys": (("port = 0", "keys_env = 'NOT_SET'"), 2, "the environment variable NOT_SET"),
    "key": (("[endpoints", "api_key_env = 'NOT_SET'\n[endpoints"), 11, "the environment variable NOT_SET is not set"),
    "second key": (("[endpoints", "api_key_env = ['HOME', 'NOT_SET']\n[endpoints"), 11, "variable NOT_SET is not set"),
    "header variable": (("[endpoints", "headers = { x = { env = 'NOT_SET' } }\n[endpoints"), 11, "NOT_SET is not set"),
    "ca": (("[endpoints", "ca_file = '/no/such.pem'\n[endpoints"), 11, "there is no file /no/such.pem"),
    "certificate": (("[endpoints", "client_cert = '/dev/null'\n[endpoints"), 11, "there is no file /dev/null"),
    "tokenizer": (("[endpoints", "tokenizer = '/no/such'\n[endpoints"), 11, "there is no file or folder /no/such"),
    "model": ("[backends.n]\nkind = 'native'\nmodel = '/no/such'\n", END + 2, "there is no folder or file '/no/such'"),
    "not a model": ("[backends.n]\nkind = 'native'\nmodel = '/etc'\n", END + 2, "holds no config.json"),
    "state": (("port = 0", "state_file = '/no/such/state.json'"), 2, "the folder '/no/such' cannot be written to"),
    "usage": ("[usage]\ndatabase = '/dev/null/usage'\n", END + 1, "the folder '/dev/null' cannot be written to"),
    "usage scheme": ("[usage]\ndatabase = 'mysql://x/y'\n", END + 1, "usage.database: it must be a file of SQLite"),
    "retention": ("[usage]\nretention = 30\n", END + 1, "usage.retention: Expected `str`"),
    "users": ("[usage]\nusers = 'hash'\n", END + 1, "'hash' is none of hashed, plain, none; did you mean 'hashed'?"),
    "public": (("port = 0", "host = '0.0.0.0'"), 2, "other machines can reach this address"),
    "host": (("port = 0", "host = '203.0.113.7'\nkeys_env = 'HOME'"), 2, "cannot listen on 203.0.113.7"),
}


def changed(change: Change | str, line: int) -> str:
    if isinstance(change, tuple):
        assert change[0] in GOOD
        return GOOD.replace(*change, 1)
    return change if line < 0 else GOOD + change


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
