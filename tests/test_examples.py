"""Every file in examples/ does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_a_configuration_is_right(path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 0, done.output
    assert "100 %" in done.output


def test_nothing_lies_there_untested() -> None:
    assert {path.suffix for path in EXAMPLES.iterdir()} == {".toml"}
