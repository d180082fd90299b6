"""`gateway init`, `gateway completion` and the help: what a newcomer types first."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from gateway.cli import _COMMANDS, main
from gateway.cli.init import _PARTS


@pytest.mark.parametrize("kind", _PARTS)
def test_a_configuration_to_start_from_passes_the_check(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    done = CliRunner().invoke(main, ["init", kind, "--output", str(file)])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(main, ["check", "--offline", str(file)])
    assert checked.exit_code == 0, checked.output
    # What is commented out are keys, too.
    text = file.read_text()
    for line in ("keys_env", "dtype", "context_length", "api_key_env", "timeouts", "aliases"):
        text = text.replace(f"# {line} =", f"{line} =")
    file.write_text(text)
    checked = CliRunner().invoke(main, ["check", "--offline", str(file)])
    assert checked.exit_code == 0, checked.output
    again = CliRunner().invoke(main, ["init", kind, "--output", str(file)])
    assert (again.exit_code, again.stderr) == (1, f"Error: {file} is there already, and is not replaced\n")


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_has_help_and_names_its_variables(name: str) -> None:
    done = CliRunner().invoke(main, [name, "--help"], terminal_width=100)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[2].strip()
    command = main.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    for parameter in command.params:
        if not getattr(parameter, "hidden", True):
            assert parameter.envvar in done.stdout.replace("\n", " ").replace("  ", "")


def test_the_list_of_commands_is_not_cut_at_100_columns() -> None:
    done = CliRunner().invoke(main, ["--help"], terminal_width=100)
    assert all(f"  {name} " in done.stdout for name in _COMMANDS)
    assert "Examples:" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str) -> None:
    assert "_GATEWAY_COMPLETE" in CliRunner().invoke(main, ["completion", shell]).stdout


def test_commands_and_options_are_completed() -> None:
    shell = get_completion_class("bash")
    assert shell is not None
    complete = shell(main, {}, "gateway", "_GATEWAY_COMPLETE").get_completions
    assert "--max-model-len" in [item.value for item in complete(["serve"], "--max")]
    assert [item.value for item in complete(["import"], "l")] == ["litellm"]
