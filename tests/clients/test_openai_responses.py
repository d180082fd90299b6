"""The Responses API with the official SDK: every answer and event is validated strictly against its types.

Two workers, so that what one has stored the other is asked for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import ResponseStreamEvent

from tests.adapters.openai.remote.responses.scenes import EVERYTHING, response, sse, stream
from tests.clients.conftest import CAPITAL, Server, serving

pytestmark = pytest.mark.clients

EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
SCHEMA |= {"additionalProperties": False}
TOOL = {"type": "function", "name": "get_weather", "strict": True, "parameters": SCHEMA, "description": "Weather"}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("pair") / "log", "--workers", "2") as url:
        yield Server(url, "interlingua")


@pytest.fixture
def client(pair: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{pair.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True)


def test_a_conversation_continues(client: openai.OpenAI, pair: Server) -> None:
    first = client.responses.create(model=pair.model, input=CAPITAL, temperature=0)
    assert first.store
    second = client.responses.create(
        model=pair.model, input="Thank you!", previous_response_id=first.id, temperature=0, max_output_tokens=20
    )
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.total_tokens
    counted = client.responses.input_tokens.count(model=pair.model, input="Thank you!", previous_response_id=first.id)
    assert counted.input_tokens == second.usage.input_tokens
    whole = [
        {"role": "user", "content": CAPITAL},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Thank you!"},
    ]
    same = client.responses.create(model=pair.model, input=whole, temperature=0, max_output_tokens=20, store=False)
    assert (same.output_text, same.usage.input_tokens) == (second.output_text, second.usage.input_tokens)
    for _ in range(8):  # any worker may answer
        assert client.responses.retrieve(second.id) == second
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items] == [CAPITAL, first.output_text, "Thank you!"]
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(second.id)
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.BadRequestError) as lost:
        client.responses.create(model=pair.model, input="Hi", previous_response_id=second.id)
    assert (lost.value.code, lost.value.param) == ("previous_response_not_found", "previous_response_id")
    assert client.responses.retrieve(first.id) == first


QUESTIONS: dict[str, dict[str, Any]] = {
    "text": {"input": CAPITAL, **LOGPROBS},
    "cut": {"input": "Tell me a story.", "max_output_tokens": 5, **LOGPROBS},
    "schema": {
        "input": CAPITAL,
        "text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}},
    },
    "tools": {"input": "What is the weather in Paris?", "tools": [TOOL], "tool_choice": "required"},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_events_are_typed_and_fold_to_the_whole(client: openai.OpenAI, pair: Server, name: str) -> None:
    asked: Any = {"model": pair.model, "temperature": 0} | QUESTIONS[name]
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    for event in events:
        EVENT.validate_python(event.to_dict(), strict=False)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert (final.output_text, final.status, final.usage.output_tokens) == (
        whole.output_text,
        whole.status,
        whole.usage.output_tokens,
    )
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    if name == "tools":
        (call,) = (item for item in final.output if item.type == "function_call")
        assert (text, arguments) == ("", call.arguments)
        assert json.loads(arguments)["city"] in ("Paris", "Rome")
        return
    assert text == final.output_text
    if name == "schema":
        assert json.loads(text)["city"] in ("Paris", "Rome")
    if "include" in asked:
        scores = whole.output[0].content[0].logprobs
        entries = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
        assert [entry.token for entry in entries] == [entry.token for entry in scores]
        assert "".join(entry.token for entry in scores) == text
        assert all(len(entry.top_logprobs) == 2 for entry in scores)
    assert client.responses.retrieve(final.id) == final


def test_a_tool_result_needs_only_the_call_id(client: openai.OpenAI, pair: Server) -> None:
    asked: Any = {"model": pair.model, "tools": [TOOL], "temperature": 0}
    first = client.responses.create(**asked, input="What is the weather in Paris?", tool_choice="required")
    (call,) = (item for item in first.output if item.type == "function_call")
    answer = client.responses.create(
        **asked,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
    )
    assert answer.output_text
    kinds = [item.type for item in client.responses.input_items.list(answer.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]


def test_under_databricks_paths(pair: Server) -> None:
    """At the path of Databricks' OpenAI client."""
    client = openai.OpenAI(
        base_url=f"{pair.url}/serving-endpoints", api_key="unused", max_retries=0, _strict_response_validation=True
    )
    first = client.responses.create(model=pair.model, input=CAPITAL, temperature=0)
    assert "Paris" in first.output_text
    streamed = list(client.responses.create(model=pair.model, input=CAPITAL, temperature=0, stream=True))
    assert streamed[-1].response.output_text == first.output_text
    assert client.responses.retrieve(first.id) == first
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="nobody", input="Hi")


class _Scripted(BaseHTTPRequestHandler):
    """A server of the API with tools of its own. `asked` are the bodies that it has got."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012 - of one server

    def do_GET(self) -> None:
        self._answer(b'{"data":[{"id":"gpt-5"}]}', "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        known = EVERYTHING[:-1]  # the last item is newer than the client's types
        if body.get("stream"):
            self._answer(sse(stream(*known)), "text/event-stream")
        else:
            self._answer(json.dumps(response(*known)).encode(), "application/json")

    def _answer(self, data: bytes, media_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def test_tools_of_a_server_of_the_api(tmp_path: Path) -> None:
    """What a server of the API says reaches its client in the client's own types, and the next turn the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = tmp_path / "gateway.toml"
    backend = f'[backends.far]\nkind = "openai-responses"\nurl = "http://127.0.0.1:{server.server_port}/v1"\n'
    endpoint = '[endpoints.m]\nserved_entities = [{ name = "e", backend = "far", model = "gpt-5" }]\n'
    settings.write_text(backend + endpoint)
    asked: Any = {"model": "m", "input": "Hi", "tools": [{"type": "web_search"}], "reasoning": {"summary": "auto"}}
    try:
        with serving(tmp_path / "log", "--config", str(settings)) as url:
            client = openai.OpenAI(
                base_url=f"{url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True
            )
            whole = client.responses.create(**asked)
            assert [item.type for item in whole.output] == [item["type"] for item in EVERYTHING[:-1]]
            assert whole.output[2].content[0].annotations[0].url == "https://a.example"
            events = list(client.responses.create(**asked, stream=True))
            for event in events:
                EVENT.validate_python(event.to_dict(), strict=False)
            assert "response.custom_tool_call_input.delta" in [event.type for event in events]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            with client.responses.stream(**asked) as streamed:
                final = streamed.get_final_response()
            assert final.output_text == whole.output_text == "Paris"
            assert client.responses.retrieve(whole.id) == whole
            result: Any = {"type": "custom_tool_call_output", "call_id": "call_c", "output": "Done!"}
            client.responses.create(**asked | {"input": [result]}, previous_response_id=final.id)
            sent = _Scripted.asked[-1]
            assert [item["type"] for item in sent["input"][1:-1]] == [item["type"] for item in EVERYTHING[:-1]]
            assert sent["input"][1]["encrypted_content"] == "gAAAAABo"
            assert (sent["input"][-1], sent["store"]) == (result, False)
            assert sent["include"] == ["reasoning.encrypted_content"]
    finally:
        server.shutdown()
        server.server_close()
