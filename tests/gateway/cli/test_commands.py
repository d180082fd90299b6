"""What the commands print, and what they refuse, without starting a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import gateway
from gateway.cli import main
from tests.missing_tools import needs_engine

CONFIG = """
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [
  { name = "a", backend = "s", traffic_percentage = 80 },
  { name = "b", backend = "s", model = "echo", traffic_percentage = 20, paired = { share = 0.5 } },
  { name = "c", backend = "s", traffic_percentage = 0, shadow = {} },
]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG)
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_version_is_the_distributions() -> None:
    assert run("--version").output == f"gateway, version {gateway.__version__}\n"


def test_check_lists_what_would_be_served(file: Path) -> None:
    result = run("check", file)
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            "chat  (chat)",
            "   80 %  a: chat on s (scripted)",
            "   20 %  b: echo on s (scripted), 50% paired",
            "    0 %  c: chat on s (scripted), a shadow",
        ],
    )


def test_check_says_what_is_wrong(file: Path) -> None:
    file.write_text(CONFIG.replace("= 80", "= 70"))
    result = run("check", file)
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {file}:4: endpoints.chat: traffic percentages add up to 90, not 100\n",
    )


@needs_engine
def test_a_model_that_cannot_be_read_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for words in (("serve", tmp_path), ("serve", "--model", tmp_path), ("models", "get", tmp_path)):
        result = run(*words)
        assert (result.exit_code, result.output) == (
            1,
            f"Error: '{tmp_path}' holds no config.json and no *.gguf: it is no checkpoint\n",
        )
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "hqq"}}')
    (tmp_path / "model.safetensors").touch()
    file = tmp_path / "gateway.toml"
    file.write_text(f'[backends.x]\nkind = "native"\nmodel = "{tmp_path}"\n[endpoints.y]\n')
    file.write_text(file.read_text() + 'served_entities = [{ name = "a", backend = "x" }]\n')
    for words in (("check", file), ("serve", "--config", file)):
        result = run(*words)
        assert result.exit_code == 1
        text = f"backends.x: '{tmp_path}' is quantized by 'hqq', which is not read"
        assert result.output.startswith(f"Error: {file}:3: {text}")


def test_explain_names_the_winner_first_and_every_score(file: Path) -> None:
    result = run("explain", "--config", file, "--endpoint", "chat", "--unit", "somebody")
    first, *_, a, b, c = result.output.splitlines()
    assert first in {f"chat: unit 'somebody' is answered by {arm}" for arm in "ab"}
    assert [line.split()[:2] for line in (a, b, c)] == [["a", "80"], ["b", "20"], ["c", "0"]]


def test_explain_suggests_the_nearest_endpoint(file: Path) -> None:
    result = run("explain", "--config", file, "--endpoint", "chatt", "--unit", "u")
    assert result.exit_code == 1
    assert result.output == f"Error: {file}: there is no endpoint 'chatt'; did you mean 'chat'?\n"


@pytest.mark.slow
def test_openapi_prints_the_document() -> None:
    document = json.loads(run("openapi").output)
    assert document["info"] == {"title": "Interlingua", "version": gateway.__version__}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "x", "--backend", "http://x"], "exclude each other"),
        (["--backend-key-env", "KEY"], "--backend-key-env needs --backend"),
        (["--config", "x", "--name", "mine"], "--served-model-name names a model that has no --config"),
        (["--workers", "0"], "0 is not in the range"),
        (["./here", "--model", "./there"], "give the model once"),
        (["gateway.toml"], "give a configuration by --config"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: list[str], message: str) -> None:
    result = run("serve", *words)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("WORKERS", "none", "'none' is not a valid integer range"),
        ("CONFIG", "/no/such.toml", "/no/such.toml: cannot be read"),
        ("SERVED_MODEL_NAME", "mine", "--served-model-name names a model that has no --config"),
    ],
)
def test_an_option_can_come_from_the_environment(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"INTERLINGUA_SERVE_{name}", value)
    result = run("serve", *(["--config", "x"] if name == "SERVED_MODEL_NAME" else []))
    assert result.exit_code != 0
    assert words in result.output
    assert f"INTERLINGUA_SERVE_{name}" in run("serve", "--help").output
