"""One plain request on the fast path: sent when it was read, answered when the answer of the server has come."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from time import monotonic
from typing import Any, Protocol

from msgspec.structs import replace

from adapters.base import Headers, Reply, ServerCodec
from backends.cohorts import Steps
from backends.direct import DirectExchange
from backends.transport.outbox import Outbox
from gateway.errors import to_client_error
from gateway.http.accounting import RequestAccount
from gateway.http.answer_headers import status_headers
from gateway.http.observation.observer import RequestObserver
from schemas.completion import Completion, Timings
from schemas.ir import Generate, TokenIds

_FIELDS = "content-type: %s\r\nx-request-id: %s\r\n%s%sserved-model-name: %s\r\n"
Wrap = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


class DirectClient(Protocol):
    """Who has sent a request."""

    @property
    def write_paused(self) -> bool:
        """Whether the client has not taken what was written to it."""
        ...

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

    def open(self, fields: bytes, data: bytes) -> Outbox:
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
    """A request that was sent, and the sink of its answer (`backends.direct.WholeSink`).

    Args:
        account: of the request, which is routed.
        codec: of its protocol.
        exchange: with the server.
        headers: the request's.

    Attributes:
        streams: whether a stream has begun: nothing is to be handed over any more.
    """

    streams = False

    __slots__ = ("_account", "_client", "_codec", "_exchange", "_headers", "_is_ready", "_limits", "_reply")

    def __init__(
        self, account: RequestAccount, codec: ServerCodec, exchange: DirectExchange, headers: Mapping[str, str]
    ) -> None:
        self._account = account
        self._codec = codec
        self._exchange = exchange
        self._headers = headers
        self._is_ready = False  # for the answer

    def hear(self, client: DirectClient) -> None:
        """Send the answer to the client once it is there. To be called in the turn in which the request was sent."""
        self._client = client
        account, service = self._account, self._account.service
        self._listen()
        if account.plan is not None and account.plan.has_experiment:
            assert account.request is not None
            # In the turn in which the plan was made: nothing that is deployed has changed.
            account.exposure = service.experiments.enter(account.request, account.plan, self._headers)
        service.metrics.running.add(1.0)  # `RequestAccount.close` takes it back
        account.stage = "generate"
        # While the server works. Without others nothing else waits for the end of the turn.
        service.after_turn.add(self._get_ready_early(), at_once=service.running == 1)

    def hand_over(self) -> tuple[RequestAccount, Wrap]:
        """Leave the request to a task.

        Returns:
            The account with which it goes on, and what its coroutine is to be wrapped in.
        """
        account, service = self._account, self._account.service
        # The task counts these again in the next turn of the loop. What was decided stays, whatever has changed since:
        # the key, the request with its plan and exposure, the share and the ticket.
        service.begun -= 1
        service.running -= 1
        service.metrics.running.add(-1.0)
        account.target = account.decoded = None
        account.stage = "read"
        self._is_ready = True  # the task does all of it
        return account, self._exchange.hand_over()

    # --- backends.direct.WholeSink ----------------------------------------------------------------------------------

    def prepare(self, answer: Completion, token_ids: TokenIds) -> bool:
        """Write the answer, which has one choice, in the client's protocol."""
        account = self._account
        assert isinstance(account.request, Generate)
        since = monotonic() - account.began
        try:
            self._get_ready()
            # The first event is the last one, too.
            reply = self._codec.encode(
                account.request, replace(answer, token_ids=token_ids, timings=Timings(since, since))
            )
        except Exception:  # whatever it is, the task finds it, too
            return False
        if reply.record is not None:
            return False  # to be stored first
        account.first_event = since
        account.finish_reasons.append(answer.choices[0].reason)
        account.usage = answer.usage
        account.status = reply.status
        self._reply = reply
        return True

    def settle(self) -> None:
        """Count the answer."""
        try:
            self._account.settle("ok")
        except Exception as error:  # a disk that is full, or a bug: what the client has no record of, it does not get
            self._reply = self._refusal(error)

    def end(self) -> None:
        """Send the answer."""
        self._answer(self._reply)

    def go_on(self) -> None:
        """Have a task go on."""
        self._client.go_on()

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def _get_ready(self) -> None:
        """Make what the answer needs, but not the server, unless it is made. It may fail, and be made again."""
        if self._is_ready:
            return
        ticket = self._account.ticket
        quotas = () if ticket is None else ticket.quotas
        lines = b""
        for field in self._codec.limit_headers(quotas) if quotas else ():
            lines += b"%b: %b\r\n" % field
        self._limits = lines
        self._is_ready = True

    def _get_ready_early(self) -> Steps:
        try:
            self._get_ready()
        except Exception:  # whatever it is, the answer finds it, too
            self._is_ready = False
        yield

    def _listen(self) -> None:
        self._exchange.hear(RequestObserver(self._account), self)

    def _refusal(self, error: Exception) -> Reply:
        """The answer to an error while nothing was sent."""
        account = self._account
        assert isinstance(account.request, Generate)
        failure = to_client_error(error, account.request_id)
        reply = self._codec.error(failure, account.request)
        account.message, account.outcome, account.status = failure.message, failure.kind, reply.status
        return reply

    def _answer(self, reply: Reply) -> None:
        """Send a whole answer."""
        more = reply.headers if reply.status == 200 else (*reply.headers, *status_headers(reply.status))
        try:
            self._client.answer(reply.status, self._fields(reply.media_type, more, len(reply.body)), reply.body)
        finally:  # also if the client's next request, which begins with that, fails
            self._close()

    def _close(self) -> None:
        """Have the request logged and counted. Nothing more happens to it."""
        account, service = self._account, self._account.service
        service.running -= 1
        if account.owner is not None and service.shares is not None:
            service.shares.leave(account.owner)
        # Not behind the answer, where it would delay the client's next request. Without others it is done before the
        # answer leaves: then it leaves code in the caches that the next request needs, too.
        service.ended.add(account.closing(), at_once=not service.running)

    def _fields(self, media_type: str, more: Headers, length: int = -1) -> bytes:
        """The headers that `Responder` gives an answer; `length` -1: it is a stream."""
        account, target = self._account, self._account.target
        assert target is not None
        own = "".join([f"{name}: {value}\r\n" for name, value in more]) if more else ""
        if self._codec.id_header:
            own = f"{self._codec.id_header}: {account.request_id}\r\n{own}"
        size = f"content-length: {length}\r\n" if length >= 0 else ""
        return (_FIELDS % (media_type, account.request_id, own, size, target.entity.name)).encode() + self._limits
