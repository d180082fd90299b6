"""huggingface_hub's InferenceClient, on its text-generation and chat calls."""

from __future__ import annotations

import json
import re

import pytest
from huggingface_hub import InferenceClient

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(server: Server) -> InferenceClient:
    return InferenceClient(server.url)


def test_text_generation_whole_equals_streamed(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=12, details=True, return_full_text=False)
    assert whole.generated_text
    assert whole.details.generated_tokens == len(whole.details.tokens)
    assert whole.details.finish_reason in ("length", "eos_token")

    frames = list(client.text_generation(PROMPT, max_new_tokens=12, details=True, stream=True, return_full_text=False))
    assert "".join(f.token.text for f in frames if not f.token.special) == whole.generated_text
    assert frames[-1].generated_text == whole.generated_text
    assert frames[-1].details.generated_tokens == whole.details.generated_tokens
    assert [frame.token.id for frame in frames] == [token.id for token in whole.details.tokens]


def test_text_generation_plain(client: InferenceClient) -> None:
    """Three tokens: in a stream without details this client includes the end token, as TGI sends it."""
    whole = client.text_generation(PROMPT, max_new_tokens=3, return_full_text=False)
    assert whole == "".join(client.text_generation(PROMPT, max_new_tokens=3, stream=True, return_full_text=False))
    assert client.text_generation(PROMPT, max_new_tokens=3) == whole
    assert client.text_generation(PROMPT, max_new_tokens=3, return_full_text=True) == PROMPT + whole


def test_sampling_parameters(client: InferenceClient) -> None:
    arguments = {"max_new_tokens": 16, "do_sample": True, "seed": 3, "temperature": 0.9, "top_k": 20, "top_p": 0.9}
    arguments |= {"typical_p": 0.9, "repetition_penalty": 1.1, "stop": ["."], "truncate": 5}
    assert client.text_generation(PROMPT, **arguments) == client.text_generation(PROMPT, **arguments)


def test_chat_whole_equals_streamed(server: Server) -> None:
    client = InferenceClient(base_url=f"{server.url}/v1", api_key="unused")
    messages = [{"role": "user", "content": CAPITAL}]
    whole = client.chat_completion(messages, model=server.model, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    stream = client.chat_completion(messages, model=server.model, temperature=0, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == whole.choices[0].message.content


def test_grammars(client: InferenceClient) -> None:
    schema = {"properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}
    schema |= {"type": "object", "additionalProperties": False}
    text = client.text_generation(
        PROMPT, max_new_tokens=40, return_full_text=False, grammar={"type": "json", "value": schema}
    )
    assert json.loads(text)["n"] in range(1, 10)
    text = client.text_generation(
        PROMPT, max_new_tokens=40, return_full_text=False, grammar={"type": "regex", "value": "[a-c]{5}"}
    )
    assert re.fullmatch("[a-c]{5}", text)


def test_chat_without_a_model(server: Server, client: InferenceClient) -> None:
    """The client must send some name, and sends "dummy" or "tgi"."""
    answer = client.chat_completion([{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=40)
    assert answer.model == server.model
    assert "Paris" in answer.choices[0].message.content
