"""Requests and answers of remotes, for the tests of the client codec."""

from __future__ import annotations

import json
from typing import Any

from adapters.base import Reply
from schemas.ir import (
    ChatPrompt,
    Generate,
    Message,
    Sampling,
    TextPrompt,
)
from tests.adapters.openai.scenes import client, events_of, reply


def asked(text: str = "Once", **fields: Any) -> Generate:
    """A request as TGI's clients make it: a raw prompt, greedy by default."""
    return Generate(id="r1", model="up", prompts=(TextPrompt(text),), **fields)


def talk(*messages: Message, **fields: Any) -> Generate:
    fields = {"sampling": Sampling(do_sample=True)} | fields
    prompt = ChatPrompt(messages or (Message("user", "Hello"),))
    return Generate(id="r1", model="up", prompts=(prompt,), raw_prompt=False, **fields)


def choice(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"} | fields


def answer(*choices: dict[str, Any], **fields: Any) -> Reply:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return reply({"id": "x", "model": "m", "choices": choices or (choice(),), "usage": usage} | fields)


def scored(token: str, data: bytes | None = None, logprob: float = -1.0) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": None if data is None else list(data), "top_logprobs": []}


def frames(*chunks: Any, done: bool = True) -> bytes:
    data = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return data + b"data: [DONE]\n\n" if done else data


def chunk(finish: str | None = None, index: int = 0, usage: Any = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], "usage": usage}


COUNTED = {"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
STREAM = talk(stream=True)


def read(*chunks: Any, done: bool = True, request: Generate = STREAM) -> Any:
    return events_of(client(), request, frames(*chunks, done=done))
