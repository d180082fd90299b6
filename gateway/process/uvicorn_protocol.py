"""uvicorn's HTTP connection, in which a response's head leaves together with the body's first bytes.

uvicorn writes them apart, which costs a second system call and wakes the client twice: in all a tenth of what a whole
answer costs. Not a place for protocol: what is written is uvicorn's, byte for byte and in order.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """A client's connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The socket is there."""
        super().connection_made(cast(asyncio.Transport, HeadWaits(transport, self.loop)))


class HeadWaits:
    """A transport that holds a head back until more is written, or the loop's next turn; else the one that is given."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write. What begins like a head and is none is written as soon."""
        if self._head:
            self._transport.write(self._head + data)
            self._head = b""
        elif data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close, once all is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""
