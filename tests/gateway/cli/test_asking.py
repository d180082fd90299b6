"""`gateway ask`, `chat` and `bench` against a real server, and without one."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.cli.client import user_message
from tests.gateway.processes import LIMIT, SCRIPTED, Gateway, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that needs a key."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "gateway.toml").write_text(
        SCRIPTED.format(workers=1).replace("[server]", '[server]\nkeys_env = "OUR_KEY"')
    )
    arguments = ("--config", str(folder / "gateway.toml"))
    with serving(*arguments, env={"OUR_KEY": "sk-1,sk-2"}, log=folder / "log") as gateway:
        yield gateway


@pytest.fixture
def run(server: Gateway, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("INTERLINGUA_KEY", "sk-1")
    # Of the proxy that a machine may have, nothing is asked that is on this machine.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    return CliRunner()


def ask(run: CliRunner, server: Gateway, *words: str, text: str | None = None) -> Result:
    return run.invoke(main, ["ask", *words, "--url", server.url], input=text)


@pytest.mark.slow
def test_a_question_is_answered_as_a_stream(run: CliRunner, server: Gateway) -> None:
    done = ask(run, server, "one", "two", "three")
    assert (done.exit_code, done.stdout) == (0, "one two three\n")
    assert ask(run, server, text="piped in\n").stdout == "piped in\n"
    assert ask(run, server, "hello", "--model", "echo", "--max-tokens", "1", "--system", "x").exit_code == 0


@pytest.mark.slow
def test_what_goes_wrong_is_one_sentence(
    run: CliRunner, server: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = ask(run, server, "hello", "--model", "nobody")
    assert done.exit_code == 1
    assert "404: " in done.stderr
    assert "nobody" in done.stderr
    assert "No such file" in ask(run, server, "what?", "--image", str(tmp_path / "none.png")).stderr
    assert "takes the name of an environment variable" in ask(run, server, "x", "--key-env", "sk-1").stderr
    monkeypatch.setenv("INTERLINGUA_KEY", "wrong")
    assert "needs a key that it knows: export one as INTERLINGUA_KEY" in ask(run, server, "x").stderr


@pytest.mark.slow
def test_a_load_is_measured(run: CliRunner, server: Gateway) -> None:
    words = ["bench", server.url, "--model", "echo", "--requests", "8", "--concurrency", "3"]
    done = run.invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "answered           8 in" in done.stdout
    assert "first token        p50" in done.stdout
    figures = json.loads(run.invoke(main, [*words, "--json"]).stdout)
    assert figures["answered"] == 8
    assert figures["failures"] == {}
    assert figures["tokens_per_second"] > 0
    assert set(figures["whole_ms"]) == {"p50", "p95"}
    failed = run.invoke(main, ["bench", server.url, "--model", "nobody", "--requests", "2"])
    assert failed.exit_code == 1
    assert "no request was answered: status 404" in failed.stderr


def running(server: Gateway) -> float:
    """How many requests the server is answering."""
    asked = urllib.request.Request(f"{server.url}/metrics", headers={"authorization": "Bearer sk-1"})
    with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
        found = re.search(rb"^gw_requests_running ([\d.]+)", answer.read(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.slow
def test_a_chat_remembers_and_an_answer_can_be_stopped(server: Gateway) -> None:
    """At a terminal: Ctrl-C ends an answer, and the chat goes on; Ctrl-D ends the chat."""
    parent, child = pty.openpty()
    environment = {**os.environ, "INTERLINGUA_KEY": "sk-1", "TERM": "dumb"}
    command = [sys.executable, "-m", "gateway.cli", "chat", "--model", "echo", "--url", server.url]
    # A shell has its background jobs ignore SIGINT, and they hand that on.
    process = subprocess.Popen(
        command,
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    os.close(child)
    seen = ""

    def until(words: str) -> str:
        nonlocal seen
        deadline = time.monotonic() + LIMIT
        while words not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([parent], [], [], 1)[0]:
                seen += os.read(parent, 4096).decode()
        before, _, seen = seen.partition(words)
        return before

    try:
        until("> ")
        os.write(parent, b"first words\n")
        until("\nfirst words\r\n")
        os.write(parent, b"/model hang\n")
        until("> ")
        while running(server):  # the answer before is counted until after its end
            time.sleep(0.05)
        os.write(parent, b"never answered\n")
        while not running(server):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        until("(stopped)")
        os.write(parent, b"/model echo\n")
        until("> ")
        os.write(parent, b"still here\n")
        until("\nstill here\r\n")
        until("> ")
        os.write(parent, b"\x04")
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def test_an_image_is_a_data_url(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(b"\xff\xd8")
    message = user_message("what?", [tmp_path / "image.jpg"])
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9g="}}


@pytest.mark.slow
def test_without_a_server_they_say_how_to_start_one() -> None:
    for words in (["ask", "hello"], ["chat"]):
        done = CliRunner().invoke(main, [*words, "--url", "127.0.0.1:9"])
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("Error: no server answers at http://127.0.0.1:9: ")
        assert "start one with `gateway serve`, or name it by --url" in done.stderr
    assert "no server answers" in CliRunner().invoke(main, ["bench", "http://127.0.0.1:9"]).stderr


def test_a_question_is_needed() -> None:
    done = CliRunner().invoke(main, ["ask"])
    assert done.exit_code == 2
    assert "there is no question" in done.stderr
