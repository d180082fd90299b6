"""The shell blocks of the documents: every command exists, with its options, and runs.

A block after the comment `<!-- run by tests/shell: REASON -->` needs more than a gateway, and is run by
`tests/shell/test_machine.py`. Blocks of YAML and INI are read as what they are for.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from backends.native.demo import WEIGHTS
from gateway.app import create_app
from gateway.cli import main
from gateway.config import parse
from gateway.usage.spool import Spool
from tests.gateway.serving import listening
from tests.gateway.usage.records import record
from tests.missing_tools import missing, needs_engine
from tests.shell.blocks import ROOT, Block, blocks

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
KEY = "key-of-an-admin"
LONG = ("gateway serve", "make", "git", "cd", "pip install", "python")
"""Commands that run until they are stopped (`tests/shell/test_servers.py`), that test or that install."""

SERVED = """
[server]
admin_keys_env = "ADMIN_KEY"
state_file = "{folder}/state.json"
[usage]
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [
  {{ name = "a", backend = "s", traffic_percentage = 100 }}, {{ name = "b", backend = "s", traffic_percentage = 0 }}
]
experiment = {{ ramp = {{ arm = "b" }} }}
"""


BLOCKS = [pytest.param(block, id=f"{block.page}-{number}") for number, block in enumerate(blocks("sh"))]
RUN = [
    (block, command)
    for block in blocks("sh")
    if block.why is None
    for command in block.commands()
    if not " ".join(command.words).startswith(LONG)
]


def files_of_peers(folder: Path) -> None:
    """Write what the importers read, under the names of the page."""
    (folder / "config.yaml").write_text(
        "model_list: [{model_name: chat, litellm_params: {model: openai/m, api_base: 'http://127.0.0.1:9/v1'}}]\n"
    )
    model = folder / "model_repository/toy"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "vllm"\n')
    (model / "1/model.json").write_text(json.dumps({"model": str(WEIGHTS)}))
    deployed = {"ModelConfig": [{"modelName": "toy", "modelWeightPath": str(WEIGHTS)}]}
    (folder / "config.json").write_text(json.dumps({"BackendConfig": {"ModelDeployConfig": deployed}}))


def records_of_usage(folder: Path) -> None:
    """Write a database of usage, whose records still wait, and the configuration that names it."""
    spool = Spool(folder / "usage.sqlite3.spool", 1 << 20)
    spool.append(record(outcome="timeout"))
    spool.close()
    (folder / "usage.sqlite3").touch()
    used = '[usage]\ndatabase = "usage.sqlite3"\n[backends.s]\nkind = "scripted"\n'
    (folder / "gateway.toml").write_text(used)


LAID_OUT: dict[str, Callable[[Path], None]] = {
    "docs/guides/migrating.md": files_of_peers,
    "docs/usage.md": records_of_usage,
}
"""What the commands of a page read."""


def test_every_block_has_a_kind() -> None:
    """Without one, nothing would check it."""
    kinds = {(Path(block.page).name, block.kind) for block in blocks()}
    assert {kind for _, kind in kinds} <= {"sh", "toml", "python", "yaml", "ini"}
    # Those that tests/clients (test_readme.py, test_batches.py, test_openai_stored.py) and
    # tests/gateway/filters/test_chain.py run.
    python = {name for name, kind in kinds if kind == "python"}
    assert python == {"README.md", "images.md", "filters.md", "batches.md", "stored.md"}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_shell_and_its_commands_exist(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (program, *arguments), _ in block.commands():
        if program == "gateway":
            _parse(main, arguments)
        elif program == "make":
            assert {word for word in arguments if "=" not in word} <= TARGETS


def _parse(command: click.Command, arguments: list[str]) -> None:
    """Fails if there is no such command, or it has no such option."""
    context = command.context_class(command, **command.context_settings)
    if isinstance(command, click.Group) and not arguments[0].startswith("-"):
        found = command.get_command(context, arguments[0])
        assert found is not None, arguments
        _parse(found, arguments[1:])
    else:
        command.make_parser(context).parse_args(list(arguments))


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("page", sorted({block.page for block, _ in RUN}))
def test_commands_of_the_gateway_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    LAID_OUT.get(page, Path)(tmp_path)
    monkeypatch.chdir(tmp_path)
    for (program, *arguments), into in (command for block, command in RUN if block.page == page):
        if program == "gateway" and not asks(arguments):
            done = CliRunner().invoke(main, arguments, input="y\n")
            assert done.exit_code == 0, f"{arguments}: {done.output}"
            if into is not None:
                Path(into).write_text(done.stdout)
        else:
            assert program == "export" or asks(arguments), f"nothing runs {program}: say why not"


def test_there_are_commands_to_run() -> None:
    assert {"README.md", *LAID_OUT} < {block.page for block, _ in RUN}


def asks(words: list[str]) -> bool:
    """Whether a command talks to a server on its usual port."""
    return any(re.search(r"(localhost|127\.0\.0\.1):8000", word) for word in words)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason=missing("curl"))
async def test_commands_that_ask_a_server_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", KEY)
    app = create_app(parse(SERVED.format(folder=tmp_path)), folder=tmp_path / "workers")
    found = [(block, words) for block, (words, _) in RUN if words[0] != "export" and asks(words)]
    assert {words[0] for _, words in found} == {"curl", "gateway"}
    async with listening(app) as port:
        for block, given in found:
            words = [re.sub(r"(localhost|127\.0\.0\.1):8000", f"127.0.0.1:{port}", word) for word in given]
            words = [word.replace("$ADMIN_KEY", KEY).replace("$KEY", KEY) for word in words]
            if words[0] == "curl":
                process = await asyncio.create_subprocess_exec(
                    *words, "--silent", "--fail-with-body", stdout=asyncio.subprocess.PIPE
                )
                shown, _ = await process.communicate()
                assert process.returncode == 0, f"{block.page}: {words}: {shown.decode()}"
            elif words[0] == "gateway":
                done = await asyncio.to_thread(CliRunner().invoke, main, words[1:])
                assert done.exit_code == 0, f"{block.page}: {words}: {done.output}"


def test_units_and_entry_points_are_read_as_what_they_are_for() -> None:
    entry_points, unit = (block.code for block in blocks("ini"))
    (group,) = tomllib.loads(entry_points)["project"]["entry-points"]
    assert group == "gateway.filters"
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert settings.keys() <= set(
        re.findall(r"^(\w+)=", (ROOT / "deploy/systemd/interlingua.service").read_text(), re.MULTILINE)
    )
    for name in ("ExecStart", "ExecReload"):
        program, *arguments = shlex.split(settings[name])
        assert Path(program).name == "gateway"
        _parse(main, arguments)


@pytest.mark.skipif(shutil.which("promtool") is None, reason=missing("promtool (prometheus)"))
def test_yaml_is_read_by_its_program(tmp_path: Path) -> None:
    client, scrape = (block.code for block in blocks("yaml"))
    assert yaml.safe_load(client)["models"][0]["apiBase"] == "http://127.0.0.1:8000/v1"
    (tmp_path / "key").write_text("one")
    file = tmp_path / "prometheus.yml"
    file.write_text(re.sub(r"(credentials_file:) \S+", rf"\1 {tmp_path}/key", scrape))
    subprocess.run(["promtool", "check", "config", file], check=True)
