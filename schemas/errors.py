"""All errors of requests, as one tree. Adapters own the wording on the wire.

    GatewayError
    ├── RequestError              the client's fault; never retried, never counted against a backend
    │   ├── MalformedBody         not JSON, not UTF-8, nested too deep
    │   ├── InvalidRequest        a field is missing, of the wrong type or out of range (`param` names it)
    │   │   ├── UnsupportedFeature    valid, but the backend cannot do it (`feature` names it)
    │   │   │   └── UnsupportedOperation    the backend has nothing behind a route
    │   │   └── ContextLengthExceeded
    │   ├── Unauthorized, Forbidden
    │   ├── ModelNotFound, MethodNotAllowed
    │   ├── RouteNotFound
    │   │   └── ObjectNotFound    a path that names a stored object which is not there
    │   ├── Conflict              contradicts the server's present state
    │   ├── BodyTooLarge, UnsupportedMediaType, RequestTimeout
    │   └── RateLimited           a limit of this client
    ├── Overloaded                the queues are full; retry later (`retry_after`)
    │   └── ShuttingDown
    ├── BackendError              a backend's fault
    │   ├── BackendUnavailable    cannot be reached, or there is none
    │   ├── BackendTimeout        no first event in time
    │   │   └── ClientDeadline    none in the time that the client allows
    │   ├── BackendFailed         reported an error of its own
    │   └── Incomplete            the stream ended before the answer was complete
    └── InternalError             a bug; the message is fixed

An adapter renders an error by its `kind`. A class without a kind of its own is rendered like its parent, and so is one
whose kind an adapter's table has no row for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

import msgspec


class Quota(msgspec.Struct, frozen=True):
    """What is left of a client's limit in a window, after the request that is answered has been counted.

    Attributes:
        kind: what is limited.
        limit: the most in the window.
        remaining: what is left of it.
        reset: seconds until all of it is left again, rounded up.
    """

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset: int


class Fault(StrEnum):
    """How a backend broke off an answer, or never began one. Retries and the circuit breaker decide by it.

    The values are the `code` of such errors, which clients of some protocols see.
    """

    # Only after CONNECT is it certain that the backend did no work, so only CONNECT is retried without limit.
    CONNECT = "upstream_connect"  # no connection: refused, no such host, TLS, too slow
    RESET = "upstream_reset"  # the connection was closed before the response began
    TIMEOUT = "upstream_timeout"  # a deadline of ours passed
    MALFORMED = "upstream_malformed"  # not HTTP/1.1, or not the backend's protocol
    TOO_BIG = "upstream_too_big"  # larger than the limit for whole answers
    IDLE = "stream_idle"  # no event of a stream in time
    TRUNCATED = "truncated"  # the response or stream ended before it was complete


class GatewayError(Exception):
    """Base of all errors that a client may see.

    Args:
        message: one sentence for the client, without secrets, addresses or prompt text.
        param: the invalid request field, by the client's name for it (`messages[0].role`).
        retry_after: seconds after which the same request may be retried.
        code: a finer code, for protocols that have a field for one.

    Attributes:
        request_id: of the request that is answered with it, once that is known.
    """

    # A class attribute: the dialects' tables of errors are indexed by it.
    kind: ClassVar[str] = "internal"
    request_id: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.code = code


class RequestError(GatewayError):
    """The client's fault.

    `streamed`: the request asked for a stream. Set by an adapter that could read this much of a request it refuses, for
    protocols that answer such a request with a frame of the stream.
    """

    kind = "invalid_request"
    streamed: bool = False


class MalformedBody(RequestError):
    """The body is not valid JSON, or exceeds a limit on nesting or items."""

    kind = "malformed_body"


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, or out of range.

    `failed_generation`: what the model wrote and its server could not read as a tool call (Groq).
    """

    failed_generation: str | None = None


