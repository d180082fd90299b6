"""Shared by the tests of this folder: both codecs of every dialect, one endpoint, one answer."""

from __future__ import annotations

from pathlib import Path

from adapters.base import Call, Route
from adapters.triton import ADAPTER
from schemas.catalog import Catalog, ModelCard, RequestCounts, TensorNames
from schemas.ir import Delta, Events, Finished, FinishReason, Generate, Started, Token, Usage

GOLDEN = Path(__file__).parents[2] / "golden" / "triton"
DIALECTS = tuple(ADAPTER.dialects)

SERVERS = {name: ADAPTER.server(dialect) for name, dialect in ADAPTER.dialects.items()}
CLIENTS = {name: ADAPTER.client(dialect) for name, dialect in ADAPTER.dialects.items()}
ROUTES: dict[str, Route] = {route.name: route for route in SERVERS["triton"].routes}

CATALOG = Catalog(
    {
        "mymodel": ModelCard(name="mymodel", counts=RequestCounts(7, 3_000_000_000, 2, 5_000_000, 1_763_700_000_123)),
        "mock_llm": ModelCard(
            name="mock_llm",
            tensors=TensorNames({"PROMPT": "text_input", "STREAM": "stream"}, {"TEXT": "text_output"}),
        ),
        "loading": ModelCard(name="loading", ready=False),
    },
    version="0.1.0",
)

ANSWER: Events = (
    Started("mymodel", 3),
    Delta(0, "Hello", (Token(5, "Hello"),)),
    Delta(0, ' "w\n', (Token(6, ' "w\n'),)),
    Finished(0, "örld", (Token(7, "örld"), Token(2, "</s>", special=True)), reason=FinishReason.EOS, generated=4),
    Usage(3, 4),
)


def call(model: str = "mymodel", version: str | None = None, **headers: str) -> Call:
    path = {"model": model} | ({"version": version} if version else {})
    return Call("req-1", CATALOG, path, {name.replace("_", "-"): value for name, value in headers.items()})


def decode(
    body: str | bytes,
    operation: str = "generate",
    *,
    model: str = "mymodel",
    dialect: str = "triton",
    **headers: str,
) -> Generate:
    data = body.encode() if isinstance(body, str) else body
    return SERVERS[dialect].decode(ROUTES[operation], data, call(model, **headers))


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()
