"""Connections over TCP that have not proved yet to know the secret (see `protocol.greeting`).

Used by the socket server's thread alone. A guest costs a descriptor and less than 100 bytes, may send exactly its
answer, and has a few seconds to do so.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from backends.native.protocol import greeting

log = structlog.get_logger()

TIMEOUT = 5.0
"""Seconds that a guest has for its answer."""
_MAX_GUESTS = 128


@dataclass(slots=True, eq=False)
class _Guest:
    socket: socket.socket
    challenge: bytes
    until: float
    answered: bytes = b""


class Guests:
    """Greets connections, and admits those whose answer is right.

    Args:
        secret: what they must know.
        selector: of the thread; guests are registered with handlers that take an event mask.
        admit: called with the socket of each guest that has proved itself, which is not registered any more.
    """

    def __init__(self, secret: bytes, selector: selectors.BaseSelector, admit: Callable[[socket.socket], None]) -> None:
        self._secret = secret
        self._selector = selector
        self._admit = admit
        self._guests: dict[socket.socket, _Guest] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def greet(self, peer: socket.socket) -> None:
        """Send a new connection its challenge."""
        self.expire()
        if len(self._guests) >= _MAX_GUESTS:
            log.warning("worker.refused", error="too many connections that have not answered")
            peer.close()
            return
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        guest = _Guest(peer, greeting.new_challenge(), time.monotonic() + TIMEOUT)
        try:
            peer.send(guest.challenge)  # a new connection takes so few bytes at once
        except OSError:
            peer.close()
            return
        self._guests[peer] = guest
        self._selector.register(peer, selectors.EVENT_READ, lambda _: self._read(guest))

    def expire(self) -> None:
        """Close the connections of guests that have not answered in time."""
        now = time.monotonic()
        for guest in [guest for guest in self._guests.values() if guest.until < now]:
            self._refuse(guest, "no answer to the greeting")

    def close(self) -> None:
        """Close all connections of guests."""
        for guest in list(self._guests.values()):
            self._leave(guest)
            guest.socket.close()

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.socket.recv(greeting.ANSWER_BYTES - len(guest.answered))
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(guest, str(error))
            return
        guest.answered += data
        if not data:
            self._refuse(guest, "it left during the greeting")
        elif len(guest.answered) == greeting.ANSWER_BYTES:
            self._decide(guest)

    def _decide(self, guest: _Guest) -> None:
        proof = greeting.prove(self._secret, guest.challenge, guest.answered)
        if proof is None:
            self._refuse(guest, "it has another secret")
            return
        try:
            guest.socket.send(proof)
        except OSError as error:
            self._refuse(guest, str(error))
            return
        self._leave(guest)
        self._admit(guest.socket)

    def _refuse(self, guest: _Guest, why: str) -> None:
        log.warning("worker.refused", error=why)
        self._leave(guest)
        guest.socket.close()

    def _leave(self, guest: _Guest) -> None:
        del self._guests[guest.socket]
        self._selector.unregister(guest.socket)
