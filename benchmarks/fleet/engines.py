"""The trace of a simulation over real sockets, to real engine processes: what the simulation is validated with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
import numpy
from msgspec.structs import replace

from backends.affinity import AffinityPolicy
from backends.native.client.engine_client import EngineClient
from backends.native.client.engine_process import engine_command
from backends.native.client.transports import over_socket
from backends.native.demo import WEIGHTS
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import SamplingParams, Submit
from benchmarks.fleet.cell import HEARTBEAT, Plan, Result, engine_name
from benchmarks.fleet.replica import Job, Shape, Speed
from benchmarks.fleet.traffic import Conversation, Lengths, Load, Traffic

SHAPE = Shape(blocks=1000, block=16, sequences=16, step_tokens=256)
LENGTHS = Lengths(systems=(64, 768), question=(10, 22), answer=(24, 40), most=256, context=2048)
"""For the bundled model, whose context has 2,048 tokens."""
_KNOTS = (8, 16, 32, 64, 128, 192, 255, 256)
"""Tokens of prompts in a step for which its time is fitted. A full step is quicker than one that is nearly full."""
_FITS = 5
"""Of step times and of the machine's pace, in turns."""
_FIRST_ID, _LAST_ID = 300, 767  # of the tokens of prompts
_LOADING = 300.0  # seconds at most


