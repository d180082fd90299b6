"""Thousands of requests through a gateway whose upstream fails at random, every one of them accounted for in a ledger.

A client gets the whole answer, or the beginning of it and an error, or has disconnected. Nothing is lost, duplicated,
mixed up, silently truncated or left hanging, in any protocol.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from backends.remote.backend import RemoteBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, Limits, ServedEntity, ServerSection
from schemas.ir import ChatPrompt, Generate, Message, Sampling, Stopping, TextPrompt
from tests.faults.recorded import ask, remote, text_of
from tests.faults.upstream import END, STREAM, Asked, Close, Hang, Pause, Reset, Step, chunk, response, upstream
from tests.gateway.serving import listening

pytestmark = pytest.mark.slow

REQUEST_TIMEOUT = 60.0  # seconds; no request takes as long, even on a busy machine
LIMITS = {"connect": REQUEST_TIMEOUT, "first_token": 3.0, "idle": 2.0, "whole": 3.0}
"""The gateway's timeouts for the upstream in seconds: reached only by the requests that hang there."""
CLIENTS = ("openai", "tgi", "triton", "databricks")
PREFIX = {"openai": "/v1"}


@dataclass
class Chaos:
    """An upstream of the OpenAI protocol that answers `<prompt> w0 w1 … w19`, with a fault in 24 % of the answers."""

    dice: random.Random
    begun: Counter[str] = field(default_factory=Counter)

    def __call__(self, asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET"):
            return (response(b'{"data":[]}'),)
        body = json.loads(asked.body)
        chat = "messages" in body
        name = body["messages"][0]["content"] if chat else body["prompt"]
        fault = int(self.dice.random() * 50)  # of 50 outcomes, 12 are faults
        early = _fault_before(fault)
        if early:
            return early
        self.begun[name] += 1
        words = answer(name).split(" ")
        if not body.get("stream"):
            return _with_fault(fault, [_whole(" ".join(words), chat)], 1)
        events = [_event(word if n == 0 else " " + word, chat) for n, word in enumerate(words)]
        return (STREAM, *_with_fault(fault, [*events, _event("", chat, "stop"), END], self.dice.randrange(1, 20)))


def answer(name: str) -> str:
    return name + "".join(f" w{n}" for n in range(20))


def _fault_before(fault: int) -> tuple[Step, ...]:
    match fault:
        case 0:
            return (Close(),)
        case 1:
            return (Reset(),)
        case 2:
            return (response(b"", "429 Too Many Requests", more="retry-after: 1\r\n"),)
        case 3:
            return (response(b"<html>", "503 Service Unavailable", "text/html"),)
        case 4:
            return (response(b"{}", "500 Internal Server Error"),)
        case 5:
            return (response(b"<html>hello</html>", "200 OK", "text/html"),)
    return ()


def _with_fault(fault: int, parts: list[bytes], k: int) -> tuple[Step, ...]:
    match fault:
        case 6:
            return (*parts[:k], Close())
        case 7:
            return (*parts[:k], Reset())
        case 8:
            return (*parts[:k], Hang())
        case 9:
            return (*parts[:k], chunk(b"data: {gar\x00bled\n\n"), *parts[k:])
        case 10:
            return (*parts[:k], chunk(b'data: {"error":{"message":"boom"}}\n\n'), END)
        case 11:
            joined = b"".join(parts)
            return (*(joined[at : at + 40] for at in range(0, len(joined), 40)),)
        case 12:
            return (*parts[:k], Pause(0.02), *parts[k:])
    return (b"".join(parts),)


def _event(text: str, chat: bool, reason: str | None = None) -> bytes:
    content = {"delta": {"content": text}} if chat else {"text": text}
    data = {"id": "x", "model": "m", "choices": [{"index": 0, **content, "finish_reason": reason}]}
    return chunk(b"data: " + json.dumps(data).encode() + b"\n\n")


def _whole(text: str, chat: bool) -> bytes:
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": 1, "completion_tokens": 21, "total_tokens": 22}
    return response(
        json.dumps(
            {"model": "m", "choices": [{"index": 0, **content, "finish_reason": "stop"}], "usage": usage}
        ).encode()
    )


def wanted(kind: str, name: str, *, stream: bool) -> Generate:
    prompt = ChatPrompt((Message("user", name),)) if kind == "openai" else TextPrompt(name)
    return Generate(
        id=name,
        model="m",
        prompts=(prompt,),
        stream=stream,
        sampling=Sampling(temperature=0),
        stopping=Stopping(max_new_tokens=64),
    )


async def one(client: RemoteBackend, kind: str, name: str, dice: random.Random) -> str:
    """Send one request; its entry in the ledger."""
    asking = asyncio.create_task(ask(client, wanted(kind, name, stream=dice.random() < 0.7)))
    if dice.random() < 0.02:
        await asyncio.sleep(dice.random() * 0.02)
        if not asking.done():
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            return "disconnected"
    async with asyncio.timeout(REQUEST_TIMEOUT):
        events, error = await asking
    text = text_of(events)
    if error is None:
        assert text == answer(name), f"{kind}: {text!r} for {name}"
        return "whole"
    assert answer(name).startswith(text), f"{kind}: {text!r} for {name}"
    return "failed"


LONG = (pytest.mark.slow, pytest.mark.no_cover)
"""Coverage is measured with fewer requests: to count the lines of these takes as long as to run them."""


@pytest.mark.parametrize("requests", [1000, pytest.param(20_000, marks=LONG)])
async def test_every_request_is_accounted_for(requests: int) -> None:
    dice = random.Random(11)
    chaos = Chaos(random.Random(12))
    ledger: Counter[str] = Counter()
    async with upstream(chaos) as there:
        app = create_app(_config(there.url))
        far = app.state.service.backends["far"]
        async with listening(app) as port:
            waiting = iter(range(requests))

            async def client(kind: str) -> None:
                url = f"http://127.0.0.1:{port}{PREFIX.get(kind, '')}"
                async with remote(kind, url, retries={"attempts": 1}, timeouts={"idle": REQUEST_TIMEOUT}) as me:
                    await asyncio.gather(*(worker(me, kind) for _ in range(200 // len(CLIENTS))))

            async def worker(me: RemoteBackend, kind: str) -> None:
                for number in waiting:
                    ledger[await one(me, kind, f"r{number}", dice)] += 1

            await asyncio.gather(*map(client, CLIENTS))
            async with asyncio.timeout(REQUEST_TIMEOUT):
                while far._connected.requests.pool.busy or app.state.service.running:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    assert ledger.total() == requests
    assert ledger["whole"] > 0.7 * requests
    assert ledger["failed"] > 0.05 * requests
    assert ledger["disconnected"] > 0
    assert max(chaos.begun.values()) == 1, "something was generated twice"
    print(dict(ledger))


def _config(url: str) -> Config:
    far = {
        "kind": "openai",
        "url": f"{url}/v1",
        "timeouts": LIMITS,
        "health_interval": 3600.0,
    }
    entity = ServedEntity(name="m", backend="far")
    server = ServerSection(limits=Limits(max_concurrent_requests=4096))
    return Config(server=server, backends={"far": far}, endpoints={"m": Endpoint(served_entities=(entity,))})
