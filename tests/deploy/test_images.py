"""The Dockerfiles: linted, sources in the build's context, packages pinned, run by a user without rights."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.deploy.images import ROOT, Image, build, instructions, is_ignored
from tests.missing_tools import missing

FOLDER = ROOT / "deploy/docker"
HADOLINT = ROOT / ".venv-tools/bin/hadolint"
FILES = sorted(FOLDER.glob("Dockerfile*"))
NAMES = [file.name for file in FILES]


def commands(file: Path) -> list[str]:
    """The shell commands of all RUN instructions."""
    runs = (each.rest for each in instructions(file) if each.name == "RUN")
    return [command.strip() for run in runs for command in run.split("&&")]


def test_there_are_three() -> None:
    assert NAMES == ["Dockerfile", "Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.slow
@pytest.mark.skipif(not HADOLINT.exists(), reason=missing("make .venv-tools/.installed"))
def test_hadolint_has_no_complaint() -> None:
    done = subprocess.run([HADOLINT, "--failure-threshold", "style", *FILES], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_source_is_in_the_context(file: Path) -> None:
    copied = [
        each.rest.split()[:-1] for each in instructions(file) if each.name == "COPY" and "--from=" not in each.rest
    ]
    sources = [source.rstrip("/") for sources in copied for source in sources]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source
    assert is_ignored("tests/conftest.py")
    assert is_ignored("docs")


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_package_is_pinned(file: Path) -> None:
    installs = [command for command in commands(file) if re.search(r"\bpip install\b", command)]
    assert len(installs) >= 3
    for command in installs:
        words = shlex.split(command.replace("${", "").replace("}", ""))
        if "--requirement" in words:
            lock = words[words.index("--requirement") + 1]
            found = next(path for path in (ROOT / lock, FOLDER / lock) if path.exists()).read_text()
            assert {"--require-hashes", "--no-deps"} <= set(words)
            pins = [line for line in found.splitlines() if not line.startswith("#")]
            assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)
        elif words[-1] == "torch":  # no lock can have the hashes of all its builds
            assert "--constraint" in words
        else:
            assert {"--no-deps", "--no-index"} <= set(words)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_it_runs_without_rights_and_with_options_that_exist(file: Path) -> None:
    final = instructions(file)
    final = final[max(place for place, each in enumerate(final) if each.name == "FROM") :]
    assert [each.rest for each in final if each.name == "USER"] == ["10001:10001"]
    health = next(each.rest for each in final if each.name == "HEALTHCHECK")
    assert json.loads(health[health.index("[") :])[1] == "/opt/interlingua/healthcheck.py"
    assert json.loads(next(each.rest for each in final if each.name == "ENTRYPOINT")) == ["gateway"]
    command = json.loads(next(each.rest for each in final if each.name == "CMD"))
    # The file that it names is mounted; all else is read before the file is missed.
    shown = CliRunner().invoke(main, command)
    assert "/etc/interlingua/gateway.toml" in shown.output
    assert "no such option" not in shown.output.lower()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check(status: int | None, code: int) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" and status else 500)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.handle_request) if status else None
        if thread is not None:
            thread.start()
        else:
            server.socket.close()
        environment = {"PORT": str(server.server_address[1]), "http_proxy": "http://127.0.0.1:1"}
        command = [sys.executable, "-I", str(FOLDER / "healthcheck.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        if thread is not None:
            thread.join()


# --- the gateway's image, step by step

CONFIG = """\
[server]
keys_env = "GATEWAY_KEYS"
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [{ name = "s", backend = "s", model = "echo" }]
"""
# What runs in the container: its command, its health check until it is healthy, and a client.
INSIDE = """\
import json, os, subprocess, sys, time, urllib.request
command, health = json.loads(sys.argv[1])
server = subprocess.Popen(command)
began = time.monotonic()
while subprocess.run(health).returncode and server.poll() is None and time.monotonic() < began + 120:
    time.sleep(0.1)
body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "one two"}]}).encode()
headers = {"authorization": "Bearer one", "content-type": "application/json"}
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, headers)
with urllib.request.urlopen(request, timeout=60) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
server.terminate()
print(json.dumps({"text": text, "code": server.wait(), "user": os.getuid(), "home": os.getcwd()}))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    try:
        # Without bytecode, whose compiling takes most of the time.
        return build(FOLDER / "Dockerfile", tmp_path_factory.mktemp("image"), {"PIP_NO_COMPILE": "1"})
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"{error}\n{error.stdout[-3000:]}\n{error.stderr[-3000:]}") from None


@pytest.mark.slow
@pytest.mark.xdist_group("image")
@pytest.mark.skipif("INTERLINGUA_IMAGE" not in os.environ, reason="`make test-image` builds it, as root, for chroot")
def test_the_steps_of_the_gateways_image_make_one_that_answers(image: Image) -> None:
    installed = image.folder / "opt/interlingua"
    packages = {file.name for file in installed.glob("lib/python*/site-packages/*")}
    assert {"gateway", "litestar", "numpy"} <= packages  # numpy for experiments
    assert not packages & {"torch", "transformers", "pip", "tests"}
    assert not (image.folder / "src").exists()
    in_c = {file.parent.name for file in installed.glob("lib/python*/site-packages/**/compiled.*.so")}
    assert in_c == {"outbox", "usual_rows"}

    config = image.folder / "etc/interlingua/gateway.toml"
    config.parent.mkdir()
    config.write_text(CONFIG)
    image.environment["GATEWAY_KEYS"] = "one,another"
    words = json.dumps([[*image.entrypoint, *image.command], image.health])
    done = subprocess.run(
        image.inside(["python", "-c", INSIDE, words], own_network=True), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown == {"text": "one two", "code": 0, "user": 10001, "home": "/var/lib/interlingua"}
