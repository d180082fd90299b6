"""The equality law with the scripted and the native backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from backends.base import Backend
from backends.scripted import ScriptedBackend
from tests.equality import WAYS, Ask, Said, agree, say, say_over_grpc

ASKS = {
    "to its own end": Ask("What do you know about the sea and the sky?", 200),
    "to the limit": Ask("What do you know about the sea and the sky?", 3),
    "sampled": Ask("Tell me more.", 12, temperature=0.8, seed=11),
    "beyond ASCII": Ask("Zoë says 你好 🙂 to 👩‍🚀!", 60),
}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["scripted", pytest.param("native", marks=pytest.mark.torch)]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    started = ScriptedBackend("scripted") if request.param == "scripted" else _native()
    await started.start()
    yield started
    await started.aclose()


def _native() -> Backend:
    from backends.native.backend import NativeBackend

    return NativeBackend("native", {"engine": "inprocess"})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("chat", [False, True], ids=["raw", "chat"])
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_every_route_gives_the_same_answer(backend: Backend, ask: Ask, chat: bool) -> None:
    model = "echo" if isinstance(backend, ScriptedBackend) else "native"
    ask = Ask(ask.prompt, ask.max_tokens, ask.temperature, ask.seed, chat)
    answers: dict[str, Said] = {}
    for way in WAYS:
        if way.chat == chat and (way.seeds or ask.seed is None):
            for stream in (False, True):
                answers[f"{way} {'streamed' if stream else 'whole'}"] = await say(way, ask, backend, model, stream)
    if not chat:
        for stream in (False, True):
            answers[f"gRPC {stream}"] = await say_over_grpc(ask, backend, model, stream)
    agree(answers)
    assert len(answers) >= 6


def test_a_difference_in_any_field_fails_the_comparison() -> None:
    said = Said("text", "end", 3, 5, (1, 2, 3))
    for field, other in {"text": "texd", "reason": "length", "generated": 4, "ids": (1, 2, 4)}.items():
        changed = Said(**{name: getattr(said, name) for name in said.__dataclass_fields__} | {field: other})
        with pytest.raises(AssertionError, match=field):
            agree({"a": said, "b": changed})
