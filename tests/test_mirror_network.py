"""The mirror law over the network: a gateway in front of a gateway gives the answer of the inner one.

Every client protocol over every kind of upstream, streamed and whole. Where an upstream's protocol cannot carry what a
client asks (a chat over Triton), it is refused before the upstream is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from litestar import Litestar

from backends.remote.backend import RemoteBackend
from backends.scripted import ScriptedBackend
from schemas.errors import UnsupportedFeature
from tests.backends.remote.grpc import triton
from tests.equality import WAYS, Ask, Said, Way, say
from tests.faults.recorded import ANSWERED, MOUNTED, SERVER, remote
from tests.gateway.grpc.calls import grpc_port
from tests.gateway.serving import listening, scripted

pytestmark = pytest.mark.slow

SPEECHLESS = {("anthropic", False), ("gemini", False), ("mindie-openai", False), ("responses", False)}
SPEECHLESS |= {("tgi-0.9", True), ("triton", True), ("triton-grpc", True)}
"""Kinds without raw prompts, or without chats."""

UNREPORTED = {
    "tgi-0.9": ("prompt_tokens",),
    "mindie": ("prompt_tokens", "generated"),
    "mindie-openai": ("prompt_tokens", "generated"),
    "mindie-triton": ("prompt_tokens", "generated"),
}
"""Counts that some kinds do not report for every answer: then the count is 0, or a lower bound."""

IDS = ("tgi", "tgi-0.9")
"""Kinds that report token ids."""

ASKS = {
    "to its own end": Ask("What do you know about the sea and the sky?", 200),
    "to the limit": Ask("What do you know about the sea and the sky?", 3),
    "sampled": Ask("Tell me more.", 12, temperature=0.8, seed=11),
    "beyond ASCII": Ask("Zoë says 你好 🙂 to 👩‍🚀!", 200),
}


@asynccontextmanager
async def in_front_of(app: Litestar, kind: str) -> AsyncIterator[RemoteBackend]:
    """A backend of the kind that asks a gateway."""
    async with listening(app) as port:
        if kind == "triton-grpc":
            async with grpc_port(app) as rpc_port, triton.remote(f"http://localhost:{rpc_port}") as outer:
                yield outer
        else:
            async with remote(kind, f"http://127.0.0.1:{port}{MOUNTED.get(kind, '')}") as outer:
                yield outer


@pytest.mark.parametrize("chat", [False, True], ids=["raw", "chat"])
@pytest.mark.parametrize("kind", [*ANSWERED, "triton-grpc"])
async def test_a_gateway_in_front_of_a_gateway_gives_the_same_answer(kind: str, chat: bool) -> None:
    inner = ScriptedBackend("inner")
    app, _ = scripted("echo", server=SERVER)
    compared = 0
    async with in_front_of(app, kind) as outer:
        for ask in ASKS.values():
            ask = Ask(ask.prompt, ask.max_tokens, ask.temperature, ask.seed, chat)
            for way in WAYS:
                for stream in (False, True):
                    if way.chat == chat:
                        there = await try_to_say(way, ask, outer, stream)
                        if there is not None:
                            compared += 1
                            same(
                                await say(way, ask, inner, "echo", stream), there, kind, chat, f"{way}, {ask}, {stream}"
                            )
    assert compared > 0 or (kind, chat) in SPEECHLESS


def same(alone: Said, there: Said, kind: str, chat: bool, where: str) -> None:
    """Check that all that the upstream's protocol can express is unchanged."""
    assert (there.text, there.reason) == (alone.text, alone.reason), where
    for field in ("generated", "prompt_tokens"):
        value = getattr(there, field)
        if value is not None and field not in UNREPORTED.get(kind, ()):
            assert value == getattr(alone, field), f"{field}: {where}"
    if there.ids is not None and kind in IDS and not chat:
        assert there.ids == alone.ids, where


async def try_to_say(way: Way, ask: Ask, backend: RemoteBackend, stream: bool) -> Said | None:
    try:
        return await say(way, ask, backend, "echo", stream)
    except UnsupportedFeature:
        return None
