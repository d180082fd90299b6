"""The soak's clients: paced random requests over all protocols, and how each of them ended."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
TIMEOUT = 120.0
"""Seconds after which a request hangs."""
_PAUSE = 0.05
_DONE = rb"data: \[DONE\]"
_ERROR = re.compile(rb'"error":\s*["{]|"type":"(error|response.failed)"')
_LENGTH = re.compile(r"^content-length: (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """One request: its path, body, what the client does with it, and a pattern that only the end of its stream has."""

    name: str
    path: str
    body: bytes
    behaviour: str = "reads"
    end: bytes = _DONE


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        ended: how requests ended, by the kind of request.
        ids: how the request with this id ended.
        unnamed: requests that were sent and whose connection ended before an id was read: the log may have their lines.
    """

    ended: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ids: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0

    def add(self, call: Call, how: str, id: str | None) -> None:
        """Count a request."""
        self.ended[call.name][how] += 1
        if id is not None:
            self.ids[id] = how
        elif how != "not connected":
            self.unnamed += 1

    def count(self, *hows: str) -> int:
        """Requests that ended in one of these ways."""
        return sum(count[how] for count in self.ended.values() for how in hows)

    @property
    def sent(self) -> int:
        """All requests."""
        return sum(sum(count.values()) for count in self.ended.values())


class Pace:
    """Lets requests begin at an even rate, whoever sends them.

    Args:
        rate: requests a second; 0: no bound.
    """

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for a turn. Turns that nobody took are lost: a burst after a pause would be another load."""
        now = asyncio.get_running_loop().time()
        self._next = max(now, self._next + self._interval)
        await asyncio.sleep(self._next - now)


def random_call(chance: random.Random) -> Call:
    """A random request."""
    model = chance.choice(("demo", "demo", "echo"))
    text = chance.choice(("Tell me a story.", "Count to ten.", f"What is {chance.randrange(99)} plus one?"))
    stream, few = chance.random() < 0.5, chance.randrange(4, 24)
    chat = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": few, "stream": stream}
    image = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]
    seen = {"model": "demo", "messages": [{"role": "user", "content": [*image, {"type": "text", "text": "What?"}]}]}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    strict = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    response = {"model": model, "input": text, "max_output_tokens": 16, "stream": stream}
    inputs = {"inputs": text, "parameters": {"max_new_tokens": few}}
    triton = {"text_input": text, "parameters": {"max_tokens": few}}
    openai = "/v1/chat/completions"
    choices: list[Callable[[], Call]] = [
        lambda: _call("openai", openai, chat),
        lambda: _call("databricks", f"/serving-endpoints/{model}/invocations", chat),
        lambda: _call("anthropic", "/v1/messages", chat, end=b'"type":"message_stop"'),
        lambda: _call("responses", "/v1/responses", response, end=rb'"type":"response\.(in)?complete'),
        lambda: _call("triton", f"/v2/models/{model}/generate", triton),
        lambda: _call("tgi", "/generate", inputs),
        lambda: _call("tgi stream", "/generate_stream", inputs, end=b'"generated_text":"'),
        lambda: _call("image", openai, seen | {"max_tokens": few}),
        lambda: _call("grammar", openai, chat | {"model": "demo", "response_format": strict}),
        lambda: _call("cancelled", openai, chat | {"stream": True, "max_tokens": 200}, "cancels"),
        lambda: Call("malformed", openai, b'{"model": "demo", "messages": [' + b"[" * 99),
        lambda: _call("slow writer", openai, chat, "drips"),
        lambda: _call("silent writer", openai, chat, "stops writing"),
        lambda: _call("slow reader", openai, chat | {"stream": True}, "dawdles"),
    ]
    return chance.choices(choices, (4, 2, 3, 2, 2, 2, 2, 1, 2, 3, 1, 0.3, 0.1, 0.5))[0]()


def _call(name: str, path: str, body: dict[str, Any], behaviour: str = "reads", end: bytes = _DONE) -> Call:
    return Call(name, path, json.dumps(body).encode(), behaviour, end)


async def client(port: int, seed: int, pace: Pace, seen: Seen, stop: asyncio.Event) -> None:
    """Send requests until stopped."""
    chance = random.Random(seed)
    while not stop.is_set():
        await pace.turn()
        call = random_call(chance)
        id: list[str] = []
        try:
            async with asyncio.timeout(TIMEOUT):
                how = await _exchange(port, call, chance, id)
        except TimeoutError:
            how = "HUNG"
        except ConnectionRefusedError:
            how = "not connected"
        except (OSError, asyncio.IncompleteReadError):
            how = "connection ended"
        seen.add(call, how, id[0] if id else None)
        if how in ("connection ended", "not connected", "503"):
            await asyncio.sleep(_PAUSE)


async def _exchange(port: int, call: Call, chance: random.Random, id: list[str]) -> str:
    """Send a request and read its answer; how it ended. The request's id is appended to `id` once it is known."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        length = len(call.body)
        writer.write(f"POST {call.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n".encode())
        writer.write(f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode())
        await _send_body(writer, call)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        id += [line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("x-request-id: ")][:1]
        if (status := head.split()[1]) != "200":
            # The edge answers in plain text what no handler sees; the metrics count it, the log does not.
            return f"{status} at the edge" if "content-type: text/plain" in head else status
        if call.behaviour == "cancels":
            await reader.read(chance.randrange(1, 2000))
            return "left"
        body = await _read(reader, slowly=call.behaviour == "dawdles")
        return _end_of_stream(call, body) if "text/event-stream" in head else _end_of_whole(head, body)
    finally:
        writer.close()


def _end_of_whole(head: str, body: bytes) -> str:
    announced = _LENGTH.search(head)
    return "whole" if announced is not None and int(announced[1]) == len(body) else "connection ended"


def _end_of_stream(call: Call, body: bytes) -> str:
    if not body.endswith(b"0\r\n\r\n"):  # the last chunk: without it every client knows that bytes are missing
        return "connection ended"
    if _ERROR.search(body):
        return "error event"
    return "whole" if re.search(call.end, body) else "FALSE END"


async def _send_body(writer: asyncio.StreamWriter, call: Call) -> None:
    if call.behaviour == "stops writing":
        writer.write(call.body[:5])
        await writer.drain()
        return
    if call.behaviour == "drips":
        for at in range(10):
            writer.write(call.body[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(call.body[10:])
    else:
        writer.write(call.body)
    await writer.drain()


async def _read(reader: asyncio.StreamReader, *, slowly: bool) -> bytes:
    parts = []
    while part := await reader.read(200 if slowly else 1 << 16):
        parts.append(part)
        if slowly:
            await asyncio.sleep(0.02)
    return b"".join(parts)
