"""Literal bytes, file by file. `document-*` are MindIE's page's own, `recorded-*` the shapes recorded from OpenAI."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import BackendFailed, Incomplete
from schemas.ir import Delta, Embeddings, Events, Finished, FinishReason, Generate, Started, Token, Usage
from tests.adapters.openai.scenes import (
    CALLS,
    ECHOED,
    GOLDEN,
    REASONING,
    REFUSED,
    ROUTES,
    SCORED,
    TWO,
    USAGE,
    ZOE,
    call,
    chat,
    completion,
    embed,
    server,
)

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]
STREAM = {"stream": True}
CONTINUOUS: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

Ask = Callable[..., Generate]
SCENES: dict[str, tuple[str, Ask, dict[str, Any], Events]] = {
    "openai/chat.json": ("openai", chat, {}, ZOE),
    "openai/chat.sse": ("openai", chat, STREAM, ZOE),
    "openai/chat-usage.sse": ("openai", chat, USAGE, ZOE),
    "openai/chat-usage-continuous.sse": ("openai", chat, CONTINUOUS, ZOE),
    "openai/chat-logprobs.json": ("openai", chat, {"logprobs": True, "top_logprobs": 2}, SCORED),
    "openai/chat-logprobs.sse": ("openai", chat, STREAM | {"logprobs": True, "top_logprobs": 1}, SCORED),
    "openai/chat-n.json": ("openai", chat, {"n": 2}, TWO),
    "openai/chat-n.sse": ("openai", chat, STREAM | {"n": 2}, TWO),
    "openai/chat-tools.json": ("openai", chat, {"tools": TOOLS}, CALLS),
    "openai/chat-tools.sse": ("openai", chat, STREAM | {"tools": TOOLS}, CALLS),
    "openai/chat-reasoning.json": ("openai", chat, {}, REASONING),
    "openai/chat-reasoning.sse": ("openai", chat, CONTINUOUS, REASONING),
    "openai/chat-refusal.json": ("openai", chat, {}, REFUSED),
    "openai/chat-refusal.sse": ("openai", chat, STREAM, REFUSED),
    "openai/completion.json": ("openai", completion, {}, ZOE),
    "openai/completion.sse": ("openai", completion, STREAM, ZOE),
    "openai/completion-usage.sse": ("openai", completion, USAGE, ZOE),
    "openai/completion-echo.json": ("openai", completion, {"echo": True}, ZOE),
    "openai/completion-echo.sse": ("openai", completion, STREAM | {"echo": True}, ZOE),
    "openai/completion-logprobs.json": ("openai", completion, {"logprobs": 1}, SCORED),
    "openai/completion-logprobs.sse": ("openai", completion, STREAM | {"logprobs": 1}, SCORED),
    "openai/completion-echo-logprobs.json": ("openai", completion, {"echo": True, "logprobs": 1}, ECHOED),
    "openai/completion-echo-logprobs.sse": ("openai", completion, STREAM | {"echo": True, "logprobs": 1}, ECHOED),
    "openai/completion-prompts.json": ("openai", completion, {"prompt": ["One", "Two"], "echo": True}, TWO),
    "openai/completion-prompts.sse": ("openai", completion, STREAM | {"prompt": ["One", "Two"], "echo": True}, TWO),
    "mindie-openai/chat.json": ("mindie-openai", chat, {}, ZOE),
    "mindie-openai/chat.sse": ("mindie-openai", chat, STREAM, ZOE),
}


def render(file: str) -> bytes:
    name, ask, fields, events = SCENES[file]
    request = ask(name, **fields)
    if request.stream:
        return server(name).encoder(request).feed(events)
    return server(name).encode(request, fold(events)).body


@pytest.mark.parametrize("file", SCENES)
def test_answers(file: str) -> None:
    assert render(file) == (GOLDEN / file).read_bytes()


@pytest.mark.parametrize("file", [file for file in SCENES if file.endswith(".sse")])
def test_streams_one_event_at_a_time(file: str) -> None:
    name, ask, fields, events = SCENES[file]
    encoder = server(name).encoder(ask(name, **fields))
    assert b"".join(encoder.feed((event,)) for event in events) == (GOLDEN / file).read_bytes()
    assert encoder.media_type == "text/event-stream"


@pytest.mark.parametrize("name", ["openai", "mindie-openai"])
@pytest.mark.parametrize("ask", [chat, completion])
def test_failed_streams_have_no_terminator(name: str, ask: Ask) -> None:
    encoder = server(name).encoder(ask(name, stream=True))
    data = encoder.feed(ZOE[:2]) + encoder.fail(BackendFailed("The backend failed."))
    assert data == (GOLDEN / name / f"{ask.__name__}-failed.sse").read_bytes()
    assert b"[DONE]" not in data
    assert json.loads(data.split(b"data: ")[-1])["error"]


def test_a_failure_in_place_of_the_usage_chunk() -> None:
    encoder = server(usage_on_every_chunk=True).encoder(chat(stream=True))
    data = encoder.feed(ZOE[:-1]) + encoder.fail(Incomplete("It stopped."))
    assert b'"finish_reason":"stop"' not in data
    assert data.endswith(b'"code":"incomplete_generation"}}\n\n')


def test_the_last_chunk_of_a_choice_counts_all_of_its_tokens() -> None:
    """Those of tags and names of calls are in no delta."""
    said: Events = (
        Started("m", 5),
        Delta(text="Hm", tokens=(Token(1, "Hm"),), choice=1),
        *CALLS[1:-2],
        Finished(reason=FinishReason.TOOL_CALL, generated=23),
        Finished(text=".", reason=FinishReason.EOS, choice=1),
        Usage(5, 25),
    )
    data = server().encoder(chat(tools=TOOLS, n=2, **CONTINUOUS)).feed(said)
    *chunks, last = [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-2]]
    counts = {
        chunk["choices"][0]["finish_reason"]: chunk["usage"]["completion_tokens"]
        for chunk in chunks
        if chunk["choices"]
    }
    assert (counts["tool_calls"], counts["stop"], last["usage"]["completion_tokens"]) == (24, 25, 25)


def test_models() -> None:
    assert server().describe(ROUTES["models"], call(), b"").body == (GOLDEN / "openai/models.json").read_bytes()
    one = server().describe(ROUTES["model"], call(id="org/other"), b"")
    assert one.body == b'{"id":"org/other","object":"model","created":0,"owned_by":"interlingua"}'


def test_the_version() -> None:
    assert server().describe(ROUTES["version"], call(), b"").body == b'{"version":"0"}'


def test_embeddings() -> None:
    answer = Embeddings("e5", ((0.5, -1.0), (0.1, 1e-3)), Usage(3, 0))
    floats = server().encode_embeddings(embed(input=["a", "b"]), answer).body
    assert floats == (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1.0]},'
        b'{"object":"embedding","index":1,"embedding":[0.1,0.001]}],'
        b'"model":"e5","usage":{"prompt_tokens":3,"total_tokens":3}}'
    )
    packed = server().encode_embeddings(embed(encoding_format="base64"), answer).body
    assert b'"embedding":"AAAAPwAAgL8="' in packed  # 0x3f000000, 0xbf800000, little-endian


def document(number: int) -> str:
    return (GOLDEN / f"mindie-openai/document-{number}.txt").read_text()


def test_the_whole_answer_of_mindies_page() -> None:
    answer = fold(
        (
            Started("gpt-3.5-turbo-0613", 9),
            Finished(text="\n\nHello there, how may I assist you today?", reason=FinishReason.EOS),
            Usage(9, 12),
        )
    )
    codec = server("mindie-openai")
    request = codec.decode(ROUTES["chat"], document(1).encode(), call("123"))
    assert isinstance(request, Generate)
    compact = json.dumps(json.loads(document(2)), separators=(",", ":"))
    assert codec.encode(request, answer).body.decode().replace("1700000000", "1677652288") == compact


def test_the_stream_of_mindies_page() -> None:
    pieces = re.findall(r'"content":"([^"]*)"', document(3))
    assert "".join(pieces) == "am a Frenchman living in the UK. I am a keen photographer and I have been"
    deltas = [Delta(text=piece, tokens=(Token(1, piece),)) for piece in pieces]
    events = (Started("baichuan", 5), *deltas, Finished(reason=FinishReason.LENGTH), Usage(5, 18))
    codec = server("mindie-openai")
    request = codec.decode(ROUTES["chat"], document(4).encode(), call("1"))
    assert isinstance(request, Generate)
    assert codec.encoder(request).feed(events).decode().replace("1700000000", "1707275960") == document(3)
