"""A question about an image in every form of every protocol: bodies as clients write them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import httpx
from PIL import Image

from tests.equality import WAYS, Ask, Way

QUESTION = "What is in the picture?"
RAW = "<|user|>{}What is in the picture?<|end|><|assistant|>"
COLOURS = {"red": (220, 30, 30), "blue": (35, 70, 220)}


def square(colour: str) -> str:
    """Base64 of a PNG: a square of that color on white."""
    image, out = Image.new("RGB", (200, 200), "white"), BytesIO()
    image.paste(COLOURS[colour], (50, 50, 150, 150))
    image.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def uri(data: str) -> str:
    return f"data:image/png;base64,{data}"


def markdown(data: str) -> dict[str, Any]:
    return {"inputs": RAW.format(f"![]({uri(data)})"), "parameters": {"max_new_tokens": 20, "details": True}}


def parts(url: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    def body(data: str) -> dict[str, Any]:
        content = [{"type": "image_url", "image_url": url(data)}, {"type": "text", "text": QUESTION}]
        return {"inputs": content, "parameters": {"max_new_tokens": 20, "details": True}}

    return body


def messages(url: Callable[[str], Any], **more: Any) -> Callable[[str], dict[str, Any]]:
    def body(data: str) -> dict[str, Any]:
        content = [{"type": "image_url", "image_url": url(data)}, {"type": "text", "text": QUESTION}]
        return {"messages": [{"role": "user", "content": content}], "max_tokens": 20, "temperature": 0, **more}

    return body


def blocks(data: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 20, "temperature": 0}


def tensors(data: str) -> dict[str, Any]:
    outputs = {"return_finish_reason": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
    parameters = {"max_tokens": 20, "temperature": 0}
    return {"text_input": RAW.format("<image>"), "image": [data], "parameters": parameters, **outputs}


def list_input(data: str) -> dict[str, Any]:
    content = [{"type": "text", "text": RAW.format("<image>")}, {"type": "image_url", "image_url": data}]
    return {"id": "a", "text_input": content, "parameters": {"max_new_tokens": 20, "details": True}}


def with_url(data: str) -> dict[str, str]:
    return {"url": uri(data)}


def in_detail(data: str) -> dict[str, str]:
    return {"url": uri(data), "detail": "high"}


def beside_text(data: str) -> dict[str, Any]:
    turn = {"role": "user", "content": QUESTION, "images": [data]}
    return {"messages": [turn], "options": {"temperature": 0, "num_predict": 20}}


def inline_data(data: str) -> dict[str, Any]:
    kind = "jpeg" if data.startswith("/9j/") else "png"
    parts = [{"inlineData": {"mimeType": f"image/{kind}", "data": data}}, {"text": QUESTION}]
    return {"contents": [{"parts": parts}], "generationConfig": {"temperature": 0, "maxOutputTokens": 20}}


USAGE = {"stream_options": {"include_usage": True}}
FORMS: dict[str, tuple[str, bool, Callable[[str], dict[str, Any]]]] = {
    "tgi": ("tgi", False, markdown),
    "tgi-0.9": ("tgi-0.9", False, markdown),
    "mindie": ("mindie", True, parts(uri)),
    "mindie, bare base64": ("mindie", True, parts(str)),
    "openai": ("openai", True, messages(with_url)),
    "openai, detail": ("openai", True, messages(in_detail)),
    "openai, plain string": ("openai", True, messages(uri)),
    "mindie-openai": ("mindie-openai", True, messages(with_url, temperature=1e-6, seed=1)),
    "databricks": ("databricks", True, messages(with_url)),
    "anthropic": ("anthropic", True, blocks),
    "gemini": ("gemini", True, inline_data),
    "ollama": ("ollama", True, beside_text),
    "triton": ("triton", False, tensors),
    "mindie-triton": ("mindie-triton", False, list_input),
}


def way(form: str, data: str) -> Way:
    dialect, chat, body = FORMS[form]
    (found,) = [way for way in WAYS if (way.dialect, way.chat) == (dialect, chat)]

    def asked(_: Ask, stream: bool) -> dict[str, Any]:
        sent = body(data)
        return (
            sent
            | ({"stream": stream} if "messages" in sent else {})
            | (USAGE if stream and dialect == "openai" else {})
        )

    return replace(found, body=asked)


ASK = Ask(QUESTION, 20)


PREFIXES = {"mindie": "/mindie", "mindie-openai": "/mindie", "mindie-triton": "/mindie", "tgi-0.9": "/old"}
"""Where a gateway like `recorded.SERVER` speaks a dialect that is not its default."""


async def post(client: httpx.AsyncClient, form: str, data: str, *, stream: bool, model: str) -> httpx.Response:
    """Ask a gateway about an image; `data` is its base64."""
    asking = way(form, data)
    path = (asking.stream_path or asking.path) if stream else asking.path
    named = {"model": model} if asking.protocol in ("openai", "anthropic", "ollama") else {}
    url = PREFIXES.get(asking.dialect, "") + path.replace(":path}", "}").format(name=model, model=model)
    query = {"alt": "sse"} if asking.protocol == "gemini" and stream else {}
    return await client.post(url, json=named | asking.body(ASK, stream), params=query)
