"""Each field of the official SDKs' requests, over models here and each kind of upstream: honoured, refused or named."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest

from adapters.anthropic import ADAPTER as ANTHROPIC
from adapters.base import Call, Route
from adapters.openai import ADAPTER as OPENAI
from backends.base import Backend, check_unread, ignored_fields
from backends.features import check
from backends.remote.asking import without_lacking
from backends.remote.backend import RemoteBackend
from backends.scripted import ScriptedBackend
from schemas.catalog import Catalog, ModelCard
from schemas.errors import RequestError
from schemas.ir import Embed, Generate, Request, Tokenize
from tests.application.every_field import Body, Field, RequestTypes
from tests.clients.request_types import path_of, written
from tests.faults.recorded import KINDS, remote

SDKS = {"openai": OPENAI, "anthropic": ANTHROPIC}
PATHS = [(sdk, path) for sdk in SDKS for path in RequestTypes(sdk).paths]
CATALOG = Catalog({"m": ModelCard(name="m", images=True)}, "m")
TEMPLATE = "{{ messages | tojson }}{{ tools | tojson }}"
NOWHERE = "http://127.0.0.1:9"
HERE = "a scripted model"
NATIVE = "a native model"

UPSTREAMS: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, {}) for kind in KINDS} | {
    "anthropic, texts as chats": ("anthropic", {"raw_text": "as_chat"}),
    "triton with a template": ("triton", {"chat_template": TEMPLATE}),
    "tgi-0.9 with a template": ("tgi-0.9", {"chat_template": TEMPLATE}),
}

WITHOUT_MEANING = {
    # Who asks, and what for: no answer depends on these.
    "metadata": "a label",
    "metadata.user_id": "a label",
    "user": "a label",
    "safety_identifier": "a label",
    "prompt_cache_key": "a label",
    "input.id": "a label: the call's id says which result is which call's",
    "input<FunctionCallOutput>.name": "a label: the call has the function's name",
    "text.format.name": "a label of the schema",
    "response_format.json_schema.name": "a label of the schema",
    # What holds anyway.
    "stream": "false, in the types of requests for whole answers",
    "response_format<ResponseFormatText>": "the form of answers anyway",
    "text.format<ResponseFormatText>": "the form of answers anyway",
    "input.status": "says whether an item is whole: what there is of it is read",
    **dict.fromkeys(
        (
            *(f"input.content.logprobs.{field}" for field in ("token", "bytes", "logprob")),
            *(f"input.content.logprobs.top_logprobs.{field}" for field in ("token", "bytes", "logprob")),
        ),
        "the model's own, of a text that it has written",
    ),
    "input.type": "message, which items are without a type",
    "tools.type": "custom, which tools are without a type",
    "messages.content.caller<DirectCallerParam>": "the model itself, which calls anyway",
    "text.format.strict": "an answer follows its schema, strict or not",
    "response_format.json_schema.strict": "an answer follows its schema, strict or not",
    "max_tool_calls": "bounds the calls of tools that run at the server, and none does",
}
"""Fields that change nothing where they are not sent on, and why."""

OVER = {
    ("messages.name", "anthropic"): "a result follows the call of its function",
    ("messages.name", "anthropic, texts as chats"): "a result follows the call of its function",
    ("messages.name", "responses"): "a result follows the call of its function",
    ("messages.name", "cohere"): "a result follows the call of its function",
    ("messages.content.source.media_type", "ollama"): "Ollama looks at the image itself",
    ("messages.content.content.source.media_type", "ollama"): "Ollama looks at the image itself",
    ("thinking<ThinkingConfigDisabledParam>", NATIVE): "the template of the model here knows no thinking",
}
"""Likewise over one kind of upstream."""

COUNTED = {
    "output_config.format.schema",
    "text.format.schema",
    "text.format<ResponseFormatJSONObject>",
    "parallel_tool_calls",
    "tool_choice.mode",
    "tool_choice.disable_parallel_tool_use",
}
"""Likewise where tokens are counted: they constrain the answer, and are no part of the prompt."""


class NoRecords:
    """A store in which nothing is."""

    def get(self, id: str) -> bytes | None:
        return None

    def delete(self, id: str) -> bool:
        return False


class Outcome(NamedTuple):
    """What becomes of a request that is not refused: what is done with it, and the fields that are named."""

    done: Any
    named: tuple[str, ...]


def decode(sdk: str, route: Route, body: Body) -> Request:
    adapter = SDKS[sdk]
    call = Call("r", CATALOG, records=NoRecords(), keeps=True)
    return adapter.server(adapter.dialects[sdk]).decode(route, json.dumps(body).encode(), call)


def read_here(request: Request) -> Request:
    """What a model here reads of a request."""
    others: dict[str, Any] = {"origin": None, "unknown": ()}
    if isinstance(request, Generate):
        others |= {"extra": {}, "unread": (), "user": None, "safety_identifier": None}
    # Of the hints a model's template may take some; `ignored_fields` knows of all whether they have an effect.
    if not isinstance(request, Embed):
        others["hints"] = {}
    return msgspec.structs.replace(request, **others)


def written_here(request: Generate) -> tuple[Any, ...]:
    """What the gateway does itself, whoever answers."""
    return (
        request.stream_usage,
        request.continuous_usage,
        request.legacy_functions,
        request.answer_suffix,
        request.echo,
        request.logprobs,
        request.overflow,
        request.returns_ids,
        request.prompt_scores,
        request.conversation,
        request.stored_items,
        request.detached,
    )


async def outcome(backend: Backend, request: Request) -> Outcome:
    """What a backend makes of a request.

    Raises:
        RequestError: it refuses the request.
    """
    if isinstance(request, Tokenize):
        check_unread(request, [part.param for part in request.unread])
        return Outcome(read_here(request), ignored_fields(request, backend))
    if isinstance(request, Embed) and isinstance(backend, RemoteBackend):
        if backend._embeddings is None:
            raise RequestError("no embeddings")
        return Outcome((backend._embeddings.encode_embed(request), request.encoding), backend.ignored(request))
    assert isinstance(request, Generate | Embed)
    if isinstance(request, Generate):
        check(request, backend.capabilities, "m")
    named = ignored_fields(request, backend)
    if not isinstance(backend, RemoteBackend) or isinstance(request, Embed):
        return Outcome(read_here(request), named)
    _, outbound = backend._encode(await backend._as_taken(without_lacking(request, backend.capabilities)))
    return Outcome((outbound, written_here(request)), named)


def plain(place: str) -> str:
    """A place without the numbers of items and the types of objects."""
    return re.sub(r"\[\d*\]|<\w+>", "", place)


def is_named(place: str, names: tuple[str, ...]) -> bool:
    """Whether a field, or what it is in, is among the named ones."""
    return any(f"{plain(place)}.".startswith(f"{plain(name)}.") for name in names)


def is_excused(place: str, upstream: str, operation: str) -> bool:
    numberless = re.sub(r"\[\d*\]", "", place)
    # The last object's type tells it from others in its place.
    spellings = {plain(place), numberless, re.sub(r"<\w+>(?=\.)", "", numberless)}
    if operation in ("count_tokens", "input_tokens") and spellings & COUNTED:
        return True
    return bool(spellings & WITHOUT_MEANING.keys()) or any((each, upstream) in OVER for each in spellings)


async def changes(backend: Backend, without: Request, asked: list[Request], place: str) -> bool:
    """Whether a field is refused or named, or changes what is done."""
    before = await outcome(backend, without)
    for request in asked:
        try:
            after = await outcome(backend, request)
        except RequestError:
            return True
        if after.done != before.done or set(after.named) != set(before.named) or is_named(place, after.named):
            return True
    return False


class Walk:
    """Sends the fields of one SDK's requests to backends; `silent` are those that nothing became of."""

    def __init__(self, backends: dict[str, Backend], sdk: str, path: str) -> None:
        self._sdk = sdk
        adapter = SDKS[sdk]
        found = adapter.server(adapter.dialects[sdk]).routes
        (self._route,) = (route for route in found if (route.method, route.path) == ("POST", path))
        # Tokens are counted here, without asking the server: of the remotes one stands for all.
        counts = self._route.kind == "tokenize"
        self._backends = {
            name: each for name, each in backends.items() if not counts or name in (HERE, NATIVE, "openai")
        }
        self.silent: list[str] = []
        self.unnamed: list[str] = []
        self.asked = 0

    async def visit(self, field: Field) -> None:
        """Send a field and, unless it is refused whoever answers, the fields within."""
        without = decode(self._sdk, self._route, field.without)
        asked, refused = [], []
        for body in field.bodies:
            try:
                asked.append(decode(self._sdk, self._route, body))
            except RequestError as error:
                refused.append((body, error))
        self.unnamed += [f"{field.place}: {error}" for body, error in refused if not self._says(error, field, body)]
        # What no adapter has a form for is refused wherever the body is not sent on as it is.
        unread = {part.param for request in asked for part in getattr(request, "unread", ())}
        if not asked or unread - {part.param for part in getattr(without, "unread", ())}:
            return
        inner = list(field.inner())
        # An object is judged by its fields.
        if not refused and not inner:
            await self._judge(field.place, without, asked)
        for each in inner:
            await self.visit(each)

    async def _judge(self, place: str, without: Request, asked: list[Request]) -> None:
        for name, backend in self._backends.items():
            if is_excused(place, name, self._route.name):
                continue
            try:
                changed = await changes(backend, without, asked, place)
            except RequestError:  # the backend refuses the request without the field, too
                continue
            self.asked += 1
            if not changed:
                self.silent.append(f"{place}, {name}")

    @staticmethod
    def _says(error: RequestError, field: Field, body: Body) -> bool:
        """Whether a refusal names the field, what it is in, or its value's type."""
        said = f"{error.message} {error.param}".lower()
        words = {part for part in plain(field.place).split(".") if part in said}
        return bool(words) or any(f"'{type}'" in said for type in re.findall(r'"type": "(\w+)"', json.dumps(body)))


