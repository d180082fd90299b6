"""Everything that can go wrong with a request, as one tree. Adapters own the wording on the wire.

    GatewayError
    ├── RequestError              the client's to mend; never retried, never held against a backend
    │   ├── MalformedBody         not JSON, not UTF-8, nested too deep
    │   ├── InvalidRequest        a field is missing, of the wrong type or out of range (`param` names it)
    │   │   ├── UnsupportedFeature    understood, but this backend cannot do it (`feature` names it)
    │   │   └── ContextLengthExceeded
    │   ├── Unauthorized, Forbidden
    │   ├── ModelNotFound, RouteNotFound, MethodNotAllowed
    │   ├── Conflict              it contradicts what the server is doing or has
    │   ├── BodyTooLarge, UnsupportedMediaType, RequestTimeout
    │   └── RateLimited           a limit of this client's
    ├── Overloaded                our queues are full; try again later (`retry_after`)
    │   └── ShuttingDown
    ├── BackendError              a backend's fault
    │   ├── BackendUnavailable    cannot be reached, or none is there
    │   ├── BackendTimeout        no first event in time
    │   ├── BackendFailed         it answered with an error of its own
    │   └── Incomplete            the stream stopped before it was finished
    └── InternalError             ours; the message is fixed

An adapter renders an error by looking up its `kind`, so a subclass without a kind of its own looks like its parent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Fault(StrEnum):
    """How a backend broke off an answer, or never began one. Retries and the circuit breaker decide by it.

    The values are the `code` of such errors, which clients of some protocols see.
    """

    CONNECT = "upstream_connect"  # no connection: refused, no such host, TLS, too slow
    RESET = "upstream_reset"  # the connection was closed before the response began
    TIMEOUT = "upstream_timeout"  # a deadline of ours passed
    MALFORMED = "upstream_malformed"  # not HTTP/1.1, or not the backend's protocol
    TOO_BIG = "upstream_too_big"  # larger than the limit for whole answers
    IDLE = "stream_idle"  # no event of a stream in time
    TRUNCATED = "truncated"  # the response or stream ended before it was complete


class GatewayError(Exception):
    """Base of all errors a client may see.

    Args:
        message: one sentence for the client, free of secrets, addresses and prompt text.
        param: the request field at fault, as the client named it (`messages[0].role`).
        retry_after: seconds after which the same request may be tried again.
        code: an upstream's or our own finer code, where a protocol has room for one.
    """

    kind: ClassVar[str] = "internal"

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
    """The client's to mend.

    `streamed`: the request asked for a stream. Set by an adapter that could read this much of a request it refuses, for
    protocols that answer such a request with a frame of the stream.
    """

    kind = "invalid_request"
    streamed: bool = False


class MalformedBody(RequestError):
    """The body is not JSON that we accept."""

    kind = "malformed_body"


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, or out of range."""


class UnsupportedFeature(InvalidRequest):
    """The request asks for something its backend cannot do; `feature` is a `backends.base.Feature`."""

    kind = "unsupported"

    def __init__(self, message: str, *, feature: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.feature = feature


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer do not fit the model's context."""

    kind = "context_length"


class Unauthorized(RequestError):
    """No key, or a wrong one."""

    kind = "unauthorized"


class Forbidden(RequestError):
    """A key that may not do this."""

    kind = "forbidden"


class ModelNotFound(RequestError):
    """No endpoint of that name."""

    kind = "model_not_found"


class RouteNotFound(RequestError):
    """No such path."""

    kind = "route_not_found"


class MethodNotAllowed(RequestError):
    """The path exists, not for this method; `allowed` are those that do."""

    kind = "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Conflict(RequestError):
    """What it asks for contradicts the present state: a name is taken, an update is under way."""

    kind = "conflict"


class BodyTooLarge(RequestError):
    """The body is over the limit."""

    kind = "body_too_large"


class UnsupportedMediaType(RequestError):
    """A content type or encoding we do not read."""

    kind = "unsupported_media_type"


class RequestTimeout(RequestError):
    """The request took too long to arrive."""

    kind = "request_timeout"


class RateLimited(RequestError):
    """The client is over its own limit."""

    kind = "rate_limited"


class Overloaded(GatewayError):
    """Queues are full."""

    kind = "overloaded"


class ShuttingDown(Overloaded):
    """The server is about to stop."""

    kind = "shutting_down"


class BackendError(GatewayError):
    """A backend's fault.

    Args:
        message: as of every error.
        retry_after: as of every error.
        code: as of every error; by default the fault's.
        fault: what broke the answer; None where the backend reported an error of its own.
    """

    kind = "backend_failed"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        code: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after, code=fault.value if fault and code is None else code)
        self.fault = fault


class BackendUnavailable(BackendError):
    """No backend can be reached."""

    kind = "backend_unavailable"


class BackendTimeout(BackendError):
    """No first event in time."""

    kind = "timeout"


class BackendFailed(BackendError):
    """The backend reported an error of its own."""


class Incomplete(BackendError):
    """The stream stopped before it was finished: what was sent so far is not the whole answer."""

    kind = "incomplete"


class InternalError(GatewayError):
    """A bug of ours; the client gets a fixed sentence and the request id."""

    def __init__(self, message: str = "The server had an error while processing the request.") -> None:
        super().__init__(message)


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
"""Every `kind`, in the tree's order: an adapter's error table has a row for each."""
