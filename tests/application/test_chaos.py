"""An engine killed or stopped at random moments under load: each request is answered whole or fails; none twice.

Five kills and a stop by default; `KILLS=50 STOPS=20 pytest -s tests/application/test_chaos.py` prints more statistics.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, Gateway, serving, until

pytestmark = [pytest.mark.torch, pytest.mark.slow]

KILLS = int(os.environ.get("KILLS", "5"))
STOPS = int(os.environ.get("STOPS", "1"))
HASTY = """
[server]
workers = 2
[backends.local]
kind = "native"
heartbeat = 0.1
hung_after = 5.0
[endpoints.interlingua]
served_entities = [{ name = "demo", backend = "local" }]
"""
QUESTIONS = ("Tell me a story.", "Count to ten.", "What is the capital of France?", "Hello!")


class Load:
    """Threads that send requests until stopped, and counts of how the requests ended."""

    def __init__(self, gateway: Gateway, threads: int) -> None:
        self._gateway = gateway
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(threads)]
        self.ended: Counter[str] = Counter()
        self.answers: dict[str, set[str]] = {question: set() for question in QUESTIONS}
        for thread in self._threads:
            thread.start()

    def stop(self) -> bool:
        """Stop the threads; return whether all of them ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            question = chance.choice(QUESTIONS)
            try:
                text = (self._streamed if chance.random() < 0.5 else self._whole)(question)
            except urllib.error.HTTPError as error:
                self.ended[f"refused {error.code}"] += 1
                time.sleep(0.2)
            except _ErrorEvent:
                self.ended["error event in the stream"] += 1
            except Exception as error:
                self.ended[f"broken: {type(error).__name__}"] += 1
                time.sleep(0.2)
            else:
                self.ended["whole"] += 1
                self.answers[question].add(text)

    def _body(self, question: str) -> dict[str, object]:
        messages = [{"role": "user", "content": question}]
        return {"model": "interlingua", "messages": messages, "temperature": 0, "max_tokens": 100}

    def _whole(self, question: str) -> str:
        answer = self._gateway.ask("/v1/chat/completions", self._body(question))
        return str(answer["choices"][0]["message"]["content"])

    def _streamed(self, question: str) -> str:
        parts: list[str] = []
        finished = False
        with self._gateway.open("/v1/chat/completions", self._body(question) | {"stream": True}) as stream:
            for line in stream:
                if not line.startswith(b"data: {"):
                    continue
                frame = json.loads(line[6:])
                if "error" in frame:
                    raise _ErrorEvent
                choice = frame["choices"][0]
                parts.append(choice["delta"].get("content") or "")
                finished = finished or choice["finish_reason"] is not None
        if not finished:
            raise EOFError("the stream ended without a finish reason or an error event")
        return "".join(parts)


class _ErrorEvent(Exception):
    pass


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("chaos")
    config = folder / "gateway.toml"
    config.write_text(HASTY)
    with serving("--config", str(config), log=folder / "log") as gateway:
        yield gateway


def test_kills_under_load(gateway: Gateway) -> None:
    endure(gateway, signal.SIGKILL, KILLS)


def test_stops_under_load(gateway: Gateway) -> None:
    endure(gateway, signal.SIGSTOP, STOPS)


def endure(gateway: Gateway, number: signal.Signals, times: int) -> None:
    """Send the engine a signal that many times, and compare all answers with those of an idle gateway."""
    chance = random.Random(3)
    back: list[float] = []
    expected = {question: Load._whole(_quiet(gateway), question) for question in QUESTIONS}
    load = Load(gateway, threads=8)
    try:
        for _ in range(times):
            time.sleep(chance.random() * 2)
            back.append(_replaced(gateway, number, gateway.log))
    finally:
        assert load.stop(), "somebody hangs"
    what = f"{times} {number.name}, {load.ended.total()} requests: {dict(load.ended)}"
    print(f"{what}; back after {sorted(back)[times // 2]:.1f} s, {max(back):.1f} s at most")
    assert load.ended["whole"] > 0
    assert not [how for how in load.ended if how.startswith("broken")], load.ended
    assert all(load.answers[question] <= {text} for question, text in expected.items())


def _replaced(gateway: Gateway, number: signal.Signals, log: Path) -> float:
    """Send the engine a signal; seconds until a new one answers."""
    (engine,) = gateway.engines()
    began = time.monotonic()
    os.kill(engine, number)
    until(lambda: gateway.engines() not in ([], [engine]), log)
    until(lambda: _answers(gateway), log)
    return time.monotonic() - began


def _answers(gateway: Gateway) -> bool:
    try:
        return bool(Load._whole(_quiet(gateway), "Hello!"))
    except urllib.error.HTTPError:
        return False


def _quiet(gateway: Gateway) -> Load:
    return Load(gateway, threads=0)