class Measured(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step: its sequences, the cached tokens of those in decode, its tokens of prompts; when it began in the run, and
    its seconds, up to the next step if there was one at once.
    """

    sequences: int
    cached: int
    prompt: int
    began: float
    seconds: float


def drive(number: int, plan: Plan, load: Load, seed: int, slowdown: float) -> tuple[Result, list[Measured]]:
    """Run a plan's traffic over so many real engines; what came of it, and all steps of the engines.

    Faults, deploys and scaling of the plan have no effect.
    """
    with _running(number, slowdown) as (sockets, measured):
        run = _Drive(sockets, plan, load, seed)
        result = asyncio.run(run.run())
    return result, [replace(each, began=each.began - run.began) for each in measured]


def throughput(number: int, slowdown: float, seconds: float) -> float:
    """Tokens per second of so many real engines that always have more to do than they take at a time."""
    with _running(number, slowdown) as (sockets, _):
        return asyncio.run(_saturate(sockets, seconds))


async def _saturate(sockets: Sequence[str], seconds: float) -> float:
    client = _client(sockets, "prefix")
    made = 0

    async def ask_again_and_again(number: int) -> None:
        nonlocal made
        fill = Random(number)
        while True:
            (seq,) = client.reserve_seqs(1)
            prompt = tuple(fill.randint(_FIRST_ID, _LAST_ID) for _ in range(24))
            left = fill.randint(20, 60)
            request = client.submit([Submit(seq, prompt, left)])
            while left:
                new = sum(len(output.ids) for output in await request.outputs())
                left, made = left - new, made + new
            client.release(request)

    try:
        await _ready(client)
        asking = [asyncio.create_task(ask_again_and_again(number)) for number in range(24 * len(sockets))]
        await asyncio.sleep(seconds / 4)  # until all are at different places
        before, began = made, time.monotonic()
        await asyncio.sleep(seconds)
        found = (made - before) / (time.monotonic() - began)
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        return found
    finally:
        await client.aclose()


def _client(sockets: Sequence[str], routing: AffinityPolicy) -> EngineClient:
    connects = {engine_name(number): over_socket(socket) for number, socket in enumerate(sockets)}
    return EngineClient(connects, heartbeat=HEARTBEAT, hung_after=60.0, reconnect_timeout=60.0, routing=routing)


async def _ready(client: EngineClient) -> None:
    """Wait for all engines."""
    async with asyncio.timeout(_LOADING):
        await client.start()
        while not all(link.ready for link in client.links):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def fitted(measured: Sequence[Measured]) -> Speed:
    """The step times of a simulated engine, by least squares, and by how much the machine was slower or quicker in each
    second than in the mean of the run.
    """
    prompts = numpy.array([each.prompt for each in measured])
    # Of each number of tokens in `_KNOTS`, how much a step counts for it: a hat function.
    hats = [numpy.interp(prompts, _KNOTS, hat) * (prompts > 0) for hat in numpy.eye(len(_KNOTS))]
    rows = numpy.c_[[(1, each.sequences, each.cached) for each in measured], numpy.transpose(hats)]
    seconds = numpy.array([each.seconds for each in measured])
    when = numpy.array([int(each.began) for each in measured])
    pace = numpy.ones(when.max() + 1)
    for _ in range(_FITS):
        found = numpy.linalg.lstsq(rows * pace[when][:, None], seconds, rcond=None)[0]
        usual = numpy.bincount(when, rows @ found, len(pace))
        pace = numpy.divide(numpy.bincount(when, seconds, len(pace)), usual, out=numpy.ones(len(pace)), where=usual > 0)
    step, sequence, cached, *table = (float(each) for each in found)
    by_prompt = tuple(zip((0, *_KNOTS), (table[0], *table), strict=True))
    return Speed(step, sequence, cached, by_prompt, tuple(pace.tolist()))


@contextmanager
def _running(number: int, slowdown: float) -> Iterator[tuple[list[str], list[Measured]]]:
    """Run so many engines of the bundled model: their sockets, and their steps once they have ended."""
    options = EngineOptions(
        str(WEIGHTS),
        dtype="float32",
        device="cpu",
        threads=1,
        max_sequences=SHAPE.sequences,
        step_tokens=SHAPE.step_tokens,
        block_size=SHAPE.block,
        kv_tokens=SHAPE.blocks * SHAPE.block,
        text_only=True,
    )
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        sockets = [f"{folder}/{each}" for each in range(number)]
        processes = []
        try:
            for socket in sockets:
                command = engine_command(options, Path(socket))
                command[command.index("-m") + 1] = "benchmarks.fleet.slowed"
                given = {"SLOWDOWN": str(slowdown), "STEPS": f"{socket}.steps", "OMP_NUM_THREADS": "1"}
                processes.append(subprocess.Popen(command, env=os.environ | given))
            yield sockets, measured
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)
        for socket in sockets:
            measured += msgspec.msgpack.decode(Path(f"{socket}.steps").read_bytes(), type=list[Measured])


class _Drive:
    """A gateway's clients, each with links to all engines, and the conversations over them. `began`: the run."""

    def __init__(self, sockets: Sequence[str], plan: Plan, load: Load, seed: int) -> None:
        assert plan.policy in ("prefix", "conversation", "least")
        self._clients = [_client(sockets, plan.policy) for _ in range(plan.gateways)]
        self._plan = plan
        self._traffic = Traffic(load, seed, SHAPE.block, plan.gateways)
        self._result = Result()
        self.began = 0.0
        self._closed = float("inf")

    async def run(self) -> Result:
        """Wait for the engines, and run until all conversations have ended."""
        try:
            await asyncio.gather(*map(_ready, self._clients))
            self.began = time.monotonic()
            await self._arrivals()
        finally:
            for client in self._clients:
                await client.aclose()
        self._result.seconds = self._closed
        return self._result

    @property
    def _now(self) -> float:
        return time.monotonic() - self.began

    async def _arrivals(self) -> None:
        """Begin conversations when the trace does."""
        now = 0.0
        async with asyncio.TaskGroup() as conversations:
            while True:
                now = self._traffic.next_arrival(now)
                await asyncio.sleep(max(0.0, now - self._now))
                if self._result.asked >= self._plan.requests:
                    self._closed = now
                    return
                conversations.create_task(self._converse(self._traffic.begin()))

    async def _converse(self, conversation: Conversation) -> None:
        tokens: list[int] = []
        fill = Random(conversation.number)
        # What system prompts have in common are full blocks; the rest of a text is its conversation's own.
        for key in conversation.keys:
            shared = Random(key)
            tokens += [shared.randint(_FIRST_ID, _LAST_ID) for _ in range(SHAPE.block)]
        while True:
            self._result.asked += 1
            job = self._traffic.turn(conversation, self._now)
            tokens += [fill.randint(_FIRST_ID, _LAST_ID) for _ in range(job.prompt - len(tokens))]
            tokens += await self._ask(job, tuple(tokens))
            if not conversation.turns:
                return
            await asyncio.sleep(self._traffic.pause(conversation))

    async def _ask(self, job: Job, prompt: tuple[int, ...]) -> list[int]:
        """The answer's tokens."""
        client, result, ids = self._clients[job.gateway], self._result, list[int]()
        counts = job.arrived >= self._plan.warmup and job.arrived < self._closed
        (seq,) = client.reserve_seqs(1)
        sampling = SamplingParams(temperature=1.0, seed=seq)
        request = client.submit([Submit(seq, prompt, job.answer, sampling)], job.conversation)
        try:
            while len(ids) < job.answer:
                for output in await request.outputs():
                    assert output.error is None, output.error
                    if not ids:
                        job.first = self._now
                        if counts:
                            result.first.append(job.first - job.arrived)
                            result.prompt_tokens += job.prompt
                            result.cached_tokens += output.cached_tokens
                    ids += output.ids
        finally:
            client.release(request)
        result.ended += 1
        if self._plan.warmup <= self._now < self._closed:
            result.tokens += job.answer
        if job.answer > 1:
            result.between.append((self._now - job.first) / (job.answer - 1))
        return ids
