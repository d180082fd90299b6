"""Real models through the clients: SmolLM2-135M-Instruct answers alike in every protocol, all-MiniLM-L6-v2 embeds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import requests
import text_generation

from tests.clients.conftest import CAPITAL, LIMIT, _gateway, serving
from tests.missing_tools import missing

pytestmark = pytest.mark.clients

CONFIG = """
[backends.chat]
kind = "native"
model = "smollm2"
context_length = 512
[backends.vectors]
kind = "native"
model = "minilm"
[endpoints.smollm2]
served_entities = [{ name = "smollm2-1", backend = "chat" }]
[endpoints.minilm]
served_entities = [{ name = "minilm-1", backend = "vectors" }]
"""
BEGINNING = "The capital of France is"
MESSAGES = [{"role": "user", "content": CAPITAL}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway of both models; skipped where they were not fetched."""
    listed = subprocess.run([_gateway(), "models", "list"], capture_output=True, text=True, check=True).stdout
    if "not fetched" in listed:
        pytest.skip(missing("the models smollm2 and minilm were not fetched: make models"))
    folder = tmp_path_factory.mktemp("real")
    (folder / "gateway.toml").write_text(CONFIG)
    with serving(folder / "log", "--config", str(folder / "gateway.toml")) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=LIMIT)


@pytest.fixture(scope="module")
def answer(client: openai.OpenAI) -> str:
    """What the model says greedily, in OpenAI's protocol."""
    whole = client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=0, max_tokens=24)
    assert "Paris" in (whole.choices[0].message.content or "")
    return whole.choices[0].message.content or ""


def test_openai_streams_the_same_text_with_its_logprobs(client: openai.OpenAI, answer: str) -> None:
    chunks = client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        temperature=0,
        max_tokens=24,
        stream=True,
        logprobs=True,
        top_logprobs=3,
    )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == answer
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or ()]
    assert "".join(token.token for token in tokens).startswith(answer)
    for token in tokens:  # greedy: the first of the best is the one that was chosen
        assert token.top_logprobs[0].token == token.token
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3


def test_a_json_schema_is_kept(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    asked = [{"role": "user", "content": "Describe a person."}]
    made = client.chat.completions.create(
        model="smollm2", messages=asked, temperature=0, max_tokens=64, response_format=form
    )
    assert made.choices[0].finish_reason == "stop"
    person = json.loads(made.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_a_tool_is_called_whole_and_streamed(client: openai.OpenAI, url: str) -> None:
    """The file's chat template has no tools: they are written into the system message."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    asked: dict[str, Any] = {"model": "smollm2", "messages": WEATHER, "tools": [tool], "tool_choice": "required"}
    asked |= {"temperature": 0, "max_tokens": 64, "parallel_tool_calls": False}
    (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls or ()
    called = json.loads(call.function.arguments)
    assert (call.function.name, set(called)) == ("get_weather", {"city"})
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True) if chunk.choices]
    parts = [part.function for delta in deltas for part in delta.tool_calls or ()]
    assert "".join(part.name or "" for part in parts) == "get_weather"
    assert json.loads("".join(part.arguments or "" for part in parts)) == called
    theirs = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, timeout=LIMIT)
    message = theirs.messages.create(
        model="smollm2",
        max_tokens=64,
        messages=WEATHER,
        tools=[{"name": "get_weather", "input_schema": CITY}],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        extra_body={"temperature": 0},
    )
    (block,) = (block for block in message.content if block.type == "tool_use")
    assert (block.name, set(block.input)) == ("get_weather", {"city"})


def test_embeddings_of_both_models(client: openai.OpenAI) -> None:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "minilm.json").read_text())
    made = client.embeddings.create(model="minilm", input=golden["sentences"], encoding_format="float")
    for found, vector in zip(made.data, golden["vectors"], strict=True):
        assert max(abs(a - b) for a, b in zip(found.embedding, vector, strict=True)) < 1e-5
    (own,) = client.embeddings.create(model="smollm2", input="bread", encoding_format="float").data
    assert len(own.embedding) == 576


def test_anthropic_says_the_same(url: str, answer: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, timeout=LIMIT)
    with client.messages.stream(
        model="smollm2", max_tokens=24, messages=MESSAGES, extra_body={"temperature": 0}
    ) as stream:
        assert "".join(stream.text_stream) == answer


def test_databricks_and_triton_say_the_same(url: str, answer: str) -> None:
    chat = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    made = requests.post(f"{url}/serving-endpoints/smollm2/invocations", json=chat, timeout=LIMIT).json()
    assert made["choices"][0]["message"]["content"] == answer
    text = {"text_input": BEGINNING, "parameters": {"max_tokens": 8, "temperature": 0}}
    made = requests.post(f"{url}/v2/models/smollm2/generate", json=text, timeout=LIMIT).json()
    assert made["text_output"]


def test_tgi_streams_the_whole_text(url: str) -> None:
    client = text_generation.Client(url, timeout=LIMIT)
    whole = client.generate(BEGINNING, max_new_tokens=12)
    frames = list(client.generate_stream(BEGINNING, max_new_tokens=12))
    assert frames[-1].generated_text == whole.generated_text
    assert whole.generated_text
