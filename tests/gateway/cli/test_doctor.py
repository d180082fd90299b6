"""`gateway doctor` prints a table or JSON, and exits with 1 where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_model_on_a_cpu(tmp_path: Path) -> None:
    from tests.backends.native.engine.pretended.engines import save

    words = ["doctor", str(save("llama", tmp_path)), "--device", "cpu", "--steps", "1"]
    result = CliRunner().invoke(main, [*words, "--json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["faults"], found["machine"]["device"]) == (0, [], "cpu")
    assert [each["sequences"] for each in found["decoding"]] == [1, 8, 32]


def test_a_folder_without_a_model_and_a_device_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", str(tmp_path), "--device", "cpu"])
    assert result.exit_code == 1
    assert "WRONG      the model cannot be run" in result.stdout
    assert "top_k_top_p" in result.stdout
    absent = CliRunner().invoke(main, ["doctor", "--device", "mps"])
    assert absent.exit_code == 1
    assert "torch finds no MPS device" in absent.stderr
