"""The engine as a process and as a thread: equal answers, start, failure to start, and stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from backends.native.client.engine_process import engine_command
from backends.native.engine.serving.__main__ import parse
from backends.native.engine.serving.inprocess import InProcessEngine
from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.blocks import prompt_keys
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import (
    Cached,
    Failed,
    FromEngine,
    Loading,
    Manage,
    Managed,
    Message,
    Ping,
    Pong,
    Ready,
    Step,
    Submit,
    Watch,
)
from backends.native.rerankers import Reranker
from tests.backends.native.engine.serving.test_socket import TIMEOUT, Worker
from tests.backends.native.engine.tiny import CONTEXT, VOCAB, Answer, build, prompt, reference

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[5]
START_TIMEOUT = 300.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a packed and a recurrent model."""
    folder = tmp_path_factory.mktemp("models")
    for family in ("llama", "rwkv"):
        build(family).save_pretrained(folder / family)
    return folder


@contextmanager
def process(socket: Path, model: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "backends.native.engine.serving", "--socket", str(socket), "--model", str(model)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--threads", "1", *more], cwd=ROOT, stdin=pipe, stderr=pipe) as started:
        try:
            yield started
        finally:
            started.kill()


def connect(path: Path) -> Worker:
    """Connect as soon as the process listens; the socket file alone does not prove that it does."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            worker = Worker(path)
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            worker.socket.settimeout(START_TIMEOUT)
            return worker


def read_until(worker: Worker, kind: type[Message]) -> list[Message]:
    """Read up to the first message of `kind`; nothing may follow it yet."""
    messages: list[Message] = []
    while not messages or not isinstance(messages[-1], kind):
        read = worker.read(1)
        assert read, f"the connection ended after {messages}"
        messages += read
    return messages


def answers(worker: Worker, requests: list[Submit]) -> dict[int, Answer]:
    found = {request.seq: Answer() for request in requests}
    for request in requests:
        worker.send(request)
    while not all(answer.ended for answer in found.values()):
        for message in worker.read(1):
            assert isinstance(message, Step)
            for output in message.outputs:
                found[output.seq].add(output)
    return found


def test_a_process_from_start_to_stop(models: Path, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    requests = [Submit(seq, prompt(9 + seq, seq), 12) for seq in range(4)]
    with process(socket, models / "llama") as started:
        first = connect(socket)
        *before, ready = read_until(first, Ready)
        assert all(isinstance(message, Loading) for message in before)
        described = Ready(CONTEXT, VOCAB, (2,), "float32", "cpu", "packed", 64)
        assert ready == replace(described, embedding_size=48, block_size=16)
        for request, answer in zip(requests, answers(first, requests).values(), strict=True):
            assert answer.ids == reference("llama", request.prompt, 12).ids

        second = connect(socket)
        assert second.read(1) == [ready]
        for seq in range(3):  # as many as the context takes, so that they are still running when it leaves
            second.send(Submit(seq, prompt(3, seq), CONTEXT - 3))
        assert isinstance(second.read(1)[0], Step)
        second.socket.close()
        first.send(Ping(1))
        until = time.monotonic() + TIMEOUT
        while not idle(first.read(1), 512) and time.monotonic() < until:
            first.send(Ping(1))
        assert time.monotonic() < until, "the blocks of the lost worker were freed"

        first.send(Submit(9, prompt(3, 9), CONTEXT - 3))
        assert isinstance(first.read(1)[0], Step)
        started.send_signal(signal.SIGTERM)
        assert started.wait(TIMEOUT) == 0
        assert all(isinstance(message, Step) for message in first.read(1000))
        first.socket.close()
        assert not socket.exists()


@pytest.mark.slow
def test_a_model_on_two_ranks_answers_as_on_one_and_ends_with_either(models: Path, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    requests = [Submit(seq, prompt(9 + seq, seq), 12) for seq in range(3)]
    with process(socket, models / "llama", "--tensor-parallel", "2") as started:
        worker = connect(socket)
        assert isinstance(read_until(worker, Ready)[-1], Ready)
        for round_ in range(2):
            for request, answer in zip(requests, answers(worker, requests).values(), strict=True):
                assert answer.ids == reference("llama", request.prompt, 12).ids
            if not round_:
                worker.send(Manage(1, "sleep", level=2))
                refusal, *_ = read_until(worker, Managed)
                assert isinstance(refusal, Managed)
                assert "sleeps at level 1" in (refusal.error or "")
                worker.send(Manage(2, "sleep"))
                read_until(worker, Ready)
                worker.send(Manage(3, "wake"))
                read_until(worker, Managed)
        worker.send(Submit(9, prompt(3, 9), CONTEXT - 3))
        assert isinstance(worker.read(1)[0], Step)
        (rank,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(rank), signal.SIGKILL)
        assert started.wait(TIMEOUT) == 1
        worker.socket.close()


def test_a_process_that_cannot_load_says_why_and_exits(tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    with process(socket, tmp_path / "nothing") as started:
        worker = connect(socket)
        assert read_until(worker, Failed)[-1] == Failed(f"There is no model folder '{tmp_path / 'nothing'}'.")
        assert started.wait(TIMEOUT) == 1
        worker.socket.close()


def test_a_process_in_waiting_imports_at_once_and_loads_when_it_is_called(models: Path, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    with process(socket, models / "llama", "--standby=imported") as waiting:
        deadline = time.monotonic() + START_TIMEOUT
        while "libtorch_cpu" not in Path(f"/proc/{waiting.pid}/maps").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not socket.exists()
        assert waiting.stdin is not None
        waiting.stdin.write(b"\n")
        waiting.stdin.flush()
        worker = connect(socket)
        assert isinstance(read_until(worker, Ready)[-1], Ready)
        worker.socket.close()


def test_a_process_in_waiting_that_has_loaded_the_model_is_ready_when_it_listens(models: Path, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    with process(socket, models / "llama", "--standby=loaded") as waiting:
        assert waiting.stderr is not None
        assert waiting.stdin is not None
        lines = iter(waiting.stderr.readline, b"")
        assert any(b"engine.started" in line for line in lines)
        assert not socket.exists()
        waiting.stdin.write(b"\n")
        waiting.stdin.flush()
        worker = connect(socket)
        assert isinstance(read_until(worker, Ready)[-1], Ready)
        worker.send(Submit(0, prompt(3, 0), 4))
        assert isinstance(worker.read(1)[0], Step)
        assert b'"loaded": true' in next(line for line in lines if b"engine.called" in line)
        worker.socket.close()


def test_command_line_options_are_the_fields_of_engine_options(tmp_path: Path) -> None:
    given = ["--socket", "s", "--model", "m", "--no-prefix-caching", "--kv-tokens", "99", "--dtype", "bfloat16"]
    options = EngineOptions("m", dtype="bfloat16", kv_tokens=99, prefix_caching=False)
    assert parse(given) == (Path("s"), None, options, None)
    asked = EngineOptions("m", reranker=Reranker(prompt=("{query}", "{document}")), lora_adapters={"a": "-b"})
    assert parse(engine_command(asked, Path("s"))[3:]) == (Path("s"), None, asked, None)


def test_an_engine_that_listens_on_tcp_needs_a_secret(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    given = ["--listen", "tcp://127.0.0.1:7000", "--secret-env", "THE_SECRET", "--model", "m"]
    for secret, why in ((None, "THE_SECRET is not set"), ("short", "THE_SECRET has 5 characters")):
        monkeypatch.delenv("THE_SECRET", raising=False)
        if secret:
            monkeypatch.setenv("THE_SECRET", secret)
        with pytest.raises(SystemExit):
            parse(given)
        assert why in capsys.readouterr().err
    monkeypatch.setenv("THE_SECRET", "long enough, is it")
    assert parse(given)[:2] == (TcpAddress("127.0.0.1", 7000), b"long enough, is it")


@contextmanager
def in_process(options: EngineOptions) -> Iterator[tuple[InProcessEngine, SimpleQueue[FromEngine]]]:
    messages: SimpleQueue[FromEngine] = SimpleQueue()
    threads = torch.get_num_threads()
    engine = InProcessEngine(options, messages.put)
    try:
        yield engine, messages
    finally:
        engine.close()
        torch.set_num_threads(threads)


def start(messages: SimpleQueue[FromEngine]) -> FromEngine:
    while isinstance(message := messages.get(timeout=START_TIMEOUT), Loading):
        pass
    return message


def idle(messages: list[Any], blocks: int) -> bool:
    """Whether they are one pong, of an idle engine with this many blocks."""
    pongs = [message for message in messages if isinstance(message, Pong)]
    return [(pong.running, pong.waiting, pong.free_blocks) for pong in pongs] == [(0, 0, blocks)]


@pytest.mark.parametrize(("family", "path"), [("llama", "packed"), ("rwkv", "per_sequence")])
def test_a_thread_answers_like_generate(family: str, path: str, models: Path) -> None:
    options = EngineOptions(str(models / family), threads=1, context_length=64, max_sequences=4, kv_tokens=200)
    with in_process(options) as (engine, messages):
        ready = start(messages)
        assert ready == Ready(
            64,
            VOCAB,
            (2,),
            "float32",
            "cpu",
            path,
            4,
            embedding_size=48 if path == "packed" else 0,
            block_size=16 if path == "packed" else 0,
        )
        for seq in range(6):
            engine.send(Submit(seq, prompt(9 + seq, seq), 12))
        found = {seq: Answer() for seq in range(6)}
        while not all(answer.ended for answer in found.values()):
            message = messages.get(timeout=TIMEOUT)
            assert isinstance(message, Step)
            for output in message.outputs:
                found[output.seq].add(output)
        for seq, answer in found.items():
            assert answer.ids == reference(family, prompt(9 + seq, seq), 12).ids
        engine.send(Ping(5))
        assert idle([messages.get(timeout=TIMEOUT)], 13)


def test_an_engine_reports_the_blocks_that_a_worker_names(models: Path) -> None:
    """The same names in both, and an engine that is given them finds the blocks under them."""
    options = EngineOptions(str(models / "llama"), threads=1, context_length=64, kv_tokens=200, block_size=8)
    with in_process(options) as (engine, messages):
        ready = start(messages)
        assert isinstance(ready, Ready)
        assert ready.block_size == 8
        asked = Submit(0, prompt(33, 0), 3)
        keys = b"".join(prompt_keys(asked, 8))
        assert len(keys) == 4 * 16
        engine.send(Watch())
        assert messages.get(timeout=TIMEOUT) == Cached(b"")
        reported, cached = b"", []
        for submit in (asked, replace(asked, seq=1, block_keys=keys)):
            engine.send(submit)
            ended = False
            while not ended:
                step = messages.get(timeout=TIMEOUT)
                assert isinstance(step, Step)
                reported += step.stored
                cached += [output.cached_tokens for output in step.outputs if output.cached_tokens]
                ended = any(output.reason for output in step.outputs)
        assert reported == keys
        assert cached == [32]
        engine.send(Watch())
        answer = messages.get(timeout=TIMEOUT)
        assert isinstance(answer, Cached)
        assert answer.keys == keys


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "/nowhere"}, "There is no model folder '/nowhere'."),
        ({"execution_path": "fast"}, "execution_path must be auto, packed or per_sequence, not 'fast'."),
        ({"block_size": 0}, "block_size must be at least 1, not 0."),
        ({"kv_tokens": -5}, "kv_tokens must not be negative."),
    ],
)
def test_a_thread_that_cannot_load_says_why(changes: dict[str, Any], why: str, models: Path) -> None:
    with in_process(EngineOptions(**{"model": str(models / "llama"), **changes})) as (_, messages):
        assert start(messages) == Failed(why)


def test_the_context_length_is_limited_by_the_cache(models: Path) -> None:
    with in_process(EngineOptions(str(models / "llama"), kv_tokens=40)) as (_, messages):
        ready = start(messages)
        assert isinstance(ready, Ready)
        assert ready.context_length == 48
