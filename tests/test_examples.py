"""Every file in examples/ works."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_an_example_configuration_is_valid(path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 0, done.output
    assert "100 %" in done.output


@pytest.mark.torch
def test_the_example_of_an_own_multimodal_model(tmp_path: Path) -> None:
    """It runs in a separate process, since registrations are permanent, with the entry point of a `pip install`."""
    example = EXAMPLES / "own_multimodal_model"
    points = tomllib.loads((example / "pyproject.toml").read_text())["project"]["entry-points"]
    written = configparser.ConfigParser()
    written.read_dict(points)
    installed = tmp_path / "image2seq_for_the_gateway-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: image2seq-for-the-gateway\nVersion: 1.0\n")
    with (installed / "entry_points.txt").open("w") as file:
        written.write(file)
    paths = [str(tmp_path), str(example), str(EXAMPLES.parent)]
    command = [sys.executable, "-m", "tests.backends.native.multimodal.own_model", str(tmp_path / "checkpoint")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


def test_every_example_has_a_test() -> None:
    assert {path.suffix or path.name for path in EXAMPLES.iterdir()} == {".toml", "own_multimodal_model"}
