"""The lines of the documents that start a server, run by bash as they stand, and asked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.native.demo import WEIGHTS
from tests.backends.native.checkpoints.gguf_files import write_llama
from tests.backends.native.checkpoints.hub_server import hub
from tests.backends.native.real_models import real_model
from tests.gateway.observability.collector import collector
from tests.gateway.processes import LIMIT, SCRIPTED, Gateway, serving, until
from tests.gateway.serving import MESSAGES
from tests.missing_tools import missing, needs_engine
from tests.shell.blocks import ROOT, blocks
from tests.shell.machine import Machine

Addresses = Mapping[str, str]
Prepare = Callable[[Machine, ExitStack], Addresses]
KEYS = {"KEYS=one,another": {"authorization": "Bearer another"}}
"""Lines whose servers want a key, and the header of one."""


def nothing(*_: Any) -> Addresses:
    return {}


def elsewhere(machine: Machine, stack: ExitStack) -> Addresses:
    """A server in the place of the one that the line names."""
    (machine.folder / "far.toml").write_text(SCRIPTED.format(workers=1))
    far = serving("--config", str(machine.folder / "far.toml"), log=machine.folder / "far")
    return {"http://10.0.0.5:8000": stack.enter_context(far).url}


def checkout(machine: Machine, _: ExitStack) -> Addresses:
    """A clone of this repository, whose environment is there already."""
    make = shutil.which("make")
    machine.program(
        "make", f'ln -sfn {venv()} .venv\nexec env PYTHONPATH="$PWD:$PYTHONPATH" {make} -o .venv/.installed "$@"'
    )
    machine.environment["PORT"] = "0"
    return {"<this repository>": str(ROOT)}


def made(machine: Machine, stack: ExitStack) -> Addresses:
    real_model("smollm2")
    shutil.copy(ROOT / "Makefile", machine.here)
    checkout(machine, stack)
    return {}


def packaged(*_: Any) -> Addresses:
    real_model("minilm")
    return {}


def checkpoint(machine: Machine, _: ExitStack) -> Addresses:
    (machine.here / "path/to").mkdir(parents=True)
    (machine.here / "path/to/checkpoint").symlink_to(WEIGHTS)
    return {}


def gguf(machine: Machine, _: ExitStack) -> Addresses:
    (machine.here / "path/to").mkdir(parents=True)
    write_llama(machine.here / "path/to/model.gguf")
    machine.environment["INTERLINGUA_MODELS"] = str(machine.folder / "models")
    return {}


def of_the_hub(machine: Machine, stack: ExitStack) -> Addresses:
    """The bundled model under the name of another, on a hub of this machine."""
    files = {path.name: path.read_bytes() for path in WEIGHTS.iterdir()}
    server = stack.enter_context(hub({"Qwen/Qwen2.5-0.5B-Instruct": files}))
    machine.environment |= {"HF_ENDPOINT": server.url, "HF_HOME": str(machine.folder / "hub"), "HF_HUB_OFFLINE": "0"}
    machine.environment["HF_HUB_DISABLE_XET"] = "1"
    return {}


def examples(machine: Machine, _: ExitStack) -> Addresses:
    (machine.here / "examples").symlink_to(ROOT / "examples")
    return {}


def every_address(*_: Any) -> Addresses:
    """The tests listen on this machine only."""
    return {"0.0.0.0": "127.0.0.1"}


def imported(machine: Machine, _: ExitStack) -> Addresses:
    (machine.here / "gateway.toml").write_text(SCRIPTED.format(workers=1))
    return {}


def traced(machine: Machine, stack: ExitStack) -> Addresses:
    imported(machine, stack)
    return {"http://collector:4318": stack.enter_context(collector()).url}


def venv() -> Path:
    return Path(sys.executable).parents[1]


LINES: dict[str, Prepare] = {
    "make serve": checkout,
    "make serve MODEL=smollm2": made,
    ".venv/bin/gateway serve --model minilm": packaged,
    ".venv/bin/gateway serve path/to/checkpoint": checkpoint,
    ".venv/bin/gateway serve path/to/model.gguf": gguf,
    ".venv/bin/gateway serve --model Qwen/Qwen2.5-0.5B-Instruct": of_the_hub,
    ".venv/bin/gateway serve --backend http://10.0.0.5:8000": elsewhere,
    ".venv/bin/gateway serve --config examples/gateway.toml": examples,
    "KEYS=one,another .venv/bin/gateway serve --host 0.0.0.0 --keys-env KEYS": every_address,
    "gateway check gateway.toml && gateway serve --config gateway.toml": imported,
    "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 gateway serve --config gateway.toml": traced,
}
"""What each line needs of the machine; it returns what is used in place of what stands in the line."""

FOUND = {
    line.partition(" #")[0].strip(): block
    for block in blocks("sh")
    if block.why is None
    for line in block.code.splitlines()
    if "gateway serve" in line or "make serve" in line
}
TORCH_FREE = (elsewhere, imported, traced)
WIDE = (made, packaged, checkpoint)
"""Of models that other tests serve by a configuration: each start of an engine takes seconds of a core."""


def test_every_line_that_starts_a_server_is_run() -> None:
    assert FOUND.keys() == LINES.keys()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None or shutil.which("git") is None, reason=missing("make and git"))
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=() if make in TORCH_FREE else needs_engine) for line, make in LINES.items()]
)
def test_a_server_of_the_documents(line: str, tmp_path: Path) -> None:
    if LINES[line] in WIDE and not os.environ.get("INTERLINGUA_WIDE"):
        pytest.skip("part of `make test-documents`")
    machine = Machine(tmp_path / "root")
    (machine.here / ".venv").symlink_to(venv())
    machine.environment["INTERLINGUA_SERVE_PORT"] = "0"
    block = FOUND[line]
    code = block.code if "git clone" in block.code else line
    log = tmp_path / "log"
    with ExitStack() as stack:
        addresses = LINES[line](machine, stack)
        process = stack.enter_context(machine.running(block._replace(code=code), addresses, log))
        served = Gateway(process, log)
        until(lambda: served.greets() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        headers = next((key for words, key in KEYS.items() if words in line), {})
        with httpx.Client(base_url=served.url, headers=headers, timeout=LIMIT) as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
            if model == "minilm":
                answer = client.post("/v1/embeddings", json={"model": model, "input": "Hi"})
                assert len(answer.json()["data"][0]["embedding"]) == 384
            else:
                answer = client.post("/v1/chat/completions", json=asked)
                assert answer.json()["choices"][0]["finish_reason"], answer.text
            assert answer.status_code == 200, answer.text
        if headers:
            assert httpx.get(f"{served.url}/v1/models").status_code == 401
