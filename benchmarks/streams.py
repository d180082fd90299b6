"""A client of many streams that is never the bottleneck: what it measures is when the kernel got the bytes.

asyncio takes as long to read a chunk as a gateway to pass it on, so with hundreds of streams such a client measures
itself. This one waits for all its sockets at once and reads each with the kernel's own time of arrival
(`SO_TIMESTAMPNS`, Linux): however late it reads, the time is true. The chunks of the upstream's `paced` say when they
were sent.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from typing import NamedTuple

from benchmarks.gateway import written

_SO_TIMESTAMPNS = 35
"""Of `<asm-generic/socket.h>`; the socket module has no name for it."""
_TIME = struct.Struct("qq")
_SENT = re.compile(rb'"content": ?"(\d+\.\d+) ')
_EVENT, _END = b"data: ", b"\r\n0\r\n\r\n"


class Delays(NamedTuple):
    """Seconds.

    Attributes:
        first: from each request to the first event of its answer.
        chunks: from when the upstream sent each later chunk to its arrival.
        events: how many events have come.
    """

    first: list[float]
    chunks: list[float]
    events: int


class _Stream:
    def __init__(self, port: int, request: bytes) -> None:
        self._request = request
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._asked: float | None = None  # None: the answer has begun
        self._rest = b""  # of what has come: a line that is not whole
        self._has_head = False
        self.left = 0
        self.fileno = self._socket.fileno
        self.close = self._socket.close

    def ask(self) -> None:
        """Send the request."""
        self._rest, self._has_head, self._asked = b"", False, time.time()
        self._socket.sendall(self._request)

    def read(self, delays: Delays) -> int:
        """Note what has come; returns the number of events. Asks again at the end of an answer, `left` times."""
        data, more, _, _ = self._socket.recvmsg(1 << 20, 64)
        # The first socket of the machine that asks for times gets them a moment later.
        seconds, nanoseconds = _TIME.unpack(more[0][2]) if more else (time.time(), 0)
        came = seconds + nanoseconds * 1e-9
        data = self._rest + data
        if not self._has_head and not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(data.decode() or "The connection was closed.")
        self._has_head = True
        whole = data.rfind(b"\n") + 1  # a line may come in two parts
        events = data.count(_EVENT, 0, whole)
        if self._asked is None:
            delays.chunks.extend(came - float(sent) for sent in _SENT.findall(data, 0, whole))
        elif events:
            delays.first.append(came - self._asked)
            self._asked = None
        if not data.endswith(_END):
            self._rest = data[min(whole, max(0, len(data) - len(_END))) :]  # the end may come in two parts, too
            return events
        self.left -= 1
        if self.left:
            self.ask()
        return events


class Streams:
    """Connections to a server, which are open before anything is measured.

    Args:
        port: the server's.
        model: asked for a stream.
        count: connections.
    """

    def __init__(self, port: int, model: str, count: int) -> None:
        request = written(model, "openai", stream=True)
        self._poll = select.epoll()
        self._streams = [_Stream(port, request) for _ in range(count)]
        self._by_number = {each.fileno(): each for each in self._streams}
        for number in self._by_number:
            self._poll.register(number, select.EPOLLIN)

    def run(self, times: int = 1, spread: float = 0.0) -> Delays:
        """Ask on each connection, one answer after another.

        Args:
            times: answers of each.
            spread: seconds from the first connection's first request to the last one's.
        """
        delays, events, running = Delays([], [], 0), 0, 0
        began, waiting = time.perf_counter(), self._streams[::-1]
        step = spread / len(waiting)
        while waiting or running:
            due = (len(self._streams) - len(waiting)) * step + began - time.perf_counter()
            while waiting and due <= 0:
                each = waiting.pop()
                each.left = times
                each.ask()
                running += 1
                due += step
            for number, _ in self._poll.poll(due if waiting else 60):
                each = self._by_number[number]
                events += each.read(delays)
                running -= not each.left
        return delays._replace(events=events)

    def close(self) -> None:
        """Close the connections."""
        for each in self._streams:
            each.close()
        self._poll.close()