class UnsupportedFeature(InvalidRequest):
    """The request needs a `feature` (`backends.base.Feature`) that the backend lacks."""

    kind = "unsupported"

    def __init__(self, message: str, *, feature: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.feature = feature


class UnsupportedOperation(UnsupportedFeature):
    """The route exists, but the model's server has nothing behind it: for clients, a path that does not exist."""

    kind = "route_not_found"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer exceed the model's context length."""

    kind = "context_length"


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    kind = "unauthorized"


class Forbidden(RequestError):
    """The API key lacks the permission."""

    kind = "forbidden"


class ModelNotFound(RequestError):
    """No endpoint has the name."""

    kind = "model_not_found"


class RouteNotFound(RequestError):
    """The path does not exist."""

    kind = "route_not_found"


class ObjectNotFound(RouteNotFound):
    """A stored object (a response, a conversation, a file, a batch) does not exist, or not for this client."""

    kind = "object_not_found"


class MethodNotAllowed(RequestError):
    """The path does not have the method; `allowed` are the methods that it has."""

    kind = "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Conflict(RequestError):
    """The request contradicts the present state: a name is taken, an update is in progress."""

    kind = "conflict"


class BodyTooLarge(RequestError):
    """The body is over the limit."""

    kind = "body_too_large"


class UnsupportedMediaType(RequestError):
    """The content type or encoding is not supported."""

    kind = "unsupported_media_type"


class RequestTimeout(RequestError):
    """The request took too long to arrive."""

    kind = "request_timeout"


class RateLimited(RequestError):
    """The client exceeds its own limit. `quotas`: the limit that is reached, for protocols that have headers for it."""

    kind = "rate_limited"
    quotas: tuple[Quota, ...] = ()


class Overloaded(GatewayError):
    """The queues are full."""

    kind = "overloaded"


class ShuttingDown(Overloaded):
    """The server is stopping."""

    kind = "shutting_down"


class BackendError(GatewayError):
    """A backend's fault.

    Args:
        message: as of every error.
        retry_after: as of every error.
        code: as of every error; by default the fault's.
        fault: what broke the answer; None where the backend reported an error of its own.

    Attributes:
        sends: how often the request was sent: twice where the connection was reused, and the upstream had closed it.
    """

    kind = "backend_failed"
    sends: int = 1

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        code: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        # The fault's name doubles as the code that clients see.
        super().__init__(message, retry_after=retry_after, code=fault.value if fault and code is None else code)
        self.fault = fault


class BackendUnavailable(BackendError):
    """No backend can be reached, or there is none."""

    kind = "backend_unavailable"


class BackendTimeout(BackendError):
    """No first event in time."""

    kind = "timeout"


class ClientDeadline(BackendTimeout):
    """No first event in the time that the client allows, which says nothing of the backend.

    An own class, so that experiments can tell a client in a hurry from an arm that hangs.
    """


class BackendFailed(BackendError):
    """The backend reported an error of its own."""


class Incomplete(BackendError):
    """The stream ended before the answer was complete."""

    kind = "incomplete"


class InternalError(GatewayError):
    """A bug in this server. The client gets a fixed sentence and the request id."""

    def __init__(self, message: str = "The server had an error while processing the request.") -> None:
        super().__init__(message)


def is_failover_eligible(error: Exception) -> bool:
    """Whether another server or served entity may be asked after this error of one, before any event.

    Yes if a backend failed, is overloaded, shuts down, limits its callers or lacks the served entity's model: the
    endpoint was found, so that is not the client's mistake. No after a timeout: the client has waited long enough. No
    if the request itself is at fault, and no after a bug.
    """
    eligible = BackendError | Overloaded | RateLimited | ModelNotFound
    return isinstance(error, eligible) and not isinstance(error, BackendTimeout)


KINDS: tuple[str, ...] = (
    "invalid_request",
    "malformed_body",
    "unsupported",
    "context_length",
    "unauthorized",
    "forbidden",
    "model_not_found",
    "route_not_found",
    "method_not_allowed",
    "conflict",
    "body_too_large",
    "unsupported_media_type",
    "request_timeout",
    "rate_limited",
    "overloaded",
    "shutting_down",
    "backend_failed",
    "backend_unavailable",
    "timeout",
    "incomplete",
    "internal",
)
"""The kinds that every adapter's error table has a row for, in the tree's order."""
