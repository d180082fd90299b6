"""Every file in examples/ works."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.processes import Gateway, serving
from tests.missing_tools import needs_engine

EXAMPLES = Path(__file__).parent.parent / "examples"


@needs_engine
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_an_example_configuration_is_valid(path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 0, done.output
    assert "100 %" in done.output


SERVED = """
[backends.loud]
kind = "shout"
mark = "!!"
[backends.s]
kind = "scripted"
[endpoints.loud]
served_entities = [{ name = "loud", backend = "loud" }]
[endpoints.compared]
served_entities = [
  { name = "one", backend = "s", traffic_percentage = 50 },
  { name = "two", backend = "s", model = "echo", traffic_percentage = 50 },
]
experiment = { feedback = { liked = "higher" } }
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with the backend and the protocol of the examples, as after a `pip install` of both."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "gateway.toml").write_text(SERVED)
    paths = [str(folder)]
    for name in ("own_backend", "own_protocol"):
        register(EXAMPLES / name, folder)
        paths.append(str(EXAMPLES / name))
    environment = {"PYTHONPATH": os.pathsep.join([*paths, str(EXAMPLES.parent)])}
    with serving("--config", str(folder / "gateway.toml"), env=environment, log=folder / "log") as gateway:
        yield gateway


def register(package: Path, folder: Path) -> None:
    """Register a package's entry points as if it were installed in `folder`."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    written = configparser.ConfigParser()
    written.read_dict(project["entry-points"])
    installed = folder / f"{project['name'].replace('-', '_')}-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    with (installed / "entry_points.txt").open("w") as file:
        written.write(file)


@pytest.mark.slow
def test_an_own_backend_answers_every_protocol(served: Gateway) -> None:
    question = {"model": "loud", "messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8}
    assert served.ask("/v1/chat/completions", question)["choices"][0]["message"]["content"] == "HELLO WORLD!!"
    message = served.ask("/v1/messages", question | {"max_tokens": 1})
    assert (message["content"][0]["text"], message["stop_reason"]) == ("HELLO", "max_tokens")
    text = served.ask("/v2/models/loud/generate", {"text_input": "hello", "parameters": {"max_tokens": 4}})
    assert text["text_output"].endswith("HELLO!!")
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask("/v1/chat/completions", question | {"n": 2})
    assert refused.value.code == 400
    refused.value.close()


@pytest.mark.slow
def test_an_own_protocol_reaches_every_backend(served: Gateway) -> None:
    def post(path: str, body: bytes) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(served.url + path, body), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    assert post("/plain/loud", b"hello") == (200, "HELLO!!")
    assert post("/plain-stream/loud", b"hello world") == (200, "HELLO WORLD!!")
    assert post("/plain/none", b"hello") == (404, "The model 'none' does not exist.\n")
    assert post("/plain/loud", b"\xff") == (400, "The body is not UTF-8.\n")
    with urllib.request.urlopen(f"{served.url}/openapi.json") as answer:
        assert "/plain/{model}" in json.load(answer)["paths"]


@pytest.mark.slow
def test_the_program_that_compares_two_arms(served: Gateway) -> None:
    command = [sys.executable, str(EXAMPLES / "clients/ab_test.py"), served.url, "compared"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    users, one, two, verdict = done.stdout.splitlines()
    assert users.startswith("users by arm: {'")
    assert sum(int(line.split()[1]) for line in (one, two)) == 40
    assert verdict.startswith("verdict on two: keep collecting, ")


@pytest.mark.torch
def test_the_example_of_an_own_multimodal_model(tmp_path: Path) -> None:
    """It runs in a separate process, since registrations are permanent, with the entry point of a `pip install`."""
    example = EXAMPLES / "own_multimodal_model"
    register(example, tmp_path)
    paths = [str(tmp_path), str(example), str(EXAMPLES.parent)]
    command = [sys.executable, "-m", "tests.backends.native.multimodal.own_model", str(tmp_path / "checkpoint")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


def test_every_example_has_a_test() -> None:
    folders = {
        "clients",
        "own_backend",
        "own_multimodal_model",
        "own_protocol",
    }  # clients: tests/clients/test_examples.py
    assert {path.suffix or path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == {
        ".toml",
        *folders,
    }
