"""Detects the kind of the server at a URL, and its models: once, for `gateway serve --backend URL`.

A server may match several kinds; the first matching row wins. A configuration file can name any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters.base import Outbound, Reply
from backends.transport import Transport
from schemas.errors import BackendUnavailable, GatewayError

_QUESTION_TIMEOUT = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Found:
    """A server: the name of its kind, the URL to configure for that kind, and its models."""

    kind: str
    url: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """A row of the table: servers of `kind` answer `request` with JSON from which `models` reads the models' names.

    `base` is the path of the kind's URL below the server's root. `models` raises `KeyError` or `TypeError` for JSON of
    another shape.
    """

    kind: str
    base: str
    request: Outbound
    models: Callable[[Any], list[str]]


def _get(path: str) -> Outbound:
    return Outbound(path, b"", "GET", ())


# The order matters. OpenAI's listing comes first, because most servers have it and their chats need no other protocol.
# MindIE comes before TGI: both answer `/info`, and only MindIE's answer has `models`.
_QUESTIONS = (
    _Question("openai", "/v1", _get("/v1/models"), lambda answer: [model["id"] for model in answer["data"]]),
    _Question("mindie", "", _get("/info"), lambda answer: [model["model_id"] for model in answer["models"]]),
    _Question("tgi", "", _get("/info"), lambda answer: [answer["model_id"]]),
    # The index of the model repository extension is a POST; `{}` asks for all models, loaded or not.
    _Question(
        "triton", "", Outbound("/v2/repository/index", b"{}"), lambda answer: [model["name"] for model in answer]
    ),
    _Question(
        "databricks",
        "",
        _get("/api/2.0/serving-endpoints"),
        lambda answer: [endpoint["name"] for endpoint in answer["endpoints"]],
    ),
)


async def probe(url: str, key: str = "") -> Found:
    """Detect what the server at `url` is. The URL may end in `/v1`.

    Raises:
        schemas.errors.BackendUnavailable: it cannot be reached, refuses the key, or is of no known kind.
        ValueError: `url` is not an HTTP URL, or the key cannot be sent in a header.
    """
    # Kinds other than OpenAI's are served at the root, beside `/v1`.
    root = url.rstrip("/").removesuffix("/v1")
    transport = Transport(root, headers=(("authorization", f"Bearer {key}"),) if key else ())
    refused = False
    try:
        for question in _QUESTIONS:
            reply = await _fetch(transport, question.request)
            # A server may refuse the paths it does not have with 401, so this is an error only if no question is
            # answered.
            refused = refused or reply.status in (401, 403)
            models = _models(question, reply)
            # A listing without models does not count: there would be nothing to serve.
            if models:
                return Found(question.kind, root + question.base, models)
    finally:
        await transport.aclose()
    if refused:
        raise BackendUnavailable(f"The server at {url} wants a key, or another one.")
    raise BackendUnavailable(f"The server at {url} is of no kind that is known, or has no models.")


async def _fetch(transport: Transport, request: Outbound) -> Reply:
    deadline = asyncio.get_running_loop().time() + _QUESTION_TIMEOUT
    # Outside of the try: a server that cannot be reached ends the probe, because no other question would fare better.
    response = await transport.exchange(request, deadline)
    try:
        return await response.reply(deadline)
    except GatewayError:  # a server of another kind may answer with anything
        return Reply(status=0)
    finally:
        response.close()


def _models(question: _Question, reply: Reply) -> tuple[str, ...]:
    if reply.status != 200:
        return ()
    try:
        names = question.models(msgspec.json.decode(reply.body))
    # Anything may listen at the URL: JSON of another shape, text of another encoding, or a deeply nested body.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return ()
    return tuple(name for name in names if isinstance(name, str) and name)
