"""Recorded streams of real providers, replayed over sockets: every client reads what the provider said.

A client of the provider's own protocol gets every key of every event.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, ServerSection
from tests.faults.upstream import END, STREAM, Asked, Step, chunk, response, upstream
from tests.gateway.serving import listening
from tests.recordings.reading import Heard, frames, heard
from tests.recordings.streams import ALL, FAILED, RAW, WHOLE, choices, protocol

pytestmark = pytest.mark.slow

HI = [{"role": "user", "content": "Hi"}]
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": HI, "stream_options": {"include_usage": True}}),
    "responses": ("/v1/responses", {"model": "m", "input": "Hi"}),
    "databricks": ("/serving-endpoints/m/invocations", {"messages": HI}),
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 99, "messages": HI}),
    "gemini": (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
    ),
    "ollama": ("/api/chat", {"model": "m", "messages": HI}),
    "completions": ("/v1/completions", {"model": "m", "prompt": "Hi", "stream_options": {"include_usage": True}}),
    "tgi": ("/generate_stream", {"inputs": "Hi", "parameters": {"details": True}}),
    "triton": ("/v2/models/m/generate_stream", {"text_input": "Hi"}),
}
TEXT_ONLY = ("completions", "tgi", "triton")
SEVERAL = ("openai", "databricks")  # clients that can ask for several choices


def expected(said: Heard, client: str) -> Heard:
    """What a client of the protocol can read of an answer: fields that the protocol does not have are left out."""
    if client == "responses":
        return said._replace(finish="incomplete" if said.finish == "length" else "completed")
    # OpenAI ends the call of a named tool with "stop", which its own clients get as it is.
    if said.calls and said.finish == "stop" and client in ("databricks", "anthropic"):
        said = said._replace(finish="tool_calls")
    # Where a protocol has no field for a refusal, it is the text.
    if client not in ("anthropic", "gemini", "ollama", *TEXT_ONLY):
        return said
    if client in ("gemini", "ollama"):  # no reason of their own for calls
        finish = "tool_calls" if said.calls else said.finish
        return said._replace(text=said.text + said.refusal, refusal="", finish=finish)
    finish = "refusal" if said.refusal and client == "anthropic" else said.finish
    said = said._replace(text=said.text + said.refusal, refusal="", finish=finish)
    if client == "anthropic":
        return said
    finish = {"triton": ""}.get(client, {"tool_calls": "stop"}.get(said.finish, said.finish))
    return said._replace(reasoning="", calls=(), finish=finish, usage=said.usage if client == "completions" else None)


def pieces(name: str) -> list[list[bytes]]:
    """The body in one piece, in one for each event, and cut at random."""
    data, places = ALL[name], random.Random(name)
    cuts = sorted(places.sample(range(1, len(data)), min(200, len(data) - 1)))
    at_random = [data[start:stop] for start, stop in pairwise((0, *cuts, len(data)))]
    end = b"\n" if protocol(name) == "ollama" else b"\n\n"
    return [[data], [event + end for event in data.split(end) if event], at_random]


@asynccontextmanager
async def replaying(name: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[bytes]]]:
    """A client of a gateway whose upstream sends the stream, in the pieces of the list."""
    sent = [ALL[name]]
    head = STREAM.replace(b"text/event-stream", b"application/x-ndjson") if protocol(name) == "ollama" else STREAM

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET ") else (head, *map(chunk, sent), END)

    # A TGI of today is asked for everything in OpenAI's protocol.
    kind = {"tgi": "tgi-0.9"}.get(protocol(name), protocol(name))
    async with upstream(play) as there:
        url = there.url + ("/v1" if kind == "openai" else "")
        texts = {} if name in RAW else {"raw_text": "as_chat"}
        backends = {"far": {"kind": kind, "url": url, "timeouts": {"connect": 60.0}, **texts}}
        endpoints = {"m": Endpoint(served_entities=(ServedEntity(name="m", backend="far"),))}
        app = create_app(Config(server=ServerSection(), backends=backends, endpoints=endpoints))
        async with (
            listening(app) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            yield client, sent


@pytest.mark.parametrize("name", WHOLE)
async def test_every_client_reads_what_the_provider_said(name: str) -> None:
    recorded, count = list(frames(ALL[name])), choices(name)
    async with replaying(name) as (client, sent):
        for sent[:] in pieces(name):
            # Without a chat template, a server of raw text takes no chats.
            clients = TEXT_ONLY if name in RAW else SEVERAL if count > 1 else CLIENTS
            for protocol_of_client in clients:
                path, body = CLIENTS[protocol_of_client]
                answer = await client.post(path, json=body | {"stream": True} | ({"n": count} if count > 1 else {}))
                written = list(frames(answer.content))
                for index in range(count):
                    wanted = expected(heard(recorded, index), protocol_of_client)
                    found = heard(written, index)
                    # Without counts of the provider, clients get the gateway's own.
                    assert (found if wanted.usage else found._replace(usage=None)) == wanted, protocol_of_client
                # TGI's frames are written anew: what a stream of another version lacks is added.
                if protocol_of_client == protocol(name) != "tgi":
                    assert written == recorded


@pytest.mark.parametrize("name", FAILED)
@pytest.mark.parametrize("client", CLIENTS)
async def test_no_client_takes_a_failure_for_an_end(name: str, client: str) -> None:
    recorded = list(frames(ALL[name]))
    reason = recorded[-1]["error"]["message"]
    async with replaying(name) as (connection, _):
        path, body = CLIENTS[client]
        answer = await connection.post(path, json=body | {"stream": True})
    # The answer before the failure is reasoning alone: a protocol without any has an error status.
    assert reason in answer.text
    *before, last = list(frames(answer.content)) if answer.status_code == 200 else [answer.json()]
    assert "error" in json.dumps(last)
    if client == "openai":
        assert before == recorded[:-1]
        assert last["error"]["code"] == "tool_use_failed"
