"""The fast path of plain requests: read, checked, routed and sent in steps, without a task (`backends.cohorts`).

Strategy: what depends on a request's head alone is found out once for a head that the server remembers: this is the
head's lane. Nothing is refused, counted or sent before all is known: whatever is unusual is left to a task
(`gateway.http.request`) from its beginning, and what turns out unusual later goes on there.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Protocol

from litestar.types import HTTPScope
from msgspec.structs import replace

from adapters.base import Call
from adapters.optional import PlainCodec
from backends.cohorts import Steps
from backends.direct import DirectExchange
from backends.features import check
from gateway.access.headers import decode_headers
from gateway.access.keys import given_key
from gateway.access.keys_file import Key, digest_of
from gateway.access.limits import Ticket
from gateway.access.rules import estimated_tokens
from gateway.config import TEXTLESS
from gateway.http.accounting import RequestAccount
from gateway.http.direct.request import DirectClient, DirectRequest
from gateway.http.direct.stream import StreamedRequest
from gateway.http.reading.request_reader import MODEL_HEADER
from gateway.http.reading.via import gateways_passed
from gateway.http.request import CONSOLE_HEADER
from gateway.http.timeouts import TIMEOUT_HEADER
from gateway.mounts import Mounts, Operation
from gateway.routing.target import Plan
from gateway.service import Service
from schemas.errors import RateLimited
from schemas.ir import Generate

_UNUSUAL = (CONSOLE_HEADER, MODEL_HEADER, TIMEOUT_HEADER, "content-encoding", "traceparent")
"""Headers that a task looks at."""


class LaneClient(DirectClient, Protocol):
    """Who sends requests with a head.

    Attributes:
        request: the one that was sent to a server; None: there is none.
    """

    request: DirectRequest | None

    @property
    def body(self) -> bytes | None:
        """The body of the request that is being answered without a task; None: there is none."""
        ...


class Lane:
    """The fast path of the requests with one head.

    Args:
        service: the worker's.
        operation: what is asked.
        codec: the operation's.
        parameters: those in the path.
        headers: the request's.
    """

    __slots__ = ("_codec", "_digest", "_headers", "_operation", "_owner", "_parameters", "_service")

    def __init__(
        self,
        service: Service,
        operation: Operation,
        codec: PlainCodec,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> None:
        self._service = service
        self._operation = operation
        self._codec = codec
        self._parameters = parameters
        self._headers = headers
        self._digest = digest_of(given_key(headers)) if service.keys.required else None
        self._owner = (self._digest or b"").hex()  # in the worker's shares

    @classmethod
    def of(cls, service: Service, mounts: Mounts, scope: HTTPScope) -> Lane | None:
        """The lane of a head; None: all its requests are for tasks."""
        headers = decode_headers(scope["headers"])
        given = headers.get("content-type", "").lower()
        if scope["method"] != "POST" or scope["query_string"] or given.startswith("multipart/"):
            return None
        if "via" in headers and gateways_passed(scope["headers"]):
            return None
        if any(name in headers for name in _UNUSUAL) or service.config.server.endpoint_picker_header is not None:
            return None
        # Those who look at answers on their way to the client.
        if service.traces is not None or service.exporter is not None or service.keeps_texts:
            return None
        found = mounts.find(scope["raw_path"].decode("latin-1"), scope["server"][1] if scope["server"] else None)
        operation = None if found is None else found[0].get("POST")
        if found is None or operation is None or operation.variants or operation.route.kind != "generate":
            return None
        if not isinstance(operation.codec, PlainCodec):
            return None
        return cls(service, operation, operation.codec, found[1], headers)

    def begin(self, client: LaneClient, body: bytes, began: float) -> Steps:
        """Read a request and send it, in steps, or have a task answer it, which finds that nothing has happened.

        Args:
            client: who has sent it.
            body: the request's.
            began: when it came, on the monotonic clock.
        """
        if client.body is not body:  # a task has it
            return
        service, operation = self._service, self._operation
        request = plan = exchange = entered = None
        try:
            key = None if self._digest is None else service.keys.usual(self._digest)
            is_refused = service.draining or service.running >= service.limits.max_concurrent_requests
            is_unusual = (key is None and self._digest is not None) or len(body) > service.limits.max_body
            if not (is_refused or is_unusual) and service.router.asks_directly:
                if service.is_changeable:
                    service.refresh()
                yield
                request = self._read(request_id := service.new_id(), key, body)
            if request is not None:
                yield
                plan = service.router.plan(request, self._headers)
                yield
                exchange = self._exchange(request, plan)
                yield
                # Once more: others of its cohort may have begun since the first step.
                if exchange is not None and service.running < service.limits.max_concurrent_requests:
                    entered = self._enter(key, request, plan.targets[0].endpoint)
        except Exception:  # noqa: S110 - whatever it is, the task refuses it
            pass
        if request is None or plan is None or exchange is None or entered is None:
            if exchange is not None:
                exchange.put_back()
            client.go_on()
            return
        service.running += 1
        service.begun += 1
        yield
        exchange.send()  # first: what follows is done while the server works
        account = RequestAccount(service, operation.protocol, operation.route.name, request_id, began, key=key)
        account.owner, account.ticket = entered
        account.request, account.plan, account.target = request, plan, plan.targets[0]
        account.decoded = monotonic() - began
        made = StreamedRequest if request.stream else DirectRequest
        client.request = sent = made(account, operation.codec, exchange, self._headers)
        sent.hear(client)

    def _read(self, id: str, key: Key | None, body: bytes) -> Generate | None:
        catalog = self._service.catalog
        if key is not None and key.endpoints != ("*",):
            catalog = catalog.narrowed(key.may_ask)
        if self._operation.endpoint is not None:
            catalog = replace(catalog, default=self._operation.endpoint)
        call = Call(id, catalog, self._parameters, self._headers)
        request = self._codec.read_plain(self._operation.route, body, call)
        return None if request is None or request.keeps_partial else request

    def _exchange(self, request: Generate, plan: Plan) -> DirectExchange | None:
        """An exchange with the assigned server, if nothing looks at the answer on its way."""
        target = plan.targets[0]
        if plan.paired or target.filters is not None or target.cache is not None:
            return None
        if target.direct is None or target.task in TEXTLESS or not self._service.backend_health.is_first(plan.targets):
            return None
        check(request, target.backend.capabilities, request.model)
        return target.direct.exchange(target.addressed(request))

    def _enter(self, key: Key | None, request: Generate, endpoint: str) -> tuple[str | None, Ticket | None] | None:
        """Count a request for its limits.

        Returns:
            Who holds a share for it, and its ticket; None: a task is to refuse it, or to wait for that.
        """
        service, owner, shares = self._service, None, self._service.shares
        if key is not None and key.endpoints != ("*",) and not key.may_ask(endpoint):
            return None
        if shares is not None:
            try:
                shares.enter(owner := self._owner)
            except RateLimited:
                return None
        rules = service.rules.of(key, endpoint, request.user)
        if rules is None:
            return owner, None
        try:
            tokens = estimated_tokens(request) if rules.by_tokens else 0
            ticket = service.limiter.enter_at_once(rules, tokens)
        except Exception:  # a limit, or a file that fails: the task finds it, too
            ticket = None
        if ticket is None:
            if shares is not None:
                shares.leave(self._owner)
            return None
        return owner, ticket
