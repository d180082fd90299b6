"""The length of the request path: the product's files and functions that one streamed chat enters.

Counted: distinct code objects of `schemas`, `adapters`, `backends` and `gateway` (functions, methods, properties,
lambdas, generator expressions; before Python 3.12 comprehensions, too) that the event loop's thread enters for one
`POST /v1/chat/completions` with `"stream": true`, from the ASGI call until the end of the answer, after warm-up. This
is the worker's side. Not counted: other packages, C code, what only some of three such requests enter (timers that
happen to fire), and the task that looks at the worker's health four times a second, which a slow request always meets.
The native engine runs in a thread of the same process; what its thread enters is a line of its own.

    python -m benchmarks.request_path          # the numbers
    python -m benchmarks.request_path --list   # and the functions by file
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx

import gateway
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from gateway.observability import logging

ROOT = Path(gateway.__file__).parent.parent  # of what runs, which may be installed elsewhere
PACKAGES = tuple(f"{ROOT / package}/" for package in ("schemas", "adapters", "backends", "gateway"))
BACKENDS: dict[str, dict[str, Any]] = {
    "native": {"kind": "native", "engine": "inprocess", "threads": 1, "heartbeat": 60.0},
    "scripted": {"kind": "scripted"},
}
MODELS = {"native": "interlingua", "scripted": "echo"}
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
WARM_UP, REPEATS = 2, 3


class Function(NamedTuple):
    """A code object: its file below the repository, its qualified name and its line."""

    file: str
    name: str
    line: int


class Crossed(NamedTuple):
    """The functions that a request entered, in the event loop's thread and in the engine's."""

    worker: frozenset[Function]
    engine: frozenset[Function]


class Recorder:
    """Records which functions of the product are entered: by this thread, and by threads that start after `install`."""

    def __init__(self) -> None:
        self._entered: set[tuple[bool, Function]] = set()
        self._main = threading.get_ident()
        self._recording = False

    def install(self) -> None:
        """Have threads that start from now on call the profile hook."""
        threading.setprofile(self._hook)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record until the block ends."""
        self._recording = True
        sys.setprofile(self._hook)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._recording = False

    def take(self) -> Crossed:
        """The functions entered since the last call."""
        entered, self._entered = self._entered, set()
        worker = frozenset(function for in_loop, function in entered if in_loop)
        return Crossed(worker, frozenset(function for in_loop, function in entered if not in_loop))

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and self._recording and code.co_filename.startswith(PACKAGES) and not _watches():
            file = str(Path(code.co_filename).relative_to(ROOT))
            function = Function(file, code.co_qualname, code.co_firstlineno)
            self._entered.add((threading.get_ident() == self._main, function))


def _watches() -> bool:
    """Whether the running task is the worker's look at its health."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not in the event loop's thread
        return False
    coroutine = task.get_coro() if task is not None else None
    return getattr(coroutine, "__qualname__", "") == "Service._watch"


async def crossed(kind: str) -> Crossed:
    """Measure a streamed chat with a backend of this kind."""
    model = MODELS[kind]
    entity = ServedEntity(name=model, backend=kind)
    config = Config(backends={kind: BACKENDS[kind]}, endpoints={model: Endpoint(served_entities=(entity,))})
    recorder = Recorder()
    recorder.install()
    app = create_app(config)
    found: list[Crossed] = []
    async with app.lifespan():
        while app.state.service.health.status != "ready":  # noqa: ASYNC110 - a poll is what health is for
            await asyncio.sleep(0.01)
        # Litestar has types of its own for ASGI's messages.
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for number in range(WARM_UP + REPEATS):
                with recorder.recording():
                    await _ask(client, model)
                if number >= WARM_UP:
                    found.append(recorder.take())
                else:
                    recorder.take()
    threading.setprofile(None)
    return Crossed(
        reduce(frozenset.intersection, [each.worker for each in found]),
        reduce(frozenset.intersection, [each.engine for each in found]),
    )


async def _ask(client: httpx.AsyncClient, model: str) -> None:
    body = {"model": model, "messages": MESSAGES, "stream": True, "max_tokens": 32, "temperature": 0}
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions of each file, too")
    parser.add_argument("--kind", choices=tuple(BACKENDS), action="append", help="the backends to measure")
    given = parser.parse_args()
    logging.configure("error")
    for kind in given.kind or BACKENDS:
        found = asyncio.run(crossed(kind))
        _print(f"{kind}, worker", found.worker, listed=given.list)
        if found.engine:
            _print(f"{kind}, engine", found.engine, listed=given.list)


def _print(title: str, functions: frozenset[Function], *, listed: bool) -> None:
    by_file: defaultdict[str, list[Function]] = defaultdict(list)
    for function in sorted(functions):
        by_file[function.file].append(function)
    print(f"{title:17} {len(by_file):3d} files  {len(functions):4d} functions")
    if listed:
        for file, entered in by_file.items():
            print(f"  {file}  {len(entered)}")
            for function in entered:
                print(f"      {function.name}  {function.line}")


if __name__ == "__main__":
    main()
