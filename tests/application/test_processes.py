"""The supervisor and its child processes: draining, restarts, no orphans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, SCRIPTED, Gateway, alive, serving, start, status, until

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "one two three four five six"}], "max_tokens": 6}
# Requests wait for the next engine as long as the test may run.
NATIVE = f"""
[server]
workers = 2
[backends.local]
kind = "native"
reconnect_timeout = {LIMIT}
heartbeat = 0.1
hung_after = 5.0
[endpoints.interlingua]
served_entities = [{{ name = "demo", backend = "local" }}]
"""
GREETING = {"model": "interlingua", "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[int], str]:
    def write(workers: int) -> str:
        path = tmp_path / "gateway.toml"
        path.write_text(SCRIPTED.format(workers=workers))
        return str(path)

    return write


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("native")
    config = folder / "gateway.toml"
    config.write_text(NATIVE)
    with serving("--config", str(config), log=folder / "log") as gateway:
        yield gateway


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_streams_finish_before_shutdown(scripted: Callable[[int], str], log: Path, number: int) -> None:
    with serving("--config", scripted(2), log=log) as gateway:
        stream = gateway.open("/v1/chat/completions", CHAT | {"model": "slow", "stream": True})
        first = stream.readline()
        gateway.process.send_signal(number)
        rest = stream.read()
        assert gateway.process.wait(LIMIT) == 0
    assert first.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b'"finish_reason":"stop"' in rest or b'"finish_reason":"length"' in rest


def test_a_killed_worker_is_replaced(scripted: Callable[[int], str], log: Path) -> None:
    with serving("--config", scripted(1), log=log) as gateway:
        assert gateway.ask("/v1/chat/completions", CHAT | {"model": "echo"})["choices"]
        until(lambda: reported(gateway) == (1, {"length": 1}), log)  # an answer is counted once it is out
        (worker,) = gateway.workers()
        os.kill(worker, signal.SIGKILL)
        until(lambda: gateway.workers() not in ([], [worker]), log)
        until(lambda: status(f"{gateway.url}/health/ready") == 200, log)
        assert gateway.ask("/v1/chat/completions", CHAT | {"model": "echo"})["choices"]
        until(lambda: reported(gateway) == (2, {"length": 2}), log)


def reported(gateway: Gateway) -> tuple[int, dict[str, int]]:
    """Exposures of the endpoint "echo", and how its answers ended."""
    with urllib.request.urlopen(f"{gateway.url}/serving-endpoints/echo/experiment", timeout=LIMIT) as answer:
        (arm,) = json.load(answer)["arms"]
    return arm["exposures"], arm["finish_reasons"]


def test_no_process_outlives_a_killed_supervisor(log: Path) -> None:
    with serving(log=log) as gateway:
        children = [*gateway.workers(), *gateway.engines()]
        assert len(children) == 2
        gateway.stop(signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in children), log)


@pytest.mark.torch
def test_workers_share_one_engine(native: Gateway) -> None:
    assert len(native.workers()) == 2
    assert len(native.engines()) == 1
    answers = {native.ask("/v1/chat/completions", GREETING)["choices"][0]["message"]["content"] for _ in range(8)}
    assert len(answers) == 1


@pytest.mark.torch
def test_a_killed_engine_is_replaced(native: Gateway) -> None:
    before = native.ask("/v1/chat/completions", GREETING)["choices"]
    (engine,) = native.engines()
    os.kill(engine, signal.SIGKILL)
    until(lambda: native.engines() not in ([], [engine]), native.log)
    until(lambda: status(f"{native.url}/health/ready") == 200, native.log)
    assert native.ask("/v1/chat/completions", GREETING)["choices"] == before


@pytest.mark.torch
def test_a_hung_engine_is_replaced(native: Gateway) -> None:
    (engine,) = native.engines()
    os.kill(engine, signal.SIGSTOP)
    answer = native.ask("/v1/chat/completions", GREETING)
    assert answer["choices"][0]["message"]["content"]
    assert native.engines() != [engine]
    assert not alive(engine)


@pytest.mark.torch
def test_any_checkpoint_is_served(tmp_path: Path, log: Path) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from backends.native.demo import WEIGHTS

    folder = str(tmp_path / "tiny-llama")
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    with serving("--model", folder, log=log) as gateway:
        assert gateway.ask("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 4, "details": True}})[
            "details"
        ]["generated_tokens"] in range(1, 5)
        answer = gateway.ask("/v1/chat/completions", GREETING | {"model": "tiny-llama", "max_tokens": 4})
        assert answer["model"] == "tiny-llama"


@pytest.mark.torch
def test_an_unloadable_checkpoint_ends_the_server_with_an_error(tmp_path: Path, log: Path) -> None:
    (tmp_path / "model").mkdir()
    gateway = start("--model", str(tmp_path / "model"), log=log)
    assert gateway.process.wait(LIMIT) == 1
    text = log.read_text()
    assert "Error: " in text
    assert "Traceback" not in text


def gateway(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "gateway"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=os.environ | (env or {}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--host", "0.0.0.0"], "other machines can reach this address"),
        (["serve", "--keys-env", "NOT_SET_ANYWHERE"], "holds no key"),
        (["serve", "--config", "nowhere.toml"], "cannot be read"),
        (["serve", "--model", "nowhere"], "there is no folder or file 'nowhere'"),
        (["check", "nowhere.toml"], "cannot be read"),
    ],
)
def test_wrong_arguments_are_rejected_before_the_server_starts(arguments: list[str], message: str) -> None:
    ended = gateway(*arguments)
    assert ended.returncode in (1, 2), ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_wrong_configuration_is_rejected_before_the_server_starts(scripted: Callable[[int], str]) -> None:
    file = scripted(1)
    with Path(file).open("a") as written:
        written.write("\n[server.dialects]\ntgi = 'mindi'\n")
    ended = gateway("serve", "--config", file)
    assert ended.returncode == 1
    assert "gateway.toml:15: dialects.tgi: there is no dialect 'mindi'" in ended.stderr


def test_requests_need_a_key_and_no_key_is_logged(scripted: Callable[[int], str], log: Path) -> None:
    arguments = ("--config", scripted(1), "--keys-env", "TEST_GATEWAY_KEYS")
    with serving(*arguments, env={"TEST_GATEWAY_KEYS": "canary-1,canary-2"}, log=log) as served:
        assert status(f"{served.url}/v1/models") == 401
        assert status(f"{served.url}/health") == 200
        assert status(f"{served.url}/metrics") == 401
    assert "canary" not in log.read_text()


def test_commands_that_need_no_server() -> None:
    assert gateway("--version").stdout.startswith("gateway, version ")
    assert '"/v1/chat/completions"' in gateway("openapi").stdout
    listed = gateway("check", "examples/gateway.toml")
    assert listed.returncode == 0
    assert "100 %" in listed.stdout