async def walk(backends: dict[str, Backend], sdk: str, path: str) -> Walk:
    walked = Walk(backends, sdk, path)
    for field in RequestTypes(sdk).fields(path):
        await walked.visit(field)
    return walked


@pytest.mark.slow
async def test_no_field_is_dropped_in_silence() -> None:
    async with AsyncExitStack() as stack:
        backends: dict[str, Backend] = {HERE: ScriptedBackend("s", {})}
        for name, (kind, options) in UPSTREAMS.items():
            backends[name] = await stack.enter_async_context(remote(kind, NOWHERE, **options))
        walked = {path: await walk(backends, sdk, path) for sdk, path in PATHS}
    assert {path: each.silent for path, each in walked.items() if each.silent} == {}
    assert {path: each.unnamed for path, each in walked.items() if each.unnamed} == {}
    assert sum(each.asked for each in walked.values()) > 4000


@pytest.mark.slow
@pytest.mark.torch
async def test_no_field_is_dropped_in_silence_by_a_native_model() -> None:
    from backends.native.backend import NativeBackend
    from tests.backends.native.fake_engine import FakeEngine

    backend = NativeBackend("native", {}, connect=FakeEngine().connect)
    await backend.start()
    try:
        walked = {path: await walk({NATIVE: backend}, sdk, path) for sdk, path in PATHS}
    finally:
        await backend.aclose()
    assert {path: each.silent for path, each in walked.items() if each.silent} == {}
    assert sum(each.asked for each in walked.values()) > 200


@pytest.mark.slow
def test_openais_types_are_the_installed_ones() -> None:
    """`python -m tests.clients.request_types` writes the file anew."""
    assert path_of("openai").read_text() == written("openai")
