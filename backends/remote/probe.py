"""Asks a server for its models and, where that is not known, its kind: once, before it is served.

A server may match several kinds; the first matching row wins. A configuration file can name any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters.base import Outbound, Reply
from adapters.triton import listed
from backends.remote.connect import Connected, Connecting, connect
from backends.remote.diagnosis import Diagnosis
from backends.remote.grpc.connect import connect_rpc, is_installed
from backends.remote.options import RemoteOptions
from schemas.errors import BackendError, BackendUnavailable, Fault, GatewayError

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
    another shape. `decode` reads the answer where it is not JSON, `connecting` makes the client where it is not HTTP's.
    """

    kind: str
    base: str
    request: Outbound
    models: Callable[[Any], list[str]]
    decode: Callable[[bytes], Any] = msgspec.json.decode
    connecting: Connecting = connect


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
# Asked where the server does not speak HTTP/1.1.
_OVER_RPC = _Question(
    "triton-grpc",
    "",
    Outbound("/inference.GRPCInferenceService/RepositoryIndex", b"", headers=()),
    list[str],
    decode=listed,
    connecting=connect_rpc,
)
# Never probed for: its listing looks like OpenAI's.
_ANTHROPIC = _Question("anthropic", "", _get("/v1/models"), lambda answer: [model["id"] for model in answer["data"]])


_LISTED_AS = {"mindie-openai": "openai", "tgi-0.9": "tgi", "mindie-triton": "triton"}
"""Kinds whose servers list their models as those of another kind do."""


async def probe(options: RemoteOptions) -> Found:
    """Detect what the server at `options.url` is. The URL may end in `/v1`.

    Raises:
        schemas.errors.BackendUnavailable: it cannot be reached, refuses the key, or is of no known kind.
        ValueError: the options cannot be used.
    """
    # Kinds other than OpenAI's are served at the root, beside `/v1`.
    root = options.url.rstrip("/").removesuffix("/v1")
    asked = [(question, question.request) for question in _QUESTIONS]
    found = await _ask_in_turn(msgspec.structs.replace(options, url=root), asked)
    if found is None:
        raise BackendUnavailable(f"The server at {options.url} is of no kind that is known, or has no models.")
    question, models = found
    return Found(question.kind, root + question.base, models)


async def _ask_in_turn(
    options: RemoteOptions, asked: Sequence[tuple[_Question, Outbound]]
) -> tuple[_Question, tuple[str, ...]] | None:
    """`_ask` over HTTP, and over gRPC if the server answers HTTP with something else."""
    try:
        return await _ask(options, asked)
    except BackendUnavailable as error:
        cause = error.__cause__
        if not is_installed() or not isinstance(cause, BackendError) or cause.fault is not Fault.MALFORMED:
            raise
        return await _ask(options, [(_OVER_RPC, _OVER_RPC.request)])


async def list_models(kind: str, options: RemoteOptions) -> tuple[str, ...]:
    """The models of a server of a known kind; empty if it lists none, or its kind has no listing.

    Raises:
        schemas.errors.BackendUnavailable: it cannot be reached, or refuses the key.
        ValueError: the options cannot be used.
    """
    listed_as = _LISTED_AS.get(kind, kind)
    asked = [
        (question, msgspec.structs.replace(question.request, path=question.request.path.removeprefix(question.base)))
        for question in (*_QUESTIONS, _OVER_RPC, _ANTHROPIC)
        if question.kind == listed_as
    ]
    found = await _ask(options, asked)
    return () if found is None else found[1]


def base_of(kind: str) -> str:
    """The end of the URLs of a kind's servers; "" if it is their root."""
    return next((each.base for each in _QUESTIONS if each.kind == _LISTED_AS.get(kind, kind)), "")


async def _ask(
    options: RemoteOptions, asked: Sequence[tuple[_Question, Outbound]]
) -> tuple[_Question, tuple[str, ...]] | None:
    """The first question that the server answers with models, and these; None if it answers none."""
    connected = asked[0][0].connecting("probe", options) if asked else connect("probe", options)
    refused = ""
    try:
        for question, request in asked:
            reply = await _fetch(connected, request, options)
            # A server may refuse the paths it does not have with 401, so this is an error only if no question is
            # answered.
            if reply.status in (401, 403):
                refused = f"The server at {options.url} wants a key, or another one."
            # A listing without models does not count: there would be nothing to serve.
            if models := _models(question, reply):
                return question, models
    finally:
        await connected.aclose()
    if refused:
        raise BackendUnavailable(refused)
    return None


async def _fetch(connected: Connected, request: Outbound, options: RemoteOptions) -> Reply:
    deadline = asyncio.get_running_loop().time() + _QUESTION_TIMEOUT
    # Outside of the second try: a server that cannot be reached ends the probe, because no other question would fare
    # better.
    try:
        response = await connected.checks.exchange(request, deadline)
    except GatewayError as error:
        # For the operator, who has just named the server: with the cause.
        raise BackendUnavailable(Diagnosis(options, connected.proxy).of_error(error)) from error
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
        names = question.models(question.decode(reply.body))
    # Anything may listen at the URL: JSON of another shape, text of another encoding, or a deeply nested body.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return ()
    return tuple(name for name in names if isinstance(name, str) and name)
