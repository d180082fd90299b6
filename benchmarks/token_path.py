"""CPU microseconds of a token between an engine and a worker, both ends: `python -m benchmarks.token_path`.

Both ends are the product's, without a model: an engine process that makes a token for each stream every 20 ms, and in
this process an engine client with a task per stream that takes the tokens. Over a Unix socket and over TCP in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import uvloop

from backends.native.client.engine_client import EngineClient
from backends.native.client.transports import over_socket, over_tcp
from backends.native.engine.serving.engine_thread import Inbox, serve, stop
from backends.native.engine.serving.socket import SocketServer
from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.messages import Cached, Managed, Output, Ping, Pong, Ready, Step, Submit, ToEngine
from schemas.ir import FinishReason

READY = Ready(2048, 768, (1,), "float32", "cpu", "packed", 256)
STEP = 0.020  # seconds
HOST = "127.0.0.1"


class Producer:
    """An engine whose next token is the number of the step. Implements `steps.Steps`."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], int] = {}
        self._next = 0.0

    @property
    def busy(self) -> bool:
        """Whether there are streams."""
        return bool(self._left)

    def handle(self, connection: int, message: ToEngine) -> Pong | Cached | Managed | None:
        """Begin a stream, or answer a ping."""
        match message:
            case Submit():
                self._left[connection, message.seq] = message.max_new_tokens
            case Ping():
                return Pong(message.token, len(self._left))
        return None

    def disconnect(self, connection: int) -> None:
        """Forget the streams of a connection."""
        self._left = {key: left for key, left in self._left.items() if key[0] != connection}

    def step(self) -> dict[int, Step]:
        """Wait for the next step, and give each stream a token."""
        now = time.monotonic()
        self._next = max(now, self._next)
        time.sleep(self._next - now)
        self._next += STEP
        outputs: dict[int, list[Output]] = {}
        for (connection, seq), left in [*self._left.items()]:
            reason = FinishReason.LENGTH if left == 1 else None
            outputs.setdefault(connection, []).append(Output(seq, (left % 700,), reason))
            if reason is None:
                self._left[connection, seq] = left - 1
            else:
                del self._left[connection, seq]
        ended = time.monotonic()
        return {connection: Step(tuple(each), ended) for connection, each in outputs.items()}


def produce(address: Path | TcpAddress, secret: bytes | None) -> None:
    """Be the engine process: print the port, and at the end of the input the CPU seconds since the first line of it."""
    inbox: Inbox = SimpleQueue()
    server = SocketServer(address, inbox, secret=secret)
    server.announce(READY)
    print(server.port if isinstance(address, TcpAddress) else 0, flush=True)
    stopping = Event()
    before = 0.0

    def control() -> None:
        nonlocal before
        sys.stdin.readline()
        before = time.process_time()
        sys.stdin.readline()
        print(time.process_time() - before, flush=True)
        stop(inbox, stopping)

    Thread(target=control, daemon=True).start()
    serve(Producer(), inbox, server.send, stopping)
    server.close()


async def measure(remote: bool, streams: int, tokens: int) -> tuple[float, float]:
    """CPU seconds of both ends, the worker's first, while all streams run to their end."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "socket")
        given = ["--produce", "tcp" if remote else str(path), "--secret", secret]
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.token_path",
            *given,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(await child.stdout.readline())
        connect = over_tcp(TcpAddress(HOST, port), secret.encode) if remote else over_socket(str(path))
        client = EngineClient({"engine": connect}, heartbeat=1.0, hung_after=30.0, reconnect_timeout=30.0)
        try:
            await client.start()
            child.stdin.write(b"begin\n")
            await child.stdin.drain()
            before = time.process_time()
            await asyncio.gather(*(stream(client, tokens) for _ in range(streams)))
            spent = time.process_time() - before
            child.stdin.write(b"end\n")
            await child.stdin.drain()
            return spent, float(await child.stdout.readline())
        finally:
            await client.aclose()
            child.stdin.close()
            await child.wait()


async def stream(client: EngineClient, tokens: int) -> None:
    """Take all tokens of one stream."""
    (seq,) = client.reserve_seqs(1)
    request = client.submit([Submit(seq, (1, 2, 3), tokens)])
    taken = 0
    while taken < tokens:
        taken += sum(len(output.ids) for output in await request.outputs())
    client.release(request)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=500, help="of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.produce is not None:
        over = TcpAddress(HOST, 0) if given.produce == "tcp" else Path(given.produce)
        produce(over, given.secret.encode())
        return
    for streams in given.streams:
        found: dict[str, list[tuple[float, float]]] = {"Unix socket": [], "TCP": []}
        for _ in range(given.rounds):
            for name, each in found.items():
                spent = uvloop.run(measure(name == "TCP", streams, given.tokens))
                each.append((spent[0] / streams / given.tokens * 1e6, spent[1] / streams / given.tokens * 1e6))
        for name, each in found.items():
            worker, engine = (statistics.median(end) for end in zip(*each, strict=True))
            both = statistics.median(map(sum, each))
            ends = f"worker {worker:6.1f}, engine {engine:6.1f}, both {both:6.1f}"
            print(f"{streams:3} streams, {name:12} {ends} µs a token")


if __name__ == "__main__":
    main()
