"""SmolLM2-135M-Instruct by every client's protocol: what each can ask for it gets, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from itertools import product

import pytest
from msgspec.structs import replace

from backends.native.backend import NativeBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from schemas.ir import Events, Generate
from tests.application.every_client import CLIENTS, HAS, RPC_CLIENTS, Answer, Body, ask_as, read
from tests.backends.native.real_models import real_model
from tests.gateway.grpc.calls import over_grpc
from tests.gateway.serving import running

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MODEL = "smollm2"
_OPENAI = {"tool_choice": "required", "parallel_tool_calls": False}
CHOICES: dict[str, Body] = {
    "OpenAI chat": _OPENAI,
    "OpenAI responses": _OPENAI,
    "Databricks": _OPENAI,
    "Anthropic": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    "Gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
}
"""How a client says that a tool must be called, once if it can."""
_FREE: Body = {}
"""For Ollama's, which cannot: the model may answer otherwise."""


RIGHT: dict[str, Callable[[Answer], object]] = {
    **{column: HAS[column] for column in ("whole", "streamed", "logprobs", "embeddings")},
    "tools": lambda answer: answer.calls[:1] == (("f", {"city": "Paris"}),),
    "structured output": lambda answer: json.loads(answer.text) == {"a": 1},
}


ASKED = 46
"""How many of these the protocols can ask for."""


class Greedy(NativeBackend):
    """Answers alike each time, and soon."""

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        sampling, stopping = request.sampling, request.stopping
        request = replace(
            request, sampling=replace(sampling, temperature=0.0), stopping=replace(stopping, max_new_tokens=40)
        )
        async for events in super().generate(request):
            yield events


def _says_something(answer: Answer) -> bool:
    return bool(answer.calls or answer.text)


async def test_every_client_gets_what_it_can_ask_for() -> None:
    options = {"engine": "inprocess", "threads": 1, "device": "cpu", "context_length": 512}
    backend = Greedy("native", options | {"model": str(real_model(MODEL))})
    endpoint = Endpoint(served_entities=(ServedEntity(name="one", backend="native"),))
    app = create_app(Config(backends={"native": {"kind": "native"}}, endpoints={MODEL: endpoint}), {"native": backend})
    asked, wrong = 0, dict[tuple[str, str], str]()
    async with running(app) as client, over_grpc(app) as rpc:
        RPC_CLIENTS[client] = rpc
        for name, column in product(CLIENTS, RIGHT):
            choice = CHOICES.get(name, _FREE) if column == "tools" else {}
            reply = await ask_as(client, name, MODEL, column, choice)
            if reply is None:
                continue
            asked += 1
            is_right = RIGHT[column] if choice is not _FREE else _says_something
            if reply.status_code != 200 or not is_right(read(reply)):
                wrong[name, column] = f"{reply.status_code} {reply.text}"
    assert not wrong
    assert asked == ASKED
