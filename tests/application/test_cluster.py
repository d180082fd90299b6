"""Several engines behind one gateway, as real processes on several addresses, that are killed and stopped.

Every stream's text is that of a run without a fault.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from backends.native.demo import WEIGHTS
from tests.gateway.processes import LIMIT, Gateway, alive, serving, start, until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.cluster]

SECRET = {"ENGINE_SECRET": "a secret that nobody guesses"}
ELSEWHERE = "127.0.0.2"
CONFIG = """
[backends.local]
kind = "native"
replicas = 2
engines = ["tcp://{host}:{port}"]
secret_env = "ENGINE_SECRET"
heartbeat = 0.25
[endpoints.interlingua]
served_entities = [{{ name = "demo", backend = "local" }}]
"""
Text = tuple[str, list[str]]
STREAMS, MANY = 6, 32  # one of each of `KINDS`, and several
LENGTH = 120
ATTEMPTS = 10  # while the test process waits for a core, an engine can end its streams


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """An engine that somebody started, and its port."""
    log = tmp_path_factory.mktemp("remote") / "log"
    command = [str(Path(sys.executable).parent / "gateway"), "engine", str(WEIGHTS)]
    command += ["--listen", f"tcp://{ELSEWHERE}:0", "--max-sequences=32"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | SECRET)
    try:
        until(lambda: "engine.listening" in log.read_text() or process.poll() is not None, log)
        found = re.search(rf"tcp://{ELSEWHERE}:(\d+)", log.read_text())
        assert found is not None, log.read_text()
        yield process, int(found[1])
    finally:
        process.kill()
        process.wait(LIMIT)


@pytest.fixture(scope="module")
def gateway(remote: tuple[subprocess.Popen[bytes], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("cluster")
    config = folder / "gateway.toml"
    config.write_text(CONFIG.format(host=ELSEWHERE, port=remote[1]))
    with serving("--config", str(config), env=SECRET, log=folder / "log") as gateway:
        until(lambda: states(gateway) == {"0": 1, "1": 1, f"{ELSEWHERE}:{remote[1]}": 1}, gateway.log)
        yield gateway


def samples(gateway: Gateway, name: str) -> dict[str, float]:
    """A metric of each engine, by its name."""
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=LIMIT) as answer:
        text = answer.read().decode()
    return {
        engine: float(value)
        for engine, value in re.findall(rf'^{name}{{.*engine="(.*?)".*}} (\S+)$', text, re.MULTILINE)
    }


def states(gateway: Gateway) -> dict[str, float]:
    return samples(gateway, "gw_engine_up")


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"logprobs": 2},
    {"ignore_eos": False, "guided_regex": "([a-z]{3} ){40}[a-z]{3}"},
    {"top_p": 0.9, "logit_bias": {"300": 2}, "min_tokens": 50},
)


def stream(gateway: Gateway, number: int, *, on_token: Callable[[int], None] = lambda _: None) -> Text:
    """The text of one stream, and the tokens whose log-probabilities it has; each is of another kind."""
    asked = {
        "model": "interlingua",
        "prompt": f"Number {number}:",
        "max_tokens": LENGTH,
        "ignore_eos": True,
        "temperature": 0.9,
        "seed": number,
        "stream": True,
        **KINDS[number % len(KINDS)],
    }
    text, tokens = "", []
    with gateway.open("/v1/completions", asked) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                chunk: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    text += choice["text"]
                    tokens += (choice.get("logprobs") or {"tokens": []})["tokens"]
                on_token(number)
    return text, tokens


@pytest.fixture(scope="module")
def expected(gateway: Gateway) -> list[Text]:
    """The texts without a fault, one stream at a time."""
    return [stream(gateway, number) for number in range(MANY)]


def all_at_once(gateway: Gateway, fault: Callable[[], None], streams: int = MANY) -> tuple[list[Text], float]:
    """The texts of so many streams side by side, with a fault when all have begun; and the longest pause after it, in
    seconds.
    """
    begun: set[int] = set()
    pauses: list[float] = []
    latest: dict[int, float] = {}
    faulted = False

    def note(number: int) -> None:
        nonlocal faulted
        now = time.monotonic()
        if faulted and number in latest:
            pauses.append(now - latest[number])
        latest[number] = now
        begun.add(number)
        if len(begun) == streams and not faulted:
            faulted = True
            fault()

    with ThreadPoolExecutor(streams) as pool:
        texts = list(pool.map(lambda number: stream(gateway, number, on_token=note), range(streams)))
    assert faulted
    return texts, max(pauses, default=0.0)


def test_streams_of_a_killed_engine_go_on_at_the_others(gateway: Gateway, expected: list[Text]) -> None:
    engine = gateway.engines()[0]
    texts, pause = all_at_once(gateway, lambda: os.kill(engine, signal.SIGKILL))
    print(f"the longest pause after a kill: {pause:.3f} s")
    assert texts == expected
    assert "engine.lost" in gateway.log.read_text()


def test_a_killed_gateway_harms_no_stream_of_another(
    gateway: Gateway, remote: tuple[subprocess.Popen[bytes], int], expected: list[Text], tmp_path: Path
) -> None:
    name = f"{ELSEWHERE}:{remote[1]}"
    config = tmp_path / "gateway.toml"
    config.write_text(CONFIG.format(host=ELSEWHERE, port=remote[1]).replace("replicas = 2\n", ""))
    other = start("--config", str(config), env=SECRET, log=tmp_path / "log")
    try:
        until(lambda: other.greets() or other.process.poll() is not None, other.log)
        until(lambda: states(other) == {name: 1}, other.log)
        below = [*other.children()]
        with ThreadPoolExecutor(1) as pool:
            begun = Event()
            cut = pool.submit(stream, other, 1, on_token=lambda _: begun.set())
            assert begun.wait(LIMIT)
            texts, pause = all_at_once(gateway, other.process.kill)
            assert not isinstance(cut.exception(LIMIT), AssertionError)  # ended by the kill, or complete before it
    finally:
        other.process.kill()
        other.process.wait(LIMIT)
    print(f"the longest pause after the kill of a gateway: {pause:.3f} s")
    assert texts == expected
    until(lambda: not any(map(alive, below)), other.log)
    # The engine has freed what the dead gateway ran.
    until(lambda: samples(gateway, "vllm:num_requests_running")[name] == 0, gateway.log)


def test_streams_of_a_stopped_machine_go_on_at_the_others(
    gateway: Gateway, remote: tuple[subprocess.Popen[bytes], int], expected: list[Text]
) -> None:
    process, _ = remote
    for _ in range(ATTEMPTS):
        texts, pause = all_at_once(gateway, lambda: process.send_signal(signal.SIGSTOP))
        process.send_signal(signal.SIGCONT)
        assert texts == expected
        if "engine.silent" in gateway.log.read_text():
            print(f"the longest pause after a stop: {pause:.3f} s")
            return
    pytest.fail(f"{ATTEMPTS} times the machine had no stream left when it was stopped")


def test_a_dead_engine_elsewhere_is_missed_by_nobody(
    gateway: Gateway, remote: tuple[subprocess.Popen[bytes], int], expected: list[Text]
) -> None:
    texts, _ = all_at_once(gateway, remote[0].kill)
    assert texts == expected
    assert states(gateway)[f"{ELSEWHERE}:{remote[1]}"] == 0
    assert stream(gateway, 0) == expected[0]
