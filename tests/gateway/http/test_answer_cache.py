"""Cached answers: the same bytes for the same request, to whom they belong, and nothing that may differ."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from adapters import openai
from adapters.base import Call, Route
from adapters.openai.server import OpenAIServer
from backends.scripted import ScriptedBackend
from gateway.access.keys_file import keys_file, new_key
from gateway.app import create_app
from gateway.config import Cache, Config, Endpoint, ServedEntity, ServerSection, wrong_endpoint
from gateway.storage import answer_cache, decoded_requests
from gateway.storage.answer_cache import AnswerCache, AnswerMemory, CachedAnswer
from schemas.catalog import Catalog
from schemas.ir import Generate, Origin, Sampling, TextPrompt
from schemas.origin import Unread

MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0}
CACHE = Cache()
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": GREEDY}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES} | GREEDY),
    "openai stream": ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES, "stream": True} | GREEDY),
    "completions": ("/v1/completions", {"model": "chat", "prompt": "Hi"} | GREEDY),
    "anthropic": ("/v1/messages", {"model": "chat", "messages": MESSAGES, "max_tokens": 9} | GREEDY),
    "anthropic stream": (
        "/v1/messages",
        {"model": "chat", "messages": MESSAGES, "max_tokens": 9, "stream": True} | GREEDY,
    ),
    "tgi": ("/generate", {"inputs": "Hi", "parameters": {"do_sample": False}}),
    "tgi stream": ("/generate_stream", {"inputs": "Hi", "parameters": {"do_sample": False}}),
    "triton": ("/v2/models/chat/generate", {"text_input": "Hi"} | GREEDY),
    "databricks": ("/serving-endpoints/chat/invocations", {"messages": MESSAGES} | GREEDY),
    "responses": ("/v1/responses", {"model": "chat", "input": "Hi", "store": False} | GREEDY),
    "gemini": ("/v1beta/models/chat:generateContent", GEMINI),
    "gemini stream": ("/v1beta/models/chat:streamGenerateContent?alt=sse", GEMINI),
    "ollama": ("/api/chat", {"model": "chat", "messages": MESSAGES, "stream": False, "options": GREEDY}),
    "ollama stream": ("/api/chat", {"model": "chat", "messages": MESSAGES, "options": GREEDY}),
}


class Counted(ScriptedBackend):
    """Counts what it is asked."""

    asked = 0

    def generate(self, request: Generate) -> Any:
        self.asked += 1
        return super().generate(request)


@asynccontextmanager
async def serving(
    cache: Cache | None = CACHE, model: str = "scripted", server: ServerSection | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Counted]]:
    backend = Counted("s")
    endpoint = Endpoint(served_entities=(ServedEntity(name="a", backend="s", model=model),), cache=cache)
    config = Config(
        server=server or ServerSection(), backends={"s": {"kind": "scripted"}}, endpoints={"chat": endpoint}
    )
    app = create_app(config, {"s": backend})
    async with app.lifespan():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, backend


@pytest.mark.slow
@pytest.mark.parametrize("protocol", REQUESTS)
async def test_the_same_request_gets_the_same_bytes(protocol: str) -> None:
    path, body = REQUESTS[protocol]
    async with serving() as (client, backend):
        # From the third on, the request is not decoded again.
        first, second, third, fourth = [await client.post(path, json=body) for _ in range(4)]
    assert first.status_code == 200
    assert second.content == third.content == fourth.content == first.content != b""
    assert third.headers["x-request-id"] != fourth.headers["x-request-id"]
    assert second.headers["content-type"] == first.headers["content-type"]
    assert [each.headers["cache-status"] for each in (first, second)] == ["interlingua; fwd=miss", "interlingua; hit"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert backend.asked == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1},
        {"temperature": 0, "messages": [{"role": "user", "content": "Ho"}]},
        {"temperature": 0, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ],
)
async def test_what_may_be_answered_differently_is_asked_again(fields: dict[str, Any]) -> None:
    async with serving() as (client, backend):
        await client.post("/v1/chat/completions", json={"model": "chat", "messages": MESSAGES} | GREEDY)
        for asked in (2, 3):
            # Each with a field of its own: the third body is another one than the second.
            body = {"model": "chat", "messages": MESSAGES} | fields | {"max_completion_tokens": asked}
            await client.post("/v1/chat/completions", json=body)
            assert backend.asked == asked


async def test_a_seed_makes_sampling_repeatable_and_headers_ask_anew() -> None:
    body = {"model": "chat", "messages": MESSAGES, "temperature": 1, "seed": 7}
    async with serving() as (client, backend):
        for headers, asked in (
            ({}, 1),
            ({}, 1),
            ({"cache-control": "no-cache"}, 2),
            ({"cache-control": "no-store"}, 3),
        ):
            await client.post("/v1/chat/completions", json=body, headers=headers)
            assert backend.asked == asked


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "asked"), [(False, 2), (True, 1)])
async def test_keys_get_each_others_answers_only_if_they_are_shared(tmp_path: Path, shared: bool, asked: int) -> None:
    file = keys_file(tmp_path / "keys.json")
    keys = [new_key(file, name) for name in ("one", "other")]
    async with serving(Cache(shared=shared), server=ServerSection(keys_file=str(tmp_path / "keys.json"))) as (
        client,
        backend,
    ):
        for key in (*keys, *keys):
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": "chat", "messages": MESSAGES} | GREEDY
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200
    assert backend.asked == asked


@pytest.mark.slow
async def test_a_repeated_request_is_decoded_twice_and_never_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    class Counting(OpenAIServer):
        def decode(self, route: Route, body: bytes, call: Call) -> Any:
            decoded.append(body)
            return super().decode(route, body, call)

    monkeypatch.setattr(openai, "ADAPTER", dataclasses.replace(openai.ADAPTER, server=Counting))
    chat, body = "/v1/chat/completions", {"model": "chat", "messages": MESSAGES} | GREEDY
    async with serving() as (client, _):
        for _ in range(5):
            await client.post(chat, json=body, headers={"user-agent": str(len(decoded))})
        assert len(decoded) == 2, "when it is asked, and when its answer is first found"
        await client.post(chat, json=body | {"user": "ann"})
        await client.post(chat, json=body, headers={"x-unknown": "1"})
        await client.post(chat, json=body | {"temperature": 1})
        assert len(decoded) == 5
        wrong = [await client.post(chat, json={"model": "chat"}) for _ in range(3)]
    assert [each.status_code for each in wrong] == [400] * 3
    assert len(decoded) == 8


def test_decoded_requests_are_forgotten_with_their_catalog_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_requests, "_MOST_BYTES", 64 * 5000)
    known, catalog = decoded_requests.DecodedRequests(), Catalog({})

    def request(size: int) -> Generate:
        origin = Origin("openai", "openai", "chat", b"x" * size)
        return Generate(id="1", model="m", prompts=(TextPrompt("Hi"),), origin=origin)

    assert known.get((0,), catalog) is None
    for number in range(100):
        known.put((number,), request(904))
        assert known.get((0,), catalog) is not None  # it is used
    assert sum(known.get((number,), catalog) is not None for number in range(100)) == 64
    known.put(("large",), request(50_000))
    assert known.get(("large",), catalog) is None
    assert known.get((0,), Catalog({})) is None
    assert known.get((0,), catalog) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_broken_answer_is_not_kept(stream: bool) -> None:
    body = {"model": "chat", "messages": MESSAGES, "stream": stream} | GREEDY
    async with serving(model="crash") as (client, backend):
        for asked in (1, 2):
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code >= 500 or b'"error"' in answer.content
            assert backend.asked == asked


async def test_embeddings_are_kept() -> None:
    body = {"model": "chat", "input": "Hi"}
    async with serving() as (client, _):
        first, second = [await client.post("/v1/embeddings", json=body) for _ in range(2)]
    assert first.status_code == 200
    assert second.content == first.content
    assert second.headers["cache-status"] == "interlingua; hit"


async def test_an_endpoint_without_a_cache_says_nothing_of_one() -> None:
    async with serving(None) as (client, backend):
        for _ in range(2):
            answer = await client.post("/v1/chat/completions", json={"model": "chat", "messages": MESSAGES} | GREEDY)
            assert "cache-status" not in answer.headers
    assert backend.asked == 2


@pytest.mark.slow
@pytest.mark.parametrize(("choices", "stream", "asked"), [(1, False, 1), (3, False, 2), (1, True, 2)])
async def test_an_answer_that_fills_much_of_the_cache_is_not_kept(choices: int, stream: bool, asked: int) -> None:
    messages = [{"role": "user", "content": "x" * 5000}]
    async with serving(Cache(max_bytes=65536), model="echo") as (client, backend):
        for _ in range(2):
            body = {"model": "chat", "messages": messages, "stream": stream, "n": choices} | GREEDY
            assert b"x" in (await client.post("/v1/chat/completions", json=body)).content
    assert backend.asked == asked


async def test_old_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = AnswerMemory(Cache(ttl=10, max_bytes=65536))
    now = 0.0
    monkeypatch.setattr(answer_cache, "monotonic", lambda: now)

    def answer(size: int) -> CachedAnswer:
        return CachedAnswer("text/plain", (), b"x" * size, None, ())

    for number in range(100):
        await cache.put(b"%d" % number, answer(1024))
        assert await cache.get(b"0") is not None or number > 30  # it is used, until it is the last one's turn
    known = sum([await cache.get(b"%d" % number) is not None for number in range(100)])
    assert known == 65536 // (1024 + answer_cache._OVERHEAD)
    now = 10.0
    assert not any([await cache.get(b"%d" % number) for number in range(100)])
    assert cache._size == 0


def test_names_differ_by_all_that_an_answer_depends_on() -> None:
    cache, shared = AnswerCache(Cache()), AnswerCache(Cache(shared=True))
    origin = Origin("openai", "openai", "chat", b"{}", (("anthropic-beta", "x"),))
    request = Generate(id="1", model="m", prompts=(TextPrompt("Hi"),), sampling=Sampling(temperature=0), origin=origin)
    others = [
        replace(request, model="n"),
        *(
            replace(request, origin=replace(origin, **change))
            for change in (
                {"protocol": "tgi"},
                {"dialect": "mindie"},
                {"operation": "completions"},
                {"body": b"{} "},
                {"headers": ()},
            )
        ),
    ]
    names = {cache.name_of(each, "key") for each in (request, *others)}
    assert len(names) == len(others) + 1
    assert None not in names
    assert cache.name_of(replace(request, id="2"), "key") == cache.name_of(request, "key")
    assert cache.name_of(request, "other") != cache.name_of(request, "key")
    assert shared.name_of(request, "other") == shared.name_of(request, "key")
    searches = {"unread": (Unread("tools[0].type", "tools", "no"),)}
    for change in ({"stored_items": b"[]"}, {"origin": None}, {"sampling": Sampling(temperature=0.5)}, searches):
        assert cache.name_of(replace(request, **change), "key") is None


def test_compared_answers_are_not_cached() -> None:
    two = tuple(ServedEntity(name=name, backend="s", traffic_percentage=50) for name in "ab")
    wrong = wrong_endpoint(Endpoint(served_entities=two, cache=Cache()), ["s"])
    assert wrong is not None
    assert "cannot be cached" in wrong
    fallback = (two[0], replace(two[1], traffic_percentage=0))
    only = Endpoint(served_entities=(replace(fallback[0], traffic_percentage=100), fallback[1]), cache=Cache())
    assert wrong_endpoint(only, ["s"]) is None
