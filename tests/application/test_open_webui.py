"""What Open WebUI sends to servers of Ollama's and OpenAI's protocols, over a real socket, and what it reads.

Source: open-webui/open-webui, backend/open_webui: routers/ollama.py, routers/openai.py, routers/tasks.py (titles),
retrieval/utils.py (embeddings), utils/payload.py and utils/response.py (the bodies and what is read).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from schemas.ir import ChatPrompt, Generate
from tests.application.every_client import MODELS, Recording
from tests.gateway.serving import config, listening

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
USER = {
    "X-OpenWebUI-User-Name": "Zo%C3%AB Smith",
    "X-OpenWebUI-User-Id": "5f2c",
    "X-OpenWebUI-User-Email": "zoe@example.com",
    "X-OpenWebUI-User-Role": "user",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OPTIONS = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "stop": ["###"], "num_ctx": 4096, "num_predict": 50}
CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": {"city": "Paris"}}}
SESSION = {
    "chat_id": "c1",
    "session_id": "s1",
    "id": "m1",
    "features": {"web_search": False},
    "variables": {"{{A}}": ""},
}

pytestmark = pytest.mark.slow


@pytest.fixture
async def backend() -> Recording:
    return Recording()


@pytest.fixture
async def webui(backend: Recording) -> AsyncIterator[httpx.AsyncClient]:
    """Its connection, with the key that it sends where it has none."""
    app = create_app(config("echo", "org/echo", "echo:8b", *MODELS.values()), {"s": backend})
    async with listening(app) as port:
        headers = USER | {"Authorization": "Bearer 0p3n-w3bu!", "Content-Type": "application/json"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            yield client


async def find(webui: httpx.AsyncClient, name: str) -> str:
    """The name of a model as `generate_chat_completion` makes it: it must be in the list of models."""
    models = {model["model"]: model for model in (await webui.get("/api/tags")).json()["models"]}
    name = name if ":" in name else f"{name}:latest"
    assert models[name]["name"] == name
    return name


async def chat(webui: httpx.AsyncClient, **body: Any) -> list[Any]:
    """The lines of an answer of `/api/chat`."""
    answer = await webui.post("/api/chat", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def stream(webui: httpx.AsyncClient, **body: Any) -> list[Any]:
    """The chunks of an answer of `/v1/chat/completions`."""
    answer = await webui.post("/v1/chat/completions", content=json.dumps(body | {"stream": True}))
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_the_connection_to_ollama_is_verified_and_its_models_are_listed(webui: httpx.AsyncClient) -> None:
    version = (await webui.get("/api/version")).json()["version"]
    assert len([int(part) for part in re.sub(r"^v|-.*", "", version).split(".")]) == 3
    for name in ("echo", "org/echo", "echo:8b"):
        asked = await find(webui, name)
        shown = await webui.post("/api/show", json={"model": asked})
        assert "completion" in shown.json()["capabilities"]
    running = (await webui.get("/api/ps")).json()["models"]
    expires = {model["name"]: int(datetime.fromisoformat(model["expires_at"]).timestamp()) for model in running}
    assert expires.keys() >= {"echo:latest", "org/echo:latest", "echo:8b"}


async def test_a_chat_over_ollama(webui: httpx.AsyncClient, backend: Recording) -> None:
    body = {
        "model": await find(webui, "echo"),
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is on it?", "images": [PNG]},
        ],
        "options": OPTIONS,
        "stream": True,
        "keep_alive": "5m",
    }
    *parts, last = await chat(webui, **body)
    assert "What is on it?" in "".join(part["message"]["content"] for part in parts)
    assert not any(part["done"] for part in parts)
    assert last["done"] is True
    counts = ("total_duration", "prompt_eval_count", "prompt_eval_duration")
    assert all(isinstance(last[name], int) for name in (*counts, "eval_count", "eval_duration"))
    [asked] = backend.asked
    assert isinstance(asked, Generate)
    assert (asked.model, asked.sampling.temperature, asked.sampling.seed) == ("echo", 0.8, 7)
    assert (asked.stopping.max_new_tokens, asked.stopping.stop) == (50, ("###",))


async def test_thoughts_and_calls_over_ollama(webui: httpx.AsyncClient, backend: Recording) -> None:
    hi = [{"role": "user", "content": "Hi"}]
    lines = await chat(webui, model=await find(webui, "thinker"), messages=hi, think=True, stream=True)
    assert "".join(line["message"].get("thinking") or "" for line in lines) == "Let me think."
    lines = await chat(webui, model=await find(webui, MODELS["tools"]), messages=hi, tools=[TOOL], stream=True)
    [call] = [call for line in lines for call in line["message"].get("tool_calls") or ()]
    assert call["function"]["name"] == "f"
    assert isinstance(call["function"]["arguments"], dict)
    messages = [
        *hi,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "20 degrees", "tool_call_id": "call_1"},
    ]
    lines = await chat(webui, model=await find(webui, "echo"), messages=messages, tools=[TOOL], stream=True)
    assert lines[-1]["done"] is True
    asked = backend.asked[-1]
    assert isinstance(asked, Generate)
    assert isinstance(asked.prompts[0], ChatPrompt)
    assert asked.prompts[0].messages[-1].tool_call_id == "call_1"


async def test_titles_embeddings_and_unloading_over_ollama(webui: httpx.AsyncClient) -> None:
    model = await find(webui, "echo")
    [title] = await chat(
        webui,
        model=model,
        messages=[{"role": "user", "content": "### Task:\nGenerate a title."}],
        stream=False,
        options={"num_predict": 1000},
    )
    assert isinstance(title["message"]["content"], str)
    embedded = await webui.post("/api/embed", json={"input": ["a", "b"], "model": model, "truncate": True})
    assert [len(vector) > 0 for vector in embedded.json()["embeddings"]] == [True, True]
    old = await webui.post("/api/embeddings", content=json.dumps({"model": model, "prompt": "a"}))
    assert old.json()["embedding"]
    unloaded = await webui.post("/api/generate", json={"model": model, "keep_alive": 0, "prompt": ""})
    # A model is everybody's: an administrator puts it to sleep.
    assert (unloaded.status_code, "cannot be unloaded" in unloaded.json()["error"]) == (400, True)


async def test_a_model_that_is_not_there_is_an_error_that_it_shows(webui: httpx.AsyncClient) -> None:
    hi = [{"role": "user", "content": "Hi"}]
    answer = await webui.post("/api/chat", content=json.dumps({"model": "no:latest", "messages": hi}))
    assert (answer.status_code, answer.json()["error"]) == (404, "model 'no:latest' not found")
    answer = await webui.post("/v1/chat/completions", json={"model": "no", "messages": hi, "stream": True})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


async def test_a_chat_over_openai(webui: httpx.AsyncClient, backend: Recording) -> None:
    listed = (await webui.get("/v1/models")).json()["data"]
    assert {model["id"] for model in listed} >= {"echo", "org/echo"}
    content = [
        {"type": "text", "text": "What is on it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    body = {
        "model": "echo",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "max_tokens": 50,
        "stop": ["###"],
    }
    chunks = await stream(webui, **body, **SESSION)
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert "What is on it?" in said
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    answer = await webui.post("/v1/chat/completions", json=body | SESSION | {"stream": True})
    assert set(answer.headers["x-interlingua-ignored"].replace(" ", "").split(",")) == set(SESSION)
    asked = backend.asked[0]
    assert isinstance(asked, Generate)
    assert asked.stopping.max_new_tokens == 50


async def test_calls_over_openai(webui: httpx.AsyncClient, backend: Recording) -> None:
    hi = [{"role": "user", "content": "Hi"}]
    chunks = await stream(webui, model=MODELS["tools"], messages=hi, tools=[TOOL])
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0}
    arguments = json.loads("".join(call["function"].get("arguments") or "" for call in calls))
    assert (calls[0]["function"]["name"], type(arguments)) == ("f", dict)
    made = {"index": 0, "type": "function"} | CALL | {"function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    messages = [
        *hi,
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "20 degrees"},
    ]
    assert (await stream(webui, model="echo", messages=messages, tools=[TOOL]))[-1]["choices"]
    asked = backend.asked[-1]
    assert isinstance(asked, Generate)
    assert isinstance(asked.prompts[0], ChatPrompt)
    assert asked.prompts[0].messages[-2].tool_calls[0].id == "call_1"


async def test_titles_and_embeddings_over_openai(webui: httpx.AsyncClient) -> None:
    title = await webui.post(
        "/v1/chat/completions",
        json={
            "model": "echo",
            "messages": [{"role": "user", "content": "### Task:\nGenerate a title."}],
            "stream": False,
            "max_completion_tokens": 1000,
        },
    )
    assert isinstance(title.json()["choices"][0]["message"]["content"], str)
    embedded = await webui.post("/v1/embeddings", json={"input": ["a", "b"], "model": "echo"})
    assert [isinstance(each["embedding"][0], float) for each in embedded.json()["data"]] == [True, True]
