"""An engine without a model: speaks the messages, answers by a rule, dies and hangs on demand. Needs no torch.

Reached in process (`connect`) or over a real socket (`serve`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

from backends.native.client.engine_client import EngineClient
from backends.native.client.inflight import InFlightRequest
from backends.native.client.transports import OnLost, OnMessage
from backends.native.protocol.frames import FrameReader, encode_frame
from backends.native.protocol.messages import (
    Cancel,
    FromEngine,
    Logprobs,
    Output,
    Ping,
    Pong,
    Ready,
    Step,
    Submit,
    ToEngine,
)
from schemas.ir import FinishReason

READY = Ready(2048, 768, (1,), "float32", "cpu", "packed", 64)


def count_up(submit: Submit) -> Iterator[int]:
    """Count on from the prompt's last token."""
    last = submit.prompt[-1]
    return iter(range(last + 1, last + 1 + submit.max_new_tokens))


@dataclass(slots=True, eq=False)
class _Running:
    submit: Submit
    ids: Iterator[int]
    generated: int = 0


@dataclass(slots=True, eq=False)
class FakeEngine:
    """`rule` says which ids follow a prompt; a choice ends as the real engine's does, or with its ids.

    `step` sends every running sequence's next `burst` tokens; while `auto`, the event loop calls it. While `up` is
    False, connections are refused; while `silent`, pings are not answered.
    """

    rule: Callable[[Submit], Iterator[int]] = count_up
    ready: Ready = READY
    burst: int = 1
    auto: bool = True
    up: bool = True
    silent: bool = False
    killed: bool = False
    greeting: FromEngine | None = None
    running: dict[tuple[int, int], _Running] = field(default_factory=dict)
    received: list[ToEngine] = field(default_factory=list)
    connections: dict[int, tuple[OnMessage, OnLost]] = field(default_factory=dict)
    _connected: int = 0
    _scheduled: bool = False

    @property
    def submitted(self) -> list[Submit]:
        return [message for message in self.received if isinstance(message, Submit)]

    @property
    def cancelled(self) -> list[int]:
        return [message.seq for message in self.received if isinstance(message, Cancel)]

    def attach(self, on_message: OnMessage, on_lost: OnLost) -> int:
        if not self.up:
            raise ConnectionRefusedError
        self._connected += 1
        self.connections[self._connected] = on_message, on_lost
        asyncio.get_running_loop().call_soon(on_message, self.greeting or self.ready)
        return self._connected

    def detach(self, connection: int) -> None:
        self.connections.pop(connection, None)
        for key in [key for key in self.running if key[0] == connection]:
            del self.running[key]

    def die(self) -> None:
        """Lose all state, and report the loss to every connection."""
        for connection, (_, on_lost) in list(self.connections.items()):
            self.detach(connection)
            on_lost()

    def handle(self, connection: int, message: ToEngine) -> None:
        self.received.append(message)
        match message:
            case Submit():
                received = len(message.received)
                self.running[connection, message.seq] = _Running(
                    message, islice(self.rule(message), received, None), received
                )
                self._schedule()
            case Cancel():
                self.running.pop((connection, message.seq), None)
            case Ping() if not self.silent:
                self.send(connection, Pong(message.token, len(self.running)))

    def send(self, connection: int, message: FromEngine) -> None:
        self.connections[connection][0](message)

    def step(self) -> None:
        steps: dict[int, list[Output]] = {}
        for key, sequence in list(self.running.items()):
            output = self._advance(sequence)
            steps.setdefault(key[0], []).append(output)
            if output.reason is not None:
                del self.running[key]
        for connection, outputs in steps.items():
            self.send(connection, Step(tuple(outputs)))

    def _schedule(self) -> None:
        if self.auto and self.running and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step_and_reschedule)

    def _step_and_reschedule(self) -> None:
        self._scheduled = False
        self.step()
        self._schedule()

    def _advance(self, sequence: _Running) -> Output:
        submit = sequence.submit
        first = sequence.generated == 0
        ids: list[int] = []
        reason = None if submit.max_new_tokens else FinishReason.LENGTH
        while reason is None and len(ids) < self.burst:
            id = next(sequence.ids, submit.eos_token_ids[0] if submit.eos_token_ids else 0)
            ids.append(id)
            sequence.generated += 1
            reason = _reason(submit, id, sequence.generated)
        return Output(
            submit.seq,
            tuple(ids),
            reason,
            logprobs=tuple(_logprobs(id, submit.top_logprobs) for id in ids) if submit.top_logprobs >= 0 else (),
            prompt=_scored(submit) if first else (),
            cached_tokens=len(submit.prompt) - 1 if first else 0,
        )

    async def connect(self, on_message: OnMessage, on_lost: OnLost) -> FakeTransport:
        return FakeTransport(self, self.attach(on_message, on_lost))

    @asynccontextmanager
    async def serve(self, path: str) -> AsyncIterator[None]:
        """Listen on a Unix socket."""

        async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = self.attach(lambda message: writer.write(encode_frame(message)), writer.close)
            frames: FrameReader[ToEngine] = FrameReader(ToEngine)
            with suppress(ConnectionError):  # a worker that disconnects in the middle of a frame
                while data := await reader.read(7):
                    for message in frames.feed(data):
                        self.handle(connection, message)
            self.detach(connection)
            writer.close()

        server = await asyncio.start_unix_server(serve_one, path)
        try:
            yield
        finally:
            self.die()
            server.close()
            await server.wait_closed()


@dataclass(slots=True, eq=False)
class FakeTransport:
    engine: FakeEngine
    connection: int
    remote: bool = False

    def send(self, message: ToEngine) -> None:
        if self.connection in self.engine.connections:
            self.engine.handle(self.connection, message)

    def kill(self) -> None:
        self.engine.killed = True

    async def aclose(self) -> None:
        self.engine.detach(self.connection)


def new_client(
    *engines: FakeEngine, heartbeat: float = 1.0, hung_after: float = 30.0, reconnect_timeout: float = 30.0
) -> EngineClient:
    return EngineClient(
        {str(number): engine.connect for number, engine in enumerate(engines)},
        heartbeat=heartbeat,
        hung_after=hung_after,
        reconnect_timeout=reconnect_timeout,
    )


def ask(client: EngineClient, *lengths: int) -> InFlightRequest:
    """Submit a request of one sequence per length; the n-th continues the token 10 * n."""
    seqs = client.reserve_seqs(len(lengths))
    return client.submit(
        [Submit(seq, (10 * n,), length) for n, (seq, length) in enumerate(zip(seqs, lengths, strict=True), 1)]
    )


async def until(true: Callable[[], bool]) -> None:
    """Run the event loop until the condition is true; fails after many turns."""
    for _ in range(20_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not become true")


def _reason(submit: Submit, id: int, generated: int) -> FinishReason | None:
    if generated > submit.min_new_tokens:
        if id in submit.eos_token_ids:
            return FinishReason.EOS
        if id in submit.stop_token_ids:
            return FinishReason.STOP_TOKEN
    return FinishReason.LENGTH if generated >= submit.max_new_tokens else None


def _logprobs(id: int, top: int) -> Logprobs:
    return Logprobs(-id / 100, tuple(range(id, id + top)), tuple(-id / 100 - place for place in range(top)))


def _scored(submit: Submit) -> tuple[Logprobs, ...]:
    if submit.prompt_logprobs < 0:
        return ()
    return (Logprobs(None), *(_logprobs(id, submit.prompt_logprobs) for id in submit.prompt[1:]))
