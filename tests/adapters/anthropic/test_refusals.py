"""Refused requests have Anthropic's sentences, and its form of places."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.anthropic import ADAPTER
from adapters.base import Call
from backends.base import ignored_fields
from backends.scripted import ScriptedBackend
from schemas.catalog import Catalog
from schemas.errors import InvalidRequest

SERVER = ADAPTER.server(ADAPTER.dialects["anthropic"])
ROUTE = next(route for route in SERVER.routes if route.name == "messages")
CLIENT = ADAPTER.client(ADAPTER.dialects["anthropic"])
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f"}
HI = {"role": "user", "content": "Hi"}


def ask(**fields: Any) -> Any:
    """The request of a body; a field that is None is left out."""
    body = {"model": "m", "max_tokens": 10, "messages": [HI]} | fields
    given = {name: value for name, value in body.items() if value is not None}
    return SERVER.decode(ROUTE, json.dumps(given).encode(), Call("r1", Catalog({})))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": "4"}, "max_tokens: Input should be a valid integer"),
        ({"temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"stream": "yes"}, "stream: Input should be a valid boolean"),
        ({"stop_sequences": "x"}, "stop_sequences: Input should be a valid list"),
        ({"output_config": "x"}, "output_config: Input should be a valid dictionary"),
        ({"system": 3}, "system: Input should be a valid string or list"),
        ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique."),
        (
            {"messages": [HI, {"role": "assistant", "content": [CALL | {"input": "x"}]}]},
            "messages.1.content.0.input: Input should be a valid dictionary",
        ),
        ({"messages": [HI, {"role": "user"}]}, "messages.1.content: Field required"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages.0.content.0.text: "),
    ],
)
def test_a_field_of_a_wrong_type(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(**fields)
    assert raised.value.message.startswith(message)
    assert raised.value.param == message.partition(":")[0]


TAGS = "Input tag 'lots' found using 'type' does not match any of the expected tags: "


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"thinking": {"type": "lots"}}, f"thinking: {TAGS}'adaptive', 'between_tools', 'disabled', 'enabled'"),
        ({"thinking": {"budget_tokens": 1}}, "thinking: Unable to extract tag using discriminator 'type'"),
        ({"tools": [TOOL], "tool_choice": {"type": "lots"}}, f"tool_choice: {TAGS}'any', 'auto', 'none', 'tool'"),
        ({"service_tier": "lots"}, "service_tier: Input should be 'auto' or 'standard_only'"),
        (
            {"output_config": {"effort": "lots"}},
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ),
    ],
)
def test_an_unknown_word_is_for_a_server_of_the_dialect(fields: dict[str, Any], message: str) -> None:
    request = ask(**fields)
    with pytest.raises(InvalidRequest) as raised:
        ignored_fields(request, ScriptedBackend("s"))
    assert raised.value.message == message
    assert CLIENT.ignored(request) == ()
    assert {name: json.loads(CLIENT.encode(request).body)[name] for name in fields} == fields


@pytest.mark.parametrize("wrap", [False, True], ids=["in a turn", "in a result"])
def test_a_file_as_an_image_is_for_a_server_of_the_dialect(wrap: bool) -> None:
    image: dict[str, Any] = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    content = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}] if wrap else [image]
    request = ask(messages=[{"role": "user", "content": content}])
    with pytest.raises(InvalidRequest, match=r"source\.type: images of type 'file' are not supported$"):
        ignored_fields(request, ScriptedBackend("s"))
    assert CLIENT.ignored(request) == ()
    assert json.loads(CLIENT.encode(request).body)["messages"][0]["content"] == content


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "requests: Field required"),
        ({"requests": "x"}, "requests: Input should be a valid list"),
        ({"requests": [{"custom_id": 3, "params": {}}]}, "requests.0.custom_id: Input should be a valid string"),
    ],
)
def test_a_batch(body: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SERVER.batches.read_batch(json.dumps(body).encode())
    assert raised.value.message == message
