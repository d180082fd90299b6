"""The fast path to a server: asks it without a task, where its answer goes to the client as it came.

Everything that may be unusual is left to the way through a task, which goes on with what was sent: an error, an answer
that is not plain, a connection that is lost, a deadline. Only an answer that is complete is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from adapters.optional import WholeRelay
from backends.direct import Take
from backends.observation import Attempt, Observer, Upstream
from backends.remote.asking import Spoken, encoded
from backends.remote.resilience.breaker import Breaker
from backends.remote.resilience.retry import RetryBudget
from backends.transport import Exchanger, Transport
from backends.transport.begun import BegunExchange
from schemas.errors import GatewayError
from schemas.ir import Generate


class DirectAsking(msgspec.Struct, frozen=True, eq=False):
    """Asks one server.

    Attributes:
        transport: its direct client.
        codecs: the protocols that it speaks.
        relay: the first of them, whose answers are relayed.
        upstream, breaker, budget: the backend's.
        timeout: seconds for a whole answer.
    """

    transport: Transport
    codecs: Sequence[Spoken]
    relay: WholeRelay
    upstream: Upstream
    breaker: Breaker
    budget: RetryBudget
    timeout: float

    @classmethod
    def of(
        cls,
        client: Exchanger,
        codecs: Sequence[Spoken],
        upstream: Upstream,
        breaker: Breaker,
        budget: RetryBudget,
        timeout: float,
    ) -> DirectAsking | None:
        """What asks a server so; None where its client or its protocol needs a task."""
        relay = codecs[0].codec
        if not isinstance(client, Transport) or not isinstance(relay, WholeRelay):
            return None
        return cls(client, codecs, relay, upstream, breaker, budget, timeout)

    def exchange(self, request: Generate) -> RemoteExchange | None:
        """An exchange for a request as the server is to get it; None: it is to be asked in a task."""
        if not self.relay.relays_whole(request):
            return None
        try:
            codec, outbound = encoded(self.codecs, request)
            if codec is not self.codecs[0].codec:
                return None
            begun = self.transport.begin(outbound)
        except GatewayError:
            return None
        return None if begun is None else RemoteExchange(self, request.model, begun)


class RemoteExchange:
    """One exchange (`backends.direct.DirectExchange`)."""

    __slots__ = ("_asking", "_attempt", "_begun", "_model", "_take")

    def __init__(self, asking: DirectAsking, model: str, begun: BegunExchange) -> None:
        self._asking = asking
        self._model = model
        self._begun = begun

    def send(self, observer: Observer, take: Take) -> None:
        """Send the request."""
        self._attempt: Attempt = observer.attempt(self._asking.upstream, self._model)
        self._take = take
        self._begun.send(self._ended, self._asking.timeout)

    def put_back(self) -> None:
        """Send nothing."""
        self._begun.put_back()

    def hand_over(self) -> Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]:
        """Leave what was sent to a task. The attempt is counted there."""
        self._begun.stop()
        return self._begun.going_on

    def _ended(self) -> None:
        asking, begun, take = self._asking, self._begun, self._take
        del self._take  # which has this exchange: no circle is left to the garbage collector
        body = begun.take_whole()
        try:
            answer = None if body is None else asking.relay.relayed_whole(body)
        except Exception:  # whatever it is, the task finds it, too
            answer = None
        if answer is not None:
            begun.finish()
            asking.budget.deposit()
            self._attempt.end()
            asking.breaker.record_success()
        elif body is not None:
            begun.give_back(body)
        take(answer)
