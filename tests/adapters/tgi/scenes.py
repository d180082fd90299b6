"""Shared by the tests of this folder: a catalog, requests by route, and event streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from adapters.base import Call, Reply
from adapters.dialect import with_options
from adapters.tgi.client import TgiClient
from adapters.tgi.dialects import DIALECTS, Dialect
from adapters.tgi.server import TgiServer
from schemas.catalog import Catalog, ModelCard
from schemas.ir import Delta, Events, Finished, FinishReason, Generate, Started, Token, Tokenize, Usage

GOLDEN = Path(__file__).parents[2] / "golden" / "tgi"
NAMES = tuple(DIALECTS)
ROUTES = {route.name: route for route in TgiServer.routes}

CARD = ModelCard(name="chat", context_length=2048, dtype="float32", device="cpu")
CATALOG = Catalog({"chat": CARD, "other": ModelCard(name="other")}, "chat", "1.2.3", 128)
IMAGES = Catalog({"chat": msgspec.structs.replace(CARD, images=True)}, "chat")


def dialect(name: str, **knobs: Any) -> Dialect:
    return with_options(DIALECTS[name], knobs)


def server(name: str, **knobs: Any) -> TgiServer:
    return TgiServer(dialect(name, **knobs))


def client(name: str, **knobs: Any) -> TgiClient:
    return TgiClient(dialect(name, **knobs))


def call(catalog: Catalog = CATALOG, id: str = "request-1") -> Call:
    return Call(id, catalog)


def ask(
    name: str,
    parameters: dict[str, Any] | None = None,
    *,
    operation: str = "generate",
    inputs: Any = "Who? ",
    catalog: Catalog = CATALOG,
    knobs: dict[str, Any] | None = None,
    **fields: Any,
) -> Generate:
    """The request that the server codec decodes."""
    body = {"inputs": inputs} | ({} if parameters is None else {"parameters": parameters}) | fields
    request = server(name, **(knobs or {})).decode(ROUTES[operation], json.dumps(body).encode(), call(catalog))
    assert not isinstance(request, Tokenize)
    return request


def golden(name: str, file: str) -> bytes:
    return (GOLDEN / name / file).read_bytes()


def events_of(client: TgiClient, request: Generate, data: bytes) -> Events:
    """The events that the client codec decodes from a complete stream."""
    reader = client.decoder(request)
    return (*reader.feed(data), *reader.close())


def reply(body: Any, status: int = 200, *headers: tuple[str, str]) -> Reply:
    return Reply(body if isinstance(body, bytes) else json.dumps(body).encode(), status, headers=headers)


def stream_of(*tokens: Token, **end: Any) -> Events:
    """A stream with one delta per token, the last one finished; the prompt has 7 tokens, reported in `Usage` only."""
    *deltas, last = tokens
    finished = Finished(text=_visible(last), tokens=(last,), generated=len(tokens), **end)
    usage = Usage(7, len(tokens))
    return (Started("model"), *(Delta(text=_visible(t), tokens=(t,)) for t in deltas), finished, usage)


def _visible(token: Token) -> str:
    return "" if token.special else token.text


SAMPLED = {"do_sample": True, "seed": 42}

ZOE = stream_of(
    Token(11, "Zo", -0.25),
    Token(12, "ë", -1.5),
    Token(13, " says\n", -0.5),
    Token(14, '"你好 🙂"\\', -0.125),
    Token(2, "</s>", -0.0625, special=True),
    reason=FinishReason.EOS,
    seed=42,
)

WITHOUT_TOKENS: Events = (
    Started("model"),
    Delta(text="Zoë says"),
    Delta(reasoning="Hm."),
    Delta(refusal=" no"),
    Finished(reason=FinishReason.LENGTH),
    Usage(7, 9),
)
"""A stream of a remote that reports no tokens."""
