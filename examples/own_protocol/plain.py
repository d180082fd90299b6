"""A protocol of one's own: `POST /plain/{model}` takes text and answers with text, `/plain-stream/{model}` as it comes.

    curl -N --data 'The capital of France is' http://127.0.0.1:8000/plain-stream/interlingua

A protocol translates bytes to a `Generate` and events to bytes. It asks no backend and knows none: routing, failover,
limits, logs and metrics are the gateway's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from adapters.base import Adapter, Call, ClientCodec, Headers, RawHeaders, Reply, Route
from schemas.completion import Completion
from schemas.errors import GatewayError, InvalidRequest, ModelNotFound, Quota, RequestError, Unauthorized
from schemas.ir import Delta, Embed, Embeddings, Events, Generate, TextPrompt, Tokenize, Tokens

TEXT = "text/plain; charset=utf-8"


class PlainStream:
    """The encoder of one stream."""

    media_type = TEXT
    headers: Headers = ()
    status_waits = True
    # Plain text has no form for an error. A reset connection is one: the client does not take a part for the whole.
    abort_after_error = True

    def feed(self, events: Events) -> bytes:
        """The text of the events."""
        return "".join(event.text for event in events if isinstance(event, Delta)).encode()

    def fail(self, error: GatewayError) -> bytes:
        """Nothing: the connection is reset."""
        return b""


class PlainServer:
    """The server codec."""

    id_header: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = (
        Route("POST", "/plain/{model}", "plain", "generate", "Continue a text", body=str, answer=str),
        Route(
            "POST", "/plain-stream/{model}", "stream", "generate", "Stream a text", body=str, answer=str, streams=True
        ),
    )

    def __init__(self, dialect: Any) -> None:
        self._dialect = dialect

    def decode(self, route: Route, body: bytes, call: Call) -> Generate:
        """The request; what is wrong with it is raised as a `RequestError`."""
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not UTF-8.") from None
        return Generate(
            id=call.id, model=call.path["model"], prompts=(TextPrompt(text),), stream=route.name == "stream"
        )

    def encoder(self, request: Generate) -> PlainStream:
        """The encoder of a streamed answer."""
        return PlainStream()

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """A whole answer."""
        return Reply(answer.choices[0].text.encode(), media_type=TEXT)

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """An error before the first byte of an answer."""
        known: tuple[tuple[type[GatewayError], int], ...] = (
            (ModelNotFound, 404),
            (Unauthorized, 401),
            (RequestError, 400),
        )
        status = next((status for kind, status in known if isinstance(error, kind)), 503)
        return Reply(f"{error.message}\n".encode(), status=status, media_type=TEXT)

    def limit_headers(self, quotas: Sequence[Quota]) -> RawHeaders:
        """None: the protocol has no headers for limits."""
        return []

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """Never called: there is no route for embeddings."""
        raise AssertionError

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:
        """Never called, likewise."""
        raise AssertionError

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """Never called, likewise."""
        raise AssertionError


def no_client(dialect: Any) -> ClientCodec:
    """Never called: no kind of backend speaks the protocol."""
    raise NotImplementedError


ADAPTER = Adapter("plain", {"plain": None}, PlainServer, no_client)
