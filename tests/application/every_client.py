"""Every client protocol over every kind of upstream: what is answered, and what is refused before it is called.

The upstream is a gateway over scripted models, which speaks all protocols: asked directly, it gives the right answer.
Run `python -m tests.application.every_client` to write `docs/every_client.md`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from grpc import aio

from backends.prompts import images_of
from backends.scripted import ScriptedBackend
from backends.scripted.backend import ScriptedOptions
from backends.scripted.script import Script
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, ServerSection
from gateway.config.server import Mount
from schemas.ir import Embed, Embeddings, Events, Generate
from tests.adapters.cohere.server import CohereServer
from tests.gateway.grpc.calls import ask, channel, grpc_port, method, over_grpc
from tests.gateway.serving import config, listening, running

PAGE = Path(__file__).parent.parent.parent / "docs" / "every_client.md"
IMAGE_URL = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
HI = [{"role": "user", "content": "Hello there"}]
TEMPLATE = "{{ messages[-1].content }}"  # the scripted model repeats what it is sent, so nothing may stand around it

COLUMNS = ("whole", "streamed", "tools", "structured output", "images", "reasoning", "logprobs", "embeddings")
MODELS = {"tools": "tool-call", "reasoning": "thinker"}
"""The scripted model that a column needs; all others repeat the text."""
WRITTEN_CALL = "written-call"
"""The scripted model that calls a tool where tools are described in the text: behind a chat template."""

Body = dict[str, Any]


RPC = "gRPC"
"""Stands for the path of a client that speaks gRPC; its body are further inputs."""


class Client(NamedTuple):
    """A client protocol: the path with the model's name, the smallest body, and what each column adds to it."""

    path: str
    body: Body
    adds: dict[str, Body]


def _openai_tool() -> Body:
    return {
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "A function.", "parameters": PARAMETERS}}
        ]
    }


_JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
_CHAT: dict[str, Body] = {
    "tools": _openai_tool(),
    "structured output": {"response_format": _JSON_SCHEMA},
    "images": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": IMAGE_URL}},
                    {"type": "text", "text": "Hello there"},
                ],
            }
        ]
    },
    "reasoning": {},
    "logprobs": {"logprobs": True},
}
CLIENTS = {
    "OpenAI chat": Client("/v1/chat/completions", {"messages": HI}, _CHAT),
    "OpenAI responses": Client(
        "/v1/responses",
        {"input": "Hello there", "store": False},
        {
            "tools": {
                "tools": [{"type": "function", "name": "f", "description": "A function.", "parameters": PARAMETERS}]
            },
            "structured output": {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
            "images": {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_image", "image_url": IMAGE_URL},
                            {"type": "input_text", "text": "Hello there"},
                        ],
                    }
                ]
            },
            "reasoning": {},
        },
    ),
    "OpenAI completions": Client(
        "/v1/completions",
        {"prompt": "Hello there", "max_tokens": 50},
        {"logprobs": {"logprobs": 0}, "structured output": {"response_format": _JSON_SCHEMA}},
    ),
    "Databricks": Client("/serving-endpoints/{model}/invocations", {"messages": HI, "max_tokens": 50}, _CHAT),
    "Anthropic": Client(
        "/v1/messages",
        {"messages": HI, "max_tokens": 50},
        {
            "tools": {"tools": [{"name": "f", "description": "A function.", "input_schema": PARAMETERS}]},
            "structured output": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "images": {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image",
                                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                            },
                            {"type": "text", "text": "Hello there"},
                        ],
                    }
                ]
            },
            "reasoning": {},
        },
    ),
    "Ollama": Client(
        "/api/chat",
        {"messages": HI, "stream": False},
        {
            "tools": _openai_tool(),
            "structured output": {"format": SCHEMA},
            "images": {"messages": [{"role": "user", "content": "Hello there", "images": ["iVBORw0KGgo="]}]},
            "reasoning": {},
            "logprobs": {"logprobs": True},
        },
    ),
    "Gemini": Client(
        "/v1beta/models/{model}:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "Hello there"}]}]},
        {
            "tools": {
                "tools": [
                    {
                        "functionDeclarations": [
                            {"name": "f", "description": "A function.", "parametersJsonSchema": PARAMETERS}
                        ]
                    }
                ]
            },
            "structured output": {
                "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
            },
            "images": {
                "contents": [
                    {
                        "role": "user",
                        "parts": [
                            {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
                            {"text": "Hello there"},
                        ],
                    }
                ]
            },
            "reasoning": {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
            "logprobs": {"generationConfig": {"responseLogprobs": True}},
        },
    ),
    "TGI": Client(
        "/generate",
        {"inputs": "Hello there", "parameters": {"max_new_tokens": 50}},
        {
            "structured output": {"parameters": {"max_new_tokens": 50, "grammar": {"type": "json", "value": SCHEMA}}},
            "logprobs": {"parameters": {"max_new_tokens": 50, "details": True}},
        },
    ),
    "Triton": Client(
        "/v2/models/{model}/generate",
        {"text_input": "Hello there", "parameters": {"max_tokens": 50}},
        {"logprobs": {"return_logprobs": True}},
    ),
    "Triton over gRPC": Client(RPC, {}, {"logprobs": {"return_logprobs": True}}),
}
_INPUT: Body = {"input": "Hello there"}
_EMBEDS = {
    "OpenAI chat": ("/v1/embeddings", _INPUT),
    "Databricks": ("/serving-endpoints/{model}/invocations", _INPUT),
    "Ollama": ("/api/embed", _INPUT),
    "Gemini": ("/v1beta/models/{model}:embedContent", {"content": {"parts": [{"text": "Hello there"}]}}),
}
"""The clients that embed texts: the path and the body."""
_STREAM_PATHS = {
    "/v1beta/models/{model}:generateContent": "/v1beta/models/{model}:streamGenerateContent?alt=sse",
    "/generate": "/generate_stream",
    "/v2/models/{model}/generate": "/v2/models/{model}/generate_stream",
}

UPSTREAMS: dict[str, Body] = {
    "`openai`": {"kind": "openai", "url": "/v1"},
    '`openai`, `raw_text = "as_chat"`': {"kind": "openai", "url": "/v1", "raw_text": "as_chat"},
    "`openai-responses`": {"kind": "openai-responses", "url": "/v1"},
    "`responses`": {"kind": "responses", "url": "/v1"},
    "`databricks`": {"kind": "databricks", "url": ""},
    "`anthropic`": {"kind": "anthropic", "url": ""},
    '`anthropic`, `raw_text = "as_chat"`': {"kind": "anthropic", "url": "", "raw_text": "as_chat"},
    "`gemini`": {"kind": "gemini", "url": "/v1beta"},
    "`ollama`": {"kind": "ollama", "url": ""},
    "`cohere`": {"kind": "cohere", "url": "/cohere"},
    "`tgi`": {"kind": "tgi", "url": ""},
    "`tgi-0.9`": {"kind": "tgi-0.9", "url": "/old"},
    "`tgi-0.9` with a chat template": {"kind": "tgi-0.9", "url": "/old", "chat_template": TEMPLATE},
    "`triton`": {"kind": "triton", "url": ""},
    "`triton` with a chat template": {"kind": "triton", "url": "", "chat_template": TEMPLATE},
    "`triton-grpc`": {"kind": "triton-grpc", "url": RPC},
    "`triton-grpc` with a chat template": {"kind": "triton-grpc", "url": RPC, "chat_template": TEMPLATE},
    "`mindie`": {"kind": "mindie", "url": "/mindie"},
    "`mindie-openai`": {"kind": "mindie-openai", "url": "/mindie/v1"},
    "`mindie-triton`": {"kind": "mindie-triton", "url": "/mindie"},
}
_MOUNTS = (
    Mount("/old", {"tgi": "tgi-0.9"}),
    Mount("/mindie", {"tgi": "mindie", "openai": "mindie-openai", "triton": "mindie-triton"}),
)


class Recording(ScriptedBackend):
    """A scripted backend that keeps the requests that it is asked."""

    def __init__(self) -> None:
        call = '<tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call>'
        scripts = {"thinker": Script(echo=True, reasoning="Let me think."), WRITTEN_CALL: Script(texts=(call,))}
        super().__init__("s", ScriptedOptions(scripts=scripts, context_length=1 << 22))
        self.asked: list[Generate | Embed] = []

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        self.asked.append(request)
        async for events in super().generate(request):
            yield events

    async def embed(self, request: Embed) -> Embeddings:
        self.asked.append(request)
        return await super().embed(request)


class Answer(NamedTuple):
    """What an answer says, whatever its protocol."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]
    logprobs: bool
    vectors: int


HAS: dict[str, Callable[[Answer], object]] = {
    "whole": lambda answer: answer.text.strip(),
    "streamed": lambda answer: answer.text.strip(),
    "tools": lambda answer: answer.calls,
    "structured output": lambda answer: answer.text,
    "images": lambda answer: answer.text,
    "reasoning": lambda answer: answer.reasoning,
    "logprobs": lambda answer: answer.logprobs,
    "embeddings": lambda answer: answer.vectors == 1,
}
"""What an answer must have in which a column was asked for."""

RPC_CLIENTS: dict[httpx.AsyncClient, aio.Channel] = {}
"""The connection for gRPC to the gateway of a client over HTTP."""

Table = dict[tuple[str, str], dict[str, str]]
"""Client and upstream -> column -> "yes", "refused", "without", or "" where the client's protocol cannot ask."""


async def table() -> Table:
    """Ask everything over everything.

    Raises:
        AssertionError: an answer is not the right one, or a refusal came after the upstream was called.
    """
    names = ["echo", WRITTEN_CALL, *MODELS.values()]
    inner, backend = _inner(names)
    async with (
        listening(inner) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as direct,
        grpc_port(inner) as rpc_port,
        channel(rpc_port) as direct_rpc,
        running(
            outer := create_app(_outer(names, f"http://127.0.0.1:{port}", f"http://localhost:{rpc_port}"))
        ) as client,
        over_grpc(outer) as rpc,
    ):
        RPC_CLIENTS.update({direct: direct_rpc, client: rpc})
        return {
            (name, upstream): {
                column: await _cell(direct, client, backend, name, upstream, column) for column in COLUMNS
            }
            for name in CLIENTS
            for upstream in UPSTREAMS
        }


def page(found: Table) -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Every client over every upstream",
        "",
        "Generated by `python -m tests.application.every_client`; a test compares it with what the gateway does.",
        "**yes**: the answer is the one that the upstream gives when it is asked directly. no: refused, before the",
        "upstream is called. without: the answer, but the upstream's protocol has no reasoning or log-probabilities.",
        "Empty: the client's protocol cannot ask for it. With a chat template, images depend on whether it has a place",
        "for them; the one here has none. Tools that it does not render are described in the system message.",
    ]
    for name in CLIENTS:
        lines += ["", f"## {name}", "", f"| upstream | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
        words = {"yes": "**yes**", "refused": "no", "without": "without", "": ""}
        lines += [
            f"| {upstream} | {' | '.join(words[found[name, upstream][column]] for column in COLUMNS)} |"
            for upstream in UPSTREAMS
        ]
    return "\n".join(lines) + "\n"


def _inner(names: list[str]) -> tuple[Any, Recording]:
    backend = Recording()
    made = config(*names, server=ServerSection(mounts=_MOUNTS))
    return CohereServer(create_app(made, {"s": backend}), backend, "/cohere"), backend


def _outer(names: list[str], url: str, rpc_url: str) -> Config:
    backends, endpoints = {}, {}
    for place, options in enumerate(UPSTREAMS.values()):
        for name in names:
            # TGI's protocol names no model: the header does.
            headers = {"x-gateway-model-name": name}
            whole_url = rpc_url if options["url"] == RPC else url + options["url"]
            backends[f"{place}-{name}"] = options | {"url": whole_url, "headers": headers}
            entity = ServedEntity(name="e", backend=f"{place}-{name}", model=name)
            endpoints[f"{place}-{name}"] = Endpoint(served_entities=(entity,))
    return Config(server=ServerSection(), backends=backends, endpoints=endpoints)


async def _cell(
    direct: httpx.AsyncClient, client: httpx.AsyncClient, backend: Recording, name: str, upstream: str, column: str
) -> str:
    model = MODELS.get(column, "echo")
    asked_model = WRITTEN_CALL if column == "tools" and "chat_template" in UPSTREAMS[upstream] else model
    far = f"{list(UPSTREAMS).index(upstream)}-{asked_model}"
    right = await ask_as(direct, name, model, column)
    if right is None:
        return ""
    assert right.status_code == 200, (name, column, right.text)
    assert HAS[column](read(right)), (name, column, right.text)
    backend.asked.clear()
    reply = await ask_as(client, name, far, column)
    assert reply is not None
    where = (name, upstream, column, reply.status_code, reply.text)
    if reply.status_code != 200:
        assert 400 <= reply.status_code < 500 or reply.status_code == 501, where
        assert not backend.asked, where
        return "refused"
    [asked] = backend.asked
    found, wanted = read(reply), read(right)
    if column != "logprobs":  # TGI's tokens have some whether they are asked for or not
        found, wanted = found._replace(logprobs=False), wanted._replace(logprobs=False)
    lost: Body = {"reasoning": {"reasoning": ""}, "logprobs": {"logprobs": False}}.get(column, {})
    if lost and found == wanted._replace(**lost) != wanted:
        return "without"
    assert found == wanted, (where, right.text, found, wanted)
    if column == "images":
        assert isinstance(asked, Generate)
        assert len(images_of(asked.prompts[0])) == 1, where
    return "yes"


async def ask_as(
    client: httpx.AsyncClient, name: str, model: str, column: str, more: Body | None = None
) -> httpx.Response | None:
    """Ask as the client of a name does, with `more` in the body; None if its protocol cannot ask for that."""
    path, body, adds = CLIENTS[name]
    body = body | (more or {})
    if column == "embeddings":
        if name not in _EMBEDS:
            return None
        path, body = _EMBEDS[name]
    elif column == "streamed":
        path, body = _STREAM_PATHS.get(path, path), body | ({} if path in _STREAM_PATHS else {"stream": True})
    elif column != "whole":
        if column not in adds:
            return None
        body = body | adds[column]
    if path == RPC:
        return await _ask_over_grpc(RPC_CLIENTS[client], model, body, stream=column == "streamed")
    named = {} if "{model}" in path else {"model": model}
    headers = {"x-gateway-model-name": model}
    return await client.post(path.replace("{model}", model), json=body | named, headers=headers)


async def _ask_over_grpc(client: aio.Channel, model: str, flags: Body, *, stream: bool) -> httpx.Response:
    """The answer over gRPC, in the form of the generate extension."""
    request = ask(model, "Hello there")
    request.parameters["max_tokens"].int64_param = 50
    for name in flags:
        if name != "stream":
            request.inputs.add(name=name, datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    try:
        if not stream:
            return httpx.Response(200, json=_outputs(await method(client, "ModelInfer")(request)))
        parts = [part async for part in method(client, "ModelStreamInfer")(iter([request]))]
    except aio.AioRpcError as error:
        return httpx.Response(501, json={"error": error.details()})
    if errors := [part.error_message for part in parts if part.error_message]:
        return httpx.Response(501, json={"error": errors})
    lines = "\n".join(json.dumps(_outputs(part.infer_response)) for part in parts)
    return httpx.Response(200, text=lines, headers={"content-type": "application/x-ndjson"})


def _outputs(response: Any) -> Body:
    """The texts of an answer; log-probabilities are a JSON text, which is empty without them."""
    raws = zip(response.outputs, response.raw_output_contents, strict=True)
    texts = {output.name: raw[4:].decode() for output, raw in raws}
    return texts | {name: json.loads(text) for name, text in texts.items() if name == "logprobs"}


def read(reply: httpx.Response) -> Answer:
    """What an answer says: the strings and lists at the places of all protocols, streamed or not."""
    streamed = reply.headers["content-type"].startswith("text/event-stream")
    if reply.headers["content-type"] == "application/x-ndjson":
        return _read_all([json.loads(line) for line in reply.text.splitlines()])
    if not streamed:
        return _read_all([reply.json()])
    data = [line[5:].strip() for line in reply.text.splitlines() if line.startswith("data:")]
    return _read_all([json.loads(each) for each in data if each != "[DONE]"])


def _read_all(parts: list[Any]) -> Answer:
    text, reasoning, calls, logprobs, vectors = "", "", [], False, 0
    for part in parts:
        if part.get("type", "").startswith("response."):  # the deltas of Responses; other events repeat the whole
            text += part["delta"] if part["type"] == "response.output_text.delta" else ""
            reasoning += part["delta"] if part["type"].startswith("response.reasoning") and "delta" in part else ""
            continue
        for place, value in _places(part):
            match place:
                case "text" | "content" | "response" | "text_output" | "generated_text" if isinstance(value, str):
                    text = value if place == "generated_text" else text + value
                case "thinking" | "reasoning_content" if isinstance(value, str):
                    reasoning += value
                case "logprob" | "logprobs" | "token_logprobs" | "logprobsResult":
                    logprobs = logprobs or bool(value)
                case "embedding" if isinstance(value, list | dict):  # Gemini's is a dictionary
                    vectors += 1
                case "embeddings":
                    vectors += len(value)
                case "arguments":
                    calls.append(("f", json.loads(value) if isinstance(value, str) else value))
                case "input" | "args" if isinstance(value, dict):
                    calls.append(("f", value))
    return Answer(text, reasoning, tuple(calls), logprobs, vectors)


def _places(value: Any) -> Iterator[tuple[str, Any]]:
    """Each key and value in a JSON value, in order. TGI's tokens repeat the text, and what was asked is no answer."""
    if isinstance(value, list):
        for item in value:
            yield from _places(item)
    elif isinstance(value, dict):
        if value.get("thought") is True:  # a part of Gemini's
            yield "thinking", value["text"]
            return
        if value.get("type") == "reasoning":  # an item of Responses
            yield from (("thinking", part["text"]) for part in value["content"])
            return
        for key, inner in value.items():
            yield key, inner
            if key in ("details", "token", "logprobs", "output_logprobs", "tools", "text"):
                yield from (each for each in _places(inner) if each[0] == "logprob")
            else:
                yield from _places(inner)


if __name__ == "__main__":
    PAGE.write_text(page(asyncio.run(table())))
