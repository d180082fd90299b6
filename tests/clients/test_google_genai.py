"""The google-genai SDK."""

from __future__ import annotations

import asyncio
from io import BytesIO

import pytest
from google import genai
from google.genai import errors, types
from PIL import Image

from tests.clients.conftest import ATTEMPTS, CAPITAL, Server

pytestmark = pytest.mark.clients
GREEDY = types.GenerateContentConfig(temperature=0, max_output_tokens=60)


@pytest.fixture
def client(server: Server) -> genai.Client:
    return genai.Client(api_key="unused", http_options=types.HttpOptions(base_url=server.url))


def test_whole_equals_streamed(server: Server, client: genai.Client) -> None:
    whole = client.models.generate_content(model=server.model, contents=CAPITAL, config=GREEDY)
    assert "Paris" in whole.text
    assert whole.candidates[0].finish_reason == types.FinishReason.STOP
    for _ in range(ATTEMPTS):
        pieces = list(client.models.generate_content_stream(model=server.model, contents=CAPITAL, config=GREEDY))
        assert "".join(piece.text or "" for piece in pieces) == whole.text
        assert pieces[-1].usage_metadata == whole.usage_metadata
        if len(pieces) > 2:
            return
    pytest.fail(f"each of {ATTEMPTS} answers came in two pieces at most")


def test_a_chat_keeps_its_history(server: Server, client: genai.Client) -> None:
    chat = client.chats.create(model=server.model, config=GREEDY)
    assert "Paris" in chat.send_message(CAPITAL).text
    assert "".join(piece.text or "" for piece in chat.send_message_stream("And of Italy?"))


def test_functions_are_called_by_the_sdk(server: Server, client: genai.Client) -> None:
    asked = []

    def get_weather(city: str) -> str:
        """Get the weather.

        Args:
            city: its name
        """
        asked.append(city)
        return f"20 degrees in {city}"

    config = GREEDY.model_copy(update={"tools": [get_weather]})
    answer = client.models.generate_content(model=server.model, contents="What is the weather in Paris?", config=config)
    assert asked == ["Paris"]
    assert answer.text


def test_a_schema_holds(server: Server, client: genai.Client) -> None:
    schema = {"type": "OBJECT", "properties": {"city": {"type": "STRING", "enum": ["Paris"]}}, "required": ["city"]}
    config = GREEDY.model_copy(update={"response_mime_type": "application/json", "response_schema": schema})
    answer = client.models.generate_content(model=server.model, contents=CAPITAL, config=config)
    assert answer.parsed["city"] == "Paris"


def test_an_image(server: Server, client: genai.Client) -> None:
    file = BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    parts = [types.Part.from_bytes(data=file.getvalue(), mime_type="image/png"), "What is in the picture?"]
    assert "red" in client.models.generate_content(model=server.model, contents=parts, config=GREEDY).text


def test_tokens_and_models(server: Server, client: genai.Client) -> None:
    counted = client.models.count_tokens(model=server.model, contents=CAPITAL).total_tokens
    answer = client.models.generate_content(model=server.model, contents=CAPITAL, config=GREEDY)
    assert counted == answer.usage_metadata.prompt_token_count
    assert f"models/{server.model}" in [model.name for model in client.models.list()]
    assert "generateContent" in client.models.get(model=server.model).supported_actions


def test_errors(server: Server, client: genai.Client) -> None:
    with pytest.raises(errors.ClientError) as refused:
        client.models.generate_content(model="absent", contents="Hi")
    assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")
    with pytest.raises(errors.ClientError) as wrong:
        client.models.generate_content(model=server.model, contents="Hi", config={"temperature": 9})
    assert "generationConfig.temperature" in wrong.value.message


def test_asynchronous(server: Server, client: genai.Client) -> None:
    async def ask() -> str:
        stream = await client.aio.models.generate_content_stream(model=server.model, contents=CAPITAL, config=GREEDY)
        return "".join([piece.text or "" async for piece in stream])

    assert "Paris" in asyncio.run(ask())
