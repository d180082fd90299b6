"""Conversations shortened before they are sent: where the context length is configured, or the server tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from tests.faults.upstream import Asked, Step, response, upstream
from tests.gateway.serving import running

CHAT = {
    "id": "c",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}
OLLAMA = {"model": "m", "message": {"role": "assistant", "content": "Hi"}, "done": True, "done_reason": "stop"}
TRITON = {"model_name": "m", "text_output": "Hi", "finish_reason": "stop"}
TGI_DETAILS = {"finish_reason": "eos_token", "generated_tokens": 1, "prefill": [], "tokens": []}
TGI = {"generated_text": "Hi", "details": TGI_DETAILS}

WORDS = "some words of a turn "  # 21 bytes
TURNS = [
    {"role": role, "content": f"{role} {place}: {WORDS * 4}"} for place in range(20) for role in ("user", "assistant")
]
"""Of about 24 tokens each, 48 a turn, by the estimate."""
LISTINGS: dict[str, tuple[str, Any, Any]] = {
    "openai": ("/models", {"data": [{"id": "m", "max_model_len": 200}, {"id": "n", "max_model_len": 9}]}, CHAT),
    "anthropic": ("/v1/models/m", {"id": "m", "max_input_tokens": 200}, MESSAGE),
    "gemini": ("/models/m", {"name": "models/m", "inputTokenLimit": 200}, GEMINI),
    "tgi": ("/info", {"model_id": "x", "max_total_tokens": 200}, CHAT),
    "mindie": ("/info", {"models": [{"model_id": "x", "max_total_tokens": 200}]}, CHAT),
}
"""Kind -> what a server of the kind is asked, what it tells, and its answer."""


async def ask(
    kind: str, answer: Any, listing: dict[str, Any] | None = None, *, times: int = 1, **options: Any
) -> tuple[int, Any, list[Asked]]:
    """Status and answer of a long conversation that may be shortened, and what the server was asked."""

    def play(asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET "):
            return (response(json.dumps((listing or {}).get(asked.line.split()[1], {})).encode()),)
        return (response(json.dumps(answer).encode()),)

    async with upstream(play) as there:
        backends = {"far": {"kind": kind, "url": there.url, **options}}
        endpoints = {"m": Endpoint(served_entities=(ServedEntity(name="m", backend="far"),))}
        async with running(create_app(Config(backends=backends, endpoints=endpoints))) as client:
            body = {"model": "m", "instructions": "Be brief.", "input": [*TURNS, {"role": "user", "content": "Last."}]}
            body |= {"truncation": "auto", "max_output_tokens": 20}
            for _ in range(times):
                reply = await client.post("/v1/responses", json=body)
    return reply.status_code, reply.json(), there.asked


def sent(asked: list[Asked]) -> list[str]:
    return [each.body.decode() for each in asked if each.line.startswith("POST")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LISTINGS)
async def test_the_server_tells_its_models_length(kind: str) -> None:
    path, listing, answer = LISTINGS[kind]
    status, _, asked = await ask(kind, answer, {path: listing}, times=2)
    assert status == 200
    first, again = sent(asked)
    assert first == again
    assert "user 16: " not in first
    assert "user 17: " in first  # three turns and the last one: 144 tokens and a few, of 180
    assert "Be brief." in first
    assert "Last." in first
    # Asked once: where the health check reads the same path, its answer tells the length.
    assert sum(each.line.split()[1] == path for each in asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("listing", [{}, {"data": "x"}, {"data": [{"id": "n"}, {"id": "o"}]}, {"data": [7]}, []])
async def test_a_server_that_does_not_tell_is_sent_all_of_it(listing: Any) -> None:
    status, _, asked = await ask("openai", CHAT, {"/models": listing})
    assert status == 200
    assert "user 0: " in sent(asked)[0]


@pytest.mark.slow
async def test_a_configured_length_is_not_asked_for() -> None:
    path, listing, answer = LISTINGS["tgi"]
    _, _, asked = await ask("tgi", answer, {path: listing}, context_length=120)
    assert "user 17: " not in sent(asked)[0]
    assert "user 19: " in sent(asked)[0]
    assert not any(each.line.split()[1] == path for each in asked)


@pytest.mark.slow
async def test_ollama_leaves_turns_out_by_itself_unless_that_is_refused() -> None:
    _, _, asked = await ask("ollama", OLLAMA)
    assert "user 0: " in sent(asked)[0]
    assert "truncate" not in json.loads(sent(asked)[0])
    _, _, asked = await ask("ollama", OLLAMA, context_length=200)
    assert "user 16: " not in sent(asked)[0]


def tokenizer_folder(folder: Path) -> Path:
    """A tokenizer of words, and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "answer"), [("triton", TRITON), ("tgi-0.9", [TGI])])
async def test_a_rendered_chat_is_counted_exactly(kind: str, answer: Any, tmp_path: Path) -> None:
    # A turn has 2 * (1 + 2 + 4 * 5) = 46 words, the instructions 3, the last turn 2; the answer gets 20.
    folder = str(tokenizer_folder(tmp_path))
    for room, first in ((46 * 3 + 25, 17), (46 * 3 + 24, 18)):
        status, _, asked = await ask(kind, answer, tokenizer=folder, context_length=room)
        assert status == 200
        assert f"user {first}: " in sent(asked)[0]
        assert f"user {first - 1}: " not in sent(asked)[0]


@pytest.mark.slow
async def test_without_a_length_a_server_that_does_not_say_is_refused_by_name(tmp_path: Path) -> None:
    status, answer, asked = await ask("triton", TRITON, tokenizer=str(tokenizer_folder(tmp_path)))
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
    assert "truncation" in answer["error"]["message"]
    assert not sent(asked)
