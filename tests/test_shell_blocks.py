"""The shell blocks of the documents: every command exists, with its options, and what can run does.

A block after the comment `<!-- not run: REASON -->` is parsed only.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from gateway.app import create_app
from gateway.cli import main
from gateway.config import parse
from tests.gateway.serving import listening
from tests.missing_tools import missing

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<why>[^\n]+) -->\n)?^(?P<indent> *)```(?P<kind>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
KEY = "key-of-an-admin"
LONG = ("gateway serve", "make", "git", "cd", "pip install", "python")
"""Commands that run until they are stopped, or are tested as a whole elsewhere."""

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


class Block(NamedTuple):
    """A shell block of a page, and why it is not run, if so."""

    page: str
    code: str
    why: str | None

    def commands(self) -> Iterator[list[str]]:
        """Its simple commands, as words, without assignments and redirections."""
        for line in self.code.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:&&|\|)\s", re.sub(r"\s>\s*\S+$", "", re.sub(r"(^|\s+)#.*$", "", line))):
                words = shlex.split(part)
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words:
                    yield [Path(words[0]).name, *words[1:]]


def blocks() -> Iterator[Block]:
    for page in PAGES:
        for found in _BLOCK.finditer(page.read_text()):
            if found["kind"] == "sh":
                yield Block(str(page.relative_to(ROOT)), found["code"], found["why"])


BLOCKS = [pytest.param(block, id=f"{block.page}-{number}") for number, block in enumerate(blocks())]
RUN = [
    (block, words)
    for block in blocks()
    if block.why is None
    for words in block.commands()
    if not " ".join(words).startswith(LONG)
]


def test_every_block_has_a_kind() -> None:
    """Without one, nothing would check it."""
    kinds = {(page.name, found["kind"]) for page in PAGES for found in _BLOCK.finditer(page.read_text())}
    assert {kind for _, kind in kinds} <= {"sh", "toml", "python", "yaml", "ini"}
    # Those that tests/clients (test_readme.py, test_batches.py, test_openai_stored.py) and
    # tests/gateway/filters/test_chain.py run.
    python = {name for name, kind in kinds if kind == "python"}
    assert python == {"README.md", "images.md", "filters.md", "batches.md", "stored.md"}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_shell_and_its_commands_exist(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for program, *arguments in block.commands():
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
def test_commands_of_the_gateway_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    monkeypatch.chdir(tmp_path)
    ran = 0
    for block, (program, *arguments) in RUN:
        if program != "export" and asks(arguments):
            continue
        if program == "gateway":
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, f"{block.page}: {arguments}: {done.output}"
            ran += 1
        else:
            assert program == "export", f"{block.page}: nothing runs {program}: say why not"
    assert ran >= 5


def asks(words: list[str]) -> bool:
    """Whether a command talks to a server on its usual port."""
    return any(re.search(r"(localhost|127\.0\.0\.1):8000", word) for word in words)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason=missing("curl"))
async def test_commands_that_ask_a_server_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", KEY)
    app = create_app(parse(SERVED.format(folder=tmp_path)), folder=tmp_path / "workers")
    found = [(block, words) for block, words in RUN if words[0] != "export" and asks(words)]
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
