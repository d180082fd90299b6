"""The ollama package."""

from __future__ import annotations

import asyncio
from io import BytesIO

import ollama
import pytest
from PIL import Image

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients
QUESTION = [{"role": "user", "content": CAPITAL}]
GREEDY = {"temperature": 0, "num_predict": 60}


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_whole_equals_streamed(server: Server, client: ollama.Client) -> None:
    whole = client.chat(server.model, QUESTION, options=GREEDY)
    assert "Paris" in whole.message.content
    assert (whole.done, whole.done_reason) == (True, "stop")
    *pieces, last = client.chat(server.model, QUESTION, options=GREEDY, stream=True)
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    assert last.eval_duration > 0


def test_generate(server: Server, client: ollama.Client) -> None:
    asked = client.generate(server.model, CAPITAL, options=GREEDY)
    assert "Paris" in asked.response
    said = client.generate(server.model, "The capital of France is", raw=True, options=GREEDY, stream=True)
    assert "Paris" in "".join(piece.response for piece in said)
    assert client.generate(server.model).done_reason == "load"


def test_a_tool_is_called_and_its_result_read(server: Server, client: ollama.Client) -> None:
    def get_weather(city: str) -> str:
        """Get the weather.

        Args:
            city: its name
        """
        return f"20 degrees in {city}"

    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat(server.model, messages, tools=[get_weather], options=GREEDY)
    [call] = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    messages += [answer.message, {"role": "tool", "content": get_weather("Paris"), "tool_name": "get_weather"}]
    answer = client.chat(server.model, messages, tools=[get_weather], options=GREEDY)
    assert answer.message.content


def test_a_format_holds(server: Server, client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
    schema["additionalProperties"] = False
    answer = client.chat(server.model, QUESTION, format=schema, options=GREEDY)
    assert answer.message.content.replace(" ", "") == '{"city":"Paris"}'


def test_models(server: Server, client: ollama.Client) -> None:
    listed = f"{server.model}:latest"
    assert listed in [model.model for model in client.list().models]
    assert [model.model for model in client.ps().models] == [listed]
    assert "completion" in client.show(server.model).capabilities


def test_embeddings_of_a_model_without_them_are_refused(server: Server, client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        client.embed("absent", "Hi")
    assert refused.value.status_code == 404
    assert refused.value.error == "model 'absent' not found"


def test_asynchronous(server: Server) -> None:
    async def ask() -> str:
        client = ollama.AsyncClient(host=server.url)
        return "".join(
            [piece.message.content async for piece in await client.chat(server.model, QUESTION, stream=True)]
        )

    assert asyncio.run(ask())


def test_log_probabilities(server: Server, client: ollama.Client) -> None:
    answer = client.chat(server.model, QUESTION, options=GREEDY, logprobs=True, top_logprobs=2)
    assert "".join(token.token for token in answer.logprobs) == answer.message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in answer.logprobs)


def test_an_image(server: Server, client: ollama.Client) -> None:
    file = BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    question = {"role": "user", "content": "What is in the picture?", "images": [file.getvalue()]}
    assert "red" in client.chat(server.model, [question], options=GREEDY).message.content
