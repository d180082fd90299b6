"""Conversations made shorter: the request for a summary, the item that holds it, and what becomes of that item."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Call
from adapters.fold import fold
from adapters.openai import ADAPTER
from adapters.openai.responses.summary import read_summary, write_summary
from adapters.openai.server import OpenAIServer
from schemas.catalog import Catalog
from schemas.errors import BackendFailed, InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Delta, Finished, FinishReason, Generate, ImagePart, Message, Started, Usage
from schemas.origin import Relay

SERVER = OpenAIServer(ADAPTER.dialects["openai"], now=lambda: 1.5)
ROUTES = {route.name: route for route in SERVER.routes if route.path.startswith("/v1")}
CALL = Call("r1", Catalog({}))
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "What is in a.txt?"},
    {"type": "function_call", "call_id": "c", "name": "read", "arguments": '{"path":"a.txt"}'},
    {"type": "function_call_output", "call_id": "c", "output": "hello"},
    {"role": "assistant", "content": "It says hello."},
]


def compact(**fields: Any) -> Generate:
    body = json.dumps({"model": "m", **fields}).encode()
    relay = SERVER.decode(ROUTES["responses_compact"], body, CALL)
    assert isinstance(relay, Relay)
    assert relay.by_text
    return SERVER.read_by_text(relay)


def answered(request: Generate, text: str, reason: FinishReason = FinishReason.EOS) -> dict[str, Any]:
    events = (Started("m", 9), Delta(text=text), Finished(reason=reason), Usage(9, 4))
    answer: dict[str, Any] = json.loads(SERVER.encode(request, fold(events)).body)
    return answer


def test_a_conversation_is_one_text() -> None:
    [prompt] = compact(input=CONVERSATION, instructions="In French.").prompts
    assert isinstance(prompt, ChatPrompt)
    system, conversation = prompt.messages
    assert str(system.content).endswith("In French.")
    assert conversation == Message(
        "user",
        "[user]\nWhat is in a.txt?\n[assistant]\n\n[call of read]\n"
        '{"path":"a.txt"}\n[tool]\nhello\n[assistant]\nIt says hello.\n',
    )


def test_images_stay() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}
    [prompt] = compact(input=[{"role": "user", "content": [part]}]).prompts
    assert isinstance(prompt, ChatPrompt)
    assert any(isinstance(each, ImagePart) for each in prompt.messages[1].content or ())


def test_the_users_messages_and_an_item_are_left() -> None:
    answer = answered(compact(input=CONVERSATION), "It was read.\n")
    summary = write_summary("It was read.")
    assert answer["object"] == "response.compaction"
    assert (answer["id"], answer["created_at"], answer["usage"]["total_tokens"]) == ("resp_r1", 1, 13)
    kept, item = answer["output"]
    assert (kept["role"], kept["content"]) == ("user", [{"type": "input_text", "text": "What is in a.txt?"}])
    assert item == {"id": "cmp_r1", "type": "compaction", "encrypted_content": summary}
    # The output is the input of the next request.
    body = {"model": "m", "input": [*answer["output"], {"role": "user", "content": "And b.txt?"}]}
    following = SERVER.decode(ROUTES["responses"], json.dumps(body).encode(), CALL)
    assert isinstance(following, Generate)
    [prompt] = following.prompts
    assert isinstance(prompt, ChatPrompt)
    assert [message.role for message in prompt.messages] == ["user", "assistant", "user"]
    assert prompt.messages[1].content == "Summary of the conversation so far:\n\nIt was read."
    # It may be made shorter again.
    [prompt] = compact(input=body["input"]).prompts
    assert isinstance(prompt, ChatPrompt)
    assert "It was read." in str(prompt.messages[1].content)


def test_a_text_is_the_users_message() -> None:
    [kept, _] = answered(compact(input="Hi"), "x")["output"]
    assert kept["content"] == [{"type": "input_text", "text": "Hi"}]


@pytest.mark.parametrize(
    ("text", "reason"), [("cut", FinishReason.LENGTH), ("no", FinishReason.CONTENT_FILTER), (" ", FinishReason.EOS)]
)
def test_half_a_summary_is_none(text: str, reason: FinishReason) -> None:
    with pytest.raises(BackendFailed, match="no whole summary"):
        answered(compact(input="Hi"), text, reason)


@pytest.mark.parametrize("content", [None, "", "x", "interlingua-1.%", "interlingua-1./w=="])
def test_items_of_others_are_refused(content: str | None) -> None:
    assert read_summary(content) is None
    with pytest.raises(UnsupportedFeature, match="compaction"):
        compact(input=[{"type": "compaction", "encrypted_content": content}])


def test_wrong_bodies_are_refused() -> None:
    for fields in ({}, {"input": []}, {"input": 1}):
        with pytest.raises(InvalidRequest, match="input"):
            compact(**fields)
