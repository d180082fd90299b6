"""What a newcomer types wrong, and what the gateway answers: one sentence with what to do, before anything starts."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.processes import LIMIT, serving
from tests.missing_tools import needs_engine

OK = """\
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [{ name = "a", backend = "s", model = "echo" }]
"""
REMOTE = """\
[backends.x]
kind = "openai"
url = "http://127.0.0.1:9/v1"
{}
[endpoints.chat]
served_entities = [{{ name = "a", backend = "x" }}]
"""
FILES = {
    "ok.toml": OK,
    "backend.toml": '[backend.local]\nkind = "native"\n',
    "task.toml": OK.replace("[endpoints.chat]\n", '[endpoints.chat]\ntask = "chatt"\n'),
    "kind.toml": OK.replace("scripted", "vllm"),
    "timeout.toml": REMOTE.format("timeout = 3"),
    "api_key.toml": REMOTE.format('api_key = "sk-secret"'),
    "key_name.toml": REMOTE.format('api_key_env = "sk-secret"'),
    "connect.toml": REMOTE.format('timeouts = { connect = "2s" }'),
    "cut.toml": OK.rstrip(),
    "syntax.toml": "[endpoints.echo\n",
    "empty.toml": "\n",
    "config.yaml": "model_list:\n  - model_name: x\n",
    "config.json": '{"BackendConfig": {}}\n',
    "model/config.json": '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}',
    "empty/.keep": "",
    "model.gguf": "GGUF",
}
ANSWERS: dict[str, tuple[str, str]] = {
    # --- models
    "a folder that is not there": (
        "serve ./nope",
        "there is no folder or file './nope'; a model is a folder, a GGUF file",
    ),
    "an option for it": ("serve --model ./nope", "there is no folder or file './nope'"),
    "an empty folder": ("serve empty", "holds no config.json and no *.gguf: it is no checkpoint"),
    "no weights": ("serve model", "holds no *.safetensors: it has no weights"),
    "a cut file": ("serve model.gguf", "is cut"),
    "a configuration as a model": ("serve ok.toml", "ok.toml is no model: give a configuration by --config"),
    "YAML as a model": ("serve config.yaml", "`gateway import` makes a configuration of another server's file"),
    "offline": ("serve owner/model", "of the hub is not in the cache, and HF_HUB_OFFLINE is set"),
    # --- configurations
    "no file": ("serve --config nope.toml", "nope.toml: cannot be read"),
    "YAML": ("check config.yaml", "config.yaml:1: this is YAML, and the gateway reads TOML"),
    "JSON": ("check config.json", "this is JSON, and the gateway reads TOML"),
    "backend for backends": ("check backend.toml", "backend.toml:1: backend: unknown field; did you mean 'backends'?"),
    "a task": ("check task.toml", "task.toml:4: endpoints.chat.task: 'chatt' is none of chat"),
    "a kind": ("check kind.toml", "kind.toml:2: backends.s: there is no backend of kind 'vllm'"),
    "its kind here": ("check kind.toml", "for vllm say 'openai'"),
    "timeout": ("check timeout.toml", "timeout.toml:4: backends.x.timeout: unknown field; did you mean 'timeouts'?"),
    "api_key": ("check api_key.toml", "api_key.toml:4: backends.x.api_key: unknown field; did you mean 'api_key_env'?"),
    "a key for a name": ("check key_name.toml", "backends.x: the name of an environment variable is wanted, not a key"),
    "a time": ("check connect.toml", "connect.toml:4: backends.x.timeouts.connect: Expected `float`, got `str`"),
    "a cut configuration": ("check cut.toml", "the file is empty or cut"),
    "syntax": ("check syntax.toml", "syntax.toml:1: "),
    "nothing": ("check empty.toml", "there are no endpoints and no backends: nothing would be served"),
    "another file of the peer": ("import mindie config.yaml", "it has no `BackendConfig`"),
    # --- addresses and keys
    "a key for the name of keys": (
        "serve --config ok.toml --keys-env sk-secret",
        "the name of an environment variable is wanted",
    ),
    "no such variable": ("serve --config ok.toml --keys-env NOT_SET", "the environment variable NOT_SET"),
    "a public address": (
        "serve --config ok.toml --host 0.0.0.0",
        "set keys_env (or pass --keys-env NAME) or keys_file",
    ),
    "a taken port": ("serve --config ok.toml --port {taken}", "Address already in use; --port 0 takes a free port"),
    "a server that is not there": (
        "serve --backend 127.0.0.1:9",
        "--backend http://127.0.0.1:9: 127.0.0.1:9: nothing listens",
    ),
    "two sources": ("serve ./model --config ok.toml", "exclude each other: give one of them"),
    # --- commands
    "a command": ("chek ok.toml", "No such command 'chek'; did you mean 'check'?"),
    "an option": ("serve --prot 3", "No such option"),
    "an endpoint": (
        "explain --config ok.toml --endpoint chatt --unit u",
        "there is no endpoint 'chatt'; did you mean 'chat'?",
    ),
    "nobody to ask": ("ask hello --url http://127.0.0.1:9", "start one with `gateway serve`, or name it by --url"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("NOT_SET", raising=False)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake", [pytest.param(each, marks=needs_engine) if each == "offline" else each for each in ANSWERS]
)
def test_a_mistake_is_answered_with_what_to_do(mistake: str, folder: Path, taken: int) -> None:
    words, answer = ANSWERS[mistake]
    done = CliRunner().invoke(main, words.format(taken=taken).split())
    assert done.exit_code in (1, 2), done.output
    assert answer in done.stderr, done.stderr
    assert "Traceback" not in done.output
    assert "secret" not in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_a_first_start_at_a_narrow_terminal(folder: Path) -> None:
    """60 columns, an empty home, a proxy in the environment, no colors: the greeting comes, and no control bytes."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm", "http_proxy": "http://127.0.0.1:9"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", "ok.toml", "--port", "0"]
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
    )
    os.close(child)
    seen = b""

    def until(words: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + LIMIT
        while words not in seen:
            assert time.monotonic() < deadline, seen.decode()
            if select.select([parent], [], [], 1)[0]:
                seen += os.read(parent, 65536)

    try:
        until(b"# triton")
        found = re.search(rb"on (http://\S+)  \(no key needed\)", seen)
        assert found is not None
        body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()
        request = urllib.request.Request(
            f"{found[1].decode()}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=LIMIT) as answer:
            assert answer.status == 200
        until(b" tok")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    text = seen.decode()
    assert text.index("\nInterlingua ") < text.index("\nReady after ") < text.index("\ncurl ")
    assert re.search(r"openai chat chat->a 200 \d+ ms \d+\+\d+ tok", text)
    assert re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text) is None
    # A curl for each protocol, and one that streams.
    assert text.count("\ncurl ") == 8
    assert text.count("curl -N ") == 1
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_first_start_without_a_terminal(folder: Path) -> None:
    """The same text in the same order; with keys, each curl has one. The log is JSON."""
    proxied = {"OURS": "one,another", "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    with (
        serving("--config", "ok.toml", "--keys-env", "OURS", env=proxied, log=folder / "log") as gateway,
        pytest.raises(urllib.error.HTTPError, match="401"),
    ):
        gateway.ask("/v1/chat/completions", {"model": "chat", "messages": []})
    text = (folder / "log").read_text()
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text) is None
    assert "another" not in text
    assert text.index("Interlingua ") < text.index("\nReady after ") < text.index("\ncurl ")
    commands = re.findall(r"^curl (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert len(commands) == 8
    assert all('-H "authorization: Bearer $KEY"' in command for command in commands)
    assert len([command for command in commands if "-N " in command and '"stream": true' in command]) == 1
    logged = [json.loads(line)["event"] for line in text.splitlines() if line.startswith("{")]
    assert "request.finished" in logged
