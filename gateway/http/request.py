"""One request from its first byte to its last: reading, answering and accounting, in one task.

Strategy: the task in which ASGI calls us does everything. `cancel_on_disconnect` cancels it when the client leaves,
whatever it waits for, and the `finally` of `Responder` closes the backend's generator, which frees the work behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from litestar.types import HTTPScope, Receive, Send

from gateway.http.accounting import RequestAccount
from gateway.http.answering import Responder
from gateway.http.disconnect import cancel_on_disconnect
from gateway.http.reading import Operation, RequestReader
from gateway.routing.target import Plan
from gateway.service import Service
from schemas.catalog import Change
from schemas.ir import Request


class RequestHandler:
    """Handles one request.

    Args:
        service: the worker's.
        operation: what was asked.
        parameters: those in the path.
        scope, send: ASGI's.
    """

    __slots__ = ("_account", "_reader", "_responder", "_route", "_service")

    def __init__(
        self, service: Service, operation: Operation, parameters: Mapping[str, str], scope: HTTPScope, send: Send
    ) -> None:
        request_id = service.new_id()
        self._service = service
        self._route = operation.route
        self._account = RequestAccount(service, operation.protocol, operation.route.name, request_id)
        self._reader = RequestReader(service, operation, parameters, scope, request_id)
        self._responder = Responder(operation.codec, self._account, send, head=scope["method"] == "HEAD")

    async def run(self, receive: Receive) -> None:
        """Answer the request. Raises nothing but a cancellation that was not caused by the client's leaving."""
        self._service.metrics.began()
        try:
            planned = await self._plan(receive)
            if planned is not None:
                await cancel_on_disconnect(receive, self._responder.answer(*planned))
        except asyncio.CancelledError:
            self._account.end("cancelled")
            raise
        finally:
            self._account.close()

    async def _plan(self, receive: Receive) -> tuple[Request, Plan] | None:
        """What to answer and where; None if the request has its answer, or its client has left."""
        service, account, reader, responder = self._service, self._account, self._reader, self._responder
        try:
            call = await reader.read(receive)
            if call is None:
                return None
            if self._route.kind == "describe":
                account.stage = "describe"
                await responder.reply(reader.describe())
                return None
            account.stage = "decode"
            request = await reader.decode()
            if isinstance(request, Change):
                account.stage = "manage"
                await service.manage(request)
                await responder.reply(reader.describe())
                return None
            account.stage, account.request = "route", request
            responder.responses = reader.responses
            account.plan = plan = service.router.plan(request, call.headers)
            if plan.has_experiment:
                account.exposure = service.experiments.enter(request, plan, shadowed=not service.draining)
        except Exception as error:  # whatever it is, the client gets it in its protocol
            await responder.refuse(error)
            return None
        return request, plan
