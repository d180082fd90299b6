"""One plain request on the fast path: sent when it was read, answered when the answer of the server has come."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Protocol

from adapters.base import Reply, ServerCodec
from adapters.optional import RelayedWhole
from backends.direct import DirectExchange
from gateway.errors import to_client_error
from gateway.http.accounting import RequestAccount
from gateway.http.observation.observer import RequestObserver

_FIELDS = b"content-type: application/json\r\nx-request-id: %b\r\n%bcontent-length: %d\r\nserved-model-name: %b\r\n"
Wrap = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


class DirectClient(Protocol):
    """Who has sent a request."""

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Send a whole answer.

        Args:
            status: its status.
            fields: its headers, but for those of every answer.
            body: its body.
        """
        ...

    def go_on(self) -> None:
        """Have a task answer the request, which calls `DirectRequest.hand_over` first."""
        ...

    def open(self, fields: bytes, data: bytes) -> Callable[[bytes], None]:
        """Send the headers of a stream, but for those of every answer, and its first data.

        Args:
            fields: the headers.
            data: chunks of the transfer coding (RFC 9112, section 7.1).

        Returns:
            What sends more such chunks.
        """
        ...

    def end(self, *, cut: bool = False) -> None:
        """End a stream as complete, or cut the connection."""
        ...


class DirectRequest:
    """A request that is ready to be sent.

    Args:
        account: of the request, which is routed.
        codec: of its protocol.
        exchange: with the server.

    Attributes:
        streams: whether a stream has begun: nothing is to be handed over any more.
    """

    streams = False

    __slots__ = ("_account", "_client", "_codec", "_exchange")

    def __init__(self, account: RequestAccount, codec: ServerCodec, exchange: DirectExchange) -> None:
        self._account = account
        self._codec = codec
        self._exchange = exchange

    def send(self, client: DirectClient) -> None:
        """Send the request, and its answer to the client once it is there."""
        self._client = client
        service = self._account.service
        service.running += 1
        service.begun += 1
        service.metrics.running.add(1.0)  # `RequestAccount.close` takes it back
        self._account.stage = "generate"
        self._ask()

    def hand_over(self) -> tuple[RequestAccount, Wrap]:
        """Leave the request to a task.

        Returns:
            The account with which it goes on, and what its coroutine is to be wrapped in.
        """
        account, service = self._account, self._account.service
        # The task counts these again in the next turn of the loop. The share stays, and so does the ticket.
        service.begun -= 1
        service.running -= 1
        service.metrics.running.add(-1.0)
        account.request = account.plan = account.target = account.decoded = None
        account.stage = "read"
        return account, self._exchange.hand_over()

    def _ask(self) -> None:
        self._exchange.send(RequestObserver(self._account), self._take)

    def _take(self, answer: RelayedWhole | None) -> None:
        if answer is None:
            self._client.go_on()
            return
        account = self._account
        account.first_event = monotonic() - account.began
        account.finish_reasons.append(answer.reason)
        account.usage = answer.usage
        account.status = 200
        reply = Reply(answer.body)
        try:
            account.end("ok")
        except Exception as error:  # a disk that is full, or a bug: what the client has no record of, it does not get
            reply = self._codec.error(to_client_error(error, account.request_id))
        self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        """Send a whole answer, with the headers that `Responder` gives it."""
        account, target = self._account, self._account.target
        assert target is not None
        limits = self._limits() if account.quotas else b""
        served = target.entity.name.encode()
        fields = _FIELDS % (account.request_id.encode(), limits, len(reply.body), served)
        self._client.answer(reply.status, fields, reply.body)
        self._close()

    def _close(self) -> None:
        """Count the request. Nothing more happens to it."""
        account, service = self._account, self._account.service
        service.running -= 1
        if account.owner is not None and service.shares is not None:
            service.shares.leave(account.owner)
        account.close()

    def _limits(self) -> bytes:
        given = self._codec.limit_headers(self._account.quotas)
        return b"".join([b"%b: %b\r\n" % (name.lower(), value) for name, value in given])
