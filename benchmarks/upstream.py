"""An upstream with next to no cost: canned chats and completions of the OpenAI protocol, selected by the model's name.

    python -m benchmarks.upstream PORT

`limited` answers after 50 ms, eight requests at a time and the others in turn. `whole` answers at once,
`single` streams 200 chunks one at a time, `bursts` streams them ten at a time, `paced` one every 10 ms, whose text is
the time at which it was sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import uvloop

WORD = b"quick "
CHUNKS = 200
PAUSE = 0.002
"""Seconds between two reads of a stream."""
PACE = 0.01
"""The same of `paced`."""
SERVICE_TIME = 0.05
_PLACES = asyncio.Semaphore(8)

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: "
_STREAM = _HEAD + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Form:
    """The answers to chats, or those to completions.

    Args:
        object, chunk: what whole answers and chunks call themselves.
        text: the part of a chunk with a text.
        whole: the same of a whole answer.
        end: the same of the last chunk.
    """

    def __init__(self, object: bytes, chunk: bytes, text: bytes, whole: bytes, end: bytes) -> None:
        event = b'data: {"id":"c","object":"%b","created":1,"model":"m","choices":[%%b]%%b}\n\n' % chunk
        part = event % (b'{"index":0,%b,"logprobs":null,"finish_reason":null}' % text, b"")
        self.word, self.time = part % WORD, part.replace(b"%b", b"%.6f ")
        self.last = event % (b'{"index":0,%b,"logprobs":null,"finish_reason":"stop"}' % end, b"")
        self.usage = event % (b"", b',"usage":{"prompt_tokens":9,"completion_tokens":200,"total_tokens":209}')
        body = (
            b'{"id":"c","object":"%b","created":1,"model":"m","choices":[{"index":0,%b,"logprobs":null,'
            b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":11,"total_tokens":20}}'
        ) % (object, whole % b"The quick brown fox jumps over the lazy dog.")
        self.reply = _HEAD + b"application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


_MESSAGE = b'"message":{"role":"assistant","content":"%b"}'
_CHAT = Form(b"chat.completion", b"chat.completion.chunk", b'"delta":{"content":"%b"}', _MESSAGE, b'"delta":{}')
_COMPLETION = Form(b"text_completion", b"text_completion", b'"text":"%b"', b'"text":"%b"', b'"text":""')
_END = b"0\r\n\r\n"
_ABSENT = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class CannedAnswers(asyncio.Protocol):
    """One connection, one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return
        _, has_body, length = head.lower().partition(b"content-length:")
        if has_body and len(body) < int(length.split(b"\r\n")[0]):
            return
        self._rest = b""
        self._form = form = _CHAT if b"/chat/completions " in head else _COMPLETION
        if head.startswith(b"POST ") and b"/completions " not in head:
            self._transport.write(_ABSENT)  # such as what a router may ask about a prompt
        elif b'"single"' in body:
            self._stream(1)
        elif b'"paced"' in body:
            self._stream(1, PACE, form.time)
        elif b'"bursts"' in body:
            self._stream(10)
        elif b'"limited"' in body:
            self._task = asyncio.get_running_loop().create_task(self._answer_in_turn())
        else:
            self._transport.write(self._form.reply)

    async def _answer_in_turn(self) -> None:
        async with _PLACES:
            await asyncio.sleep(SERVICE_TIME)
        if not self._transport.is_closing():  # a client that has left has taken its time, too
            self._transport.write(self._form.reply)

    def _stream(self, burst: int, pause: float | None = None, timed: bytes | None = None) -> None:
        self._transport.write(_STREAM)
        data = b"".join([_framed(self._form.word)] * burst)
        self._next(CHUNKS // burst, data, PAUSE if pause is None else pause, timed)

    def _next(self, left: int, data: bytes, pause: float, timed: bytes | None) -> None:
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(data if timed is None else _framed(timed % time.time()))
            asyncio.get_running_loop().call_later(pause, self._next, left - 1, data, pause, timed)
        else:
            ending = (self._form.last, self._form.usage, b"data: [DONE]\n\n")
            self._transport.write(b"".join(map(_framed, ending)) + _END)


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(CannedAnswers, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
