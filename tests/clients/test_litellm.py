"""litellm as a client, through each provider of a protocol that the gateway serves."""

from __future__ import annotations

import litellm
import pytest

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients

MESSAGES = [{"role": "user", "content": CAPITAL}]
PROVIDERS = {
    "openai": ("openai/{model}", "{url}/v1"),
    "huggingface": ("huggingface/{model}", "{url}/v1"),
    "databricks": ("databricks/{model}", "{url}/serving-endpoints"),
    "triton": ("triton/{model}", "{url}/v2/models/{model}/generate"),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole_equals_streamed(server: Server, provider: str) -> None:
    model, base = (part.format(model=server.model, url=server.url) for part in PROVIDERS[provider])
    arguments = {"model": model, "api_base": base, "api_key": "unused", "messages": MESSAGES}
    arguments |= {"temperature": 0, "max_tokens": 40, "num_retries": 0}
    if provider == "triton":  # litellm sends no temperature to Triton unless allowed to
        arguments["allowed_openai_params"] = ["temperature"]
    whole = litellm.completion(**arguments).choices[0].message.content
    if provider != "triton":  # Triton's text_input is a raw prompt: without a chat template the answer means nothing
        assert "Paris" in whole
    assert whole
    stream = litellm.completion(**arguments, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
