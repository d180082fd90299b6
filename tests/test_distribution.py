"""The sdist and the wheel: built, complete, and run in an environment that has nothing but what they declare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
import venv
import zipfile
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.gateway.processes import Gateway, until
from tests.missing_tools import missing
from tools.supply_chain import canonical, closure

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / ".venv-tools/bin"
PACKAGES = ("adapters", "backends", "gateway", "schemas")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (TOOLS / "twine").exists(), reason=missing("make .venv-tools/.installed")),
    pytest.mark.xdist_group("distribution"),
]

MOST_INSTALLED = 150_000_000
"""Bytes of an environment with the gateway alone, bytecode included, without pip."""
MOST_RESIDENT = 70_000_000
"""Bytes of memory of a worker."""

REMOTE = """
[backends.far]
kind = "openai"
url = "{url}/v1"
[endpoints.chat]
served_entities = [{{ name = "far", backend = "far", model = "far" }}]
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = [str(TOOLS / "python"), "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def wheel(folder: Path) -> Path:
    return next(folder.glob("*.whl"))


def contents(path: Path) -> dict[str, int]:
    with zipfile.ZipFile(path) as file:
        return {each.filename: each.CRC for each in file.infolist() if not each.filename.endswith("/RECORD")}


def metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as file:
        name = next(each for each in file.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode())


def test_an_index_would_take_both(built: Path) -> None:
    files = [str(wheel(built)), str(next(built.glob("*.tar.gz")))]
    done = subprocess.run([TOOLS / "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_wheel_of_the_sdist_has_all_files_of_the_packages_as_they_are(built: Path) -> None:
    wanted = {name: zlib.crc32((ROOT / name).read_bytes()) for name in tracked() if name.partition("/")[0] in PACKAGES}
    found = {name: crc for name, crc in contents(wheel(built)).items() if ".dist-info/" not in name}
    compiled = found.keys() - wanted.keys()  # what is written in C, for this Python and platform
    folders = {"backends/transport/outbox", "gateway/access/usual_rows"}
    assert {name.rpartition("/")[0] for name in compiled} == folders
    assert len(compiled) == len(folders)
    for name in compiled:
        assert name.rpartition("/")[2].startswith("compiled.")
        assert name.endswith(".so")
        del found[name]
    assert found == wanted
    assert {f"{package}/py.typed" for package in PACKAGES} <= wanted.keys()
    with tarfile.open(next(built.glob("*.tar.gz"))) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_wheel_describes_itself(built: Path) -> None:
    about = metadata(wheel(built))
    assert about["Author"]
    assert about["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in about.get_all("Classifier", [])
    assert about["Description-Content-Type"] == "text/markdown"
    assert any(name.endswith("licenses/LICENSE") for name in contents(wheel(built)))
    assert not {"torch", "transformers", "numpy", "pillow"} & {each.name for each in needed(about)}


def needed(about: Message, extra: str = "") -> list[Requirement]:
    """What a distribution requires without extras, or with one."""
    lines = map(Requirement, about.get_all("Requires-Dist", []))
    return [each for each in lines if each.marker is None or each.marker.evaluate({"extra": extra})]


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, what it requires, and nothing else.

    The required packages are links to those of this environment, which takes no network and no time.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    target = next(folder.glob("lib/python*/site-packages"))
    done: dict[str, Distribution] = {}
    for each in needed(metadata(wheel(built))):
        found = closure(each.name, each.extras)
        done |= {canonical(one.metadata["Name"]): one for one in (*found, Distribution.from_name(each.name))}
    for one in done.values():
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (target / name).exists():
                (target / name).symlink_to(Path(str(one.locate_file(name))))
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    subprocess.run([*command, "--no-deps", "--no-index", "--no-compile", str(wheel(built))], check=True, env=clean())
    return folder / "bin"


def clean(**more: str) -> dict[str, str]:
    """This environment without what leads back to the sources."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more


class Upstream(BaseHTTPRequestHandler):
    """An OpenAI server of one model, which answers all with one word."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer({"object": "list", "data": [{"id": "far", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
        self.answer({"id": "1", "object": "chat.completion", "model": "far", "choices": [choice], "usage": usage})

    def answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_installed_gateway_answers_over_a_remote_server(installed: Path, upstream: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(REMOTE.format(url=upstream))
    checked = subprocess.run([installed / "gateway", "check", str(file)], capture_output=True, text=True, env=clean())
    assert (checked.returncode, checked.stderr) == (0, "")
    log = tmp_path / "log"
    command = [str(installed / "gateway"), "serve", "--port", "0", "--config", str(file)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=clean(), cwd=tmp_path)
    gateway = Gateway(process, log)
    try:
        until(lambda: gateway.greets() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        question = {"model": "chat", "messages": [{"role": "user", "content": "The capital of France?"}]}
        answer = gateway.ask("/v1/chat/completions", question)
        assert answer["choices"][0]["message"]["content"] == "Paris"
        with gateway.open("/v1/messages", question | {"max_tokens": 8}) as answered:
            assert json.load(answered)["content"][0]["text"] == "Paris"
        (worker,) = gateway.workers()
        pages = int(Path(f"/proc/{worker}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") <= MOST_RESIDENT
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def test_it_takes_little_room(installed: Path) -> None:
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    files = [file for each in packages.iterdir() for file in ([each] if each.is_file() else each.rglob("*"))]
    sources = [file for file in files if file.is_file() and file.suffix != ".pyc"]
    assert "litestar" in {file.relative_to(packages).parts[0] for file in sources}
    # Bytecode, which not every environment writes, takes about as much as its sources.
    size = sum(file.stat().st_size * (2 if file.suffix == ".py" else 1) for file in sources)
    assert size <= MOST_INSTALLED, size


def test_what_it_does_not_bring_is_named(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'numpy', 'PIL', 'pytest') if u.find_spec(n)])"
    done = subprocess.run([installed / "python", "-c", code], capture_output=True, text=True, env=clean(), cwd=tmp_path)
    assert done.stdout.strip() == "[]"
    file = tmp_path / "gateway.toml"
    for text, words in (
        ('[backends.local]\nkind = "native"\n', "pip install 'interlingua[engine]'"),
        (
            '[backends.a]\nkind = "scripted"\n[endpoints.chat]\nexperiment = { feedback = { liked = "higher" } }\n'
            'served_entities = [{ name = "a", backend = "a" }]\n',
            "pip install 'interlingua[experiments]'",
        ),
    ):
        file.write_text(text)
        checked = subprocess.run(
            [installed / "gateway", "check", str(file)], capture_output=True, text=True, env=clean(), cwd=tmp_path
        )
        assert checked.returncode == 1
        assert words in checked.stderr
