"""Chats over servers of raw text, and raw text over servers of chats, through the whole application."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backends.base import Feature
from backends.remote.chat_text import ChatText, load_chat_text
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, ImagePart, Message, TextPart
from tests.faults.upstream import Asked, Step, response, upstream
from tests.gateway.serving import running

TEMPLATE = (
    "{% if tools %}Tools: {{ tools | map(attribute='function') | map(attribute='name') | join(',') }} "
    "<tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)
CALL = 'I look. <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
RENDERED = "[system]Be brief.[user]Hi[assistant]"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}

# The forms that the public servers write: Triton's vLLM backend, TGI 0.9.
TRITON_END = {"finish_reason": "stop", "num_input_tokens": 7, "num_output_tokens": 3}
TGI_DETAILS = {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None, "prefill": [], "tokens": []}


def triton(text: str, size: int) -> Any:
    def play(asked: Asked) -> tuple[Step, ...]:
        if not asked.line.startswith("POST"):
            return (response(b"{}"),)
        if "generate_stream" not in asked.line:
            return (response(json.dumps({"model_name": "m", "text_output": text} | TRITON_END).encode()),)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        frames = [{"model_name": "m", "text_output": piece} for piece in pieces]
        return stream([*frames, {"model_name": "m", "text_output": ""} | TRITON_END])

    return play


def tgi(text: str, size: int) -> Any:
    def play(asked: Asked) -> tuple[Step, ...]:
        if not asked.line.startswith("POST"):
            return (response(b"{}"),)
        if "generate_stream" not in asked.line:
            return (response(json.dumps({"generated_text": text, "details": TGI_DETAILS}).encode()),)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        frames: list[dict[str, Any]] = [
            {
                "token": {"id": 5, "text": piece, "logprob": -0.5, "special": False},
                "generated_text": None,
                "details": None,
            }
            for piece in pieces
        ]
        end = {"id": 2, "text": "</s>", "logprob": -0.1, "special": True}
        details = {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None}
        return stream([*frames, {"token": end, "generated_text": text, "details": details}])

    return play


def stream(frames: list[dict[str, Any]]) -> tuple[Step, ...]:
    data = b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames)
    return (response(data).replace(b"application/json", b"text/event-stream"),)


def app(kind: str, url: str, **options: Any) -> Any:
    return create_app(
        Config(
            backends={"far": {"kind": kind, "url": url, **options}},
            endpoints={"m": Endpoint(served_entities=(ServedEntity(name="m", backend="far"),))},
        )
    )


def sent_text(asked: list[Asked]) -> str:
    body = json.loads([each for each in asked if each.line.startswith("POST")][-1].body)
    return body.get("text_input") or body["inputs"]


PLAYS = {"triton": triton, "tgi-0.9": tgi}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": CHAT}),
    "responses": ("/v1/responses", {"model": "m", "instructions": "Be brief.", "input": "Hi"}),
    "databricks": ("/serving-endpoints/m/invocations", {"messages": CHAT, "max_tokens": 5}),
    "anthropic": ("/v1/messages", {"model": "m", "system": "Be brief.", "messages": CHAT[1:], "max_tokens": 5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAYS)
async def test_a_chat_is_rendered(kind: str) -> None:
    async with (
        upstream(PLAYS[kind]("Good day.", 3)) as there,
        running(app(kind, there.url, chat_template=TEMPLATE)) as http,
    ):
        for path, body in ROUTES.values():
            reply = await http.post(path, json=body | {"stream": False})
            assert reply.status_code == 200, reply.text
            assert "Good day." in reply.text
            assert sent_text(there.asked) == RENDERED
            streamed = (await http.post(path, json=body | {"stream": True})).text
            assert "".join(_texts(streamed)) == "Good day."
            assert sent_text(there.asked) == RENDERED


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size"), [("triton", 1), ("triton", 200), ("tgi-0.9", 3)])
async def test_calls_are_read(kind: str, size: int) -> None:
    body = {"model": "m", "messages": CHAT, "tools": [TOOL]}
    async with upstream(PLAYS[kind](CALL, size)) as there:
        async with running(app(kind, there.url, chat_template=TEMPLATE)) as http:
            whole = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
            lines = (await http.post("/v1/chat/completions", json=body | {"stream": True})).text.split("\n\n")
        assert sent_text(there.asked) == f"Tools: get_weather <tool_call>{RENDERED}"
    assert whole["message"]["content"] == "I look."
    assert whole["finish_reason"] == "tool_calls"
    [call] = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "I look."
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"city": "Paris"}'
    assert choices[-1]["finish_reason"] == "tool_calls"


REFUSED: list[dict[str, Any]] = [
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
    {"tools": [TOOL], "response_format": {"type": "json_object"}},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
]


@pytest.mark.slow
async def test_what_text_cannot_promise_is_refused_before_the_server_is_called() -> None:
    async with upstream(triton("x", 1)) as there:
        async with running(app("triton", there.url, chat_template=TEMPLATE)) as http:
            for fields in REFUSED:
                reply = await http.post("/v1/chat/completions", json={"model": "m", "messages": CHAT} | fields)
                assert reply.status_code == 400, reply.text
        assert not [asked for asked in there.asked if asked.line.startswith("POST")]


@pytest.mark.slow
async def test_databricks_applies_the_template_to_a_prompt_unless_it_is_raw() -> None:
    async with upstream(triton("x", 1)) as there, running(app("triton", there.url, chat_template=TEMPLATE)) as http:
        await http.post("/serving-endpoints/m/invocations", json={"prompt": "Hi"})
        assert sent_text(there.asked) == "[user]Hi[assistant]"
        await http.post("/serving-endpoints/m/invocations", json={"prompt": "Hi", "use_raw_prompt": True})
        assert sent_text(there.asked) == "Hi"


@pytest.mark.slow
async def test_a_prompt_for_the_template_is_refused_where_there_is_none() -> None:
    async with upstream(triton("x", 1)) as there, running(app("triton", there.url)) as http:
        reply = await http.post("/serving-endpoints/m/invocations", json={"prompt": "Hi"})
        assert reply.status_code == 400
        assert "it has no chat template for the prompt" in reply.json()["message"]
        assert not [asked for asked in there.asked if asked.line.startswith("POST")]


TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tgi": ("/generate", {"inputs": "Hi"}),
    "triton": ("/v2/models/m/generate", {"text_input": "Hi", "parameters": {"max_tokens": 5}}),
    "completions": ("/v1/completions", {"model": "m", "prompt": "Hi"}),
}
ANSWERS = {
    "anthropic": {"model": "far", "content": [{"type": "text", "text": "Good day."}], "stop_reason": "end_turn"},
    "openai": {"model": "far", "choices": [{"message": {"content": "Good day."}, "finish_reason": "stop"}]},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS)
async def test_raw_text_is_one_turn_or_refused(kind: str) -> None:
    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(json.dumps(ANSWERS[kind]).encode()),)

    async with upstream(play) as there:
        async with running(app(kind, there.url, raw_text="as_chat")) as http:
            for path, body in TEXTS.values():
                assert "Good day." in (await http.post(path, json=body)).text
        posts = [asked for asked in there.asked if asked.line.startswith("POST")]
        assert len(posts) == len(TEXTS)
        for asked in posts:
            assert asked.line.split()[1] in ("/v1/messages", "/chat/completions")
            [message] = json.loads(asked.body)["messages"]
            assert message["content"] in ("Hi", [{"type": "text", "text": "Hi"}])
        async with running(app(kind, there.url, raw_text="refuse")) as http:
            for path, body in TEXTS.values():
                reply = await http.post(path, json=body)
                assert 400 <= reply.status_code < 502
                assert "token_prompts" not in reply.text
        assert len([asked for asked in there.asked if asked.line.startswith("POST")]) == len(TEXTS)


@pytest.mark.slow
async def test_a_control_token_in_a_message_is_refused() -> None:
    source = "{% for m in messages %}<|im_start|>[INST]{{ m.content }}[/INST]</s><|im_end|>{% endfor %}"
    chat = ChatText(source)
    for text in ("<|im_end|>", "[/INST]", "</s>"):
        with pytest.raises(InvalidRequest, match="control token"):
            await chat.text(ChatPrompt((Message("user", f"a{text}"),)), ())
    chat.close()
    other = ChatText("{{ messages[0].content }}", added_tokens=["END"])
    assert (await other.text(ChatPrompt((Message("user", "</s>"),)), ())).text == "</s>"
    other.close()


@pytest.mark.slow
async def test_images_are_beside_the_text_where_the_template_has_a_place_for_them() -> None:
    image = ImagePart("data:,", "data")
    chat = ChatText(
        "{% for p in messages[0].content %}{% if p.type == 'image' %}<img>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    )
    rendered = await chat.text(ChatPrompt((Message("user", (TextPart("What?"), image)),)), ())
    chat.close()
    assert (rendered.text, rendered.images) == ("What?<img>", (image,))


@pytest.mark.slow
async def test_the_bundled_tokenizers_template() -> None:
    """Its control tokens are refused, and the beginning-of-sequence token is left to the server."""
    chat = await asyncio.to_thread(load_chat_text, None, "backends/native/demo/weights")
    assert chat is not None
    assert Feature.TOOLS in chat.features
    text = (await chat.text(ChatPrompt((Message("user", "Hi"),)), ())).text
    assert "Hi" in text
    with pytest.raises(InvalidRequest, match="control token"):
        await chat.text(ChatPrompt((Message("user", "<|end|>"),)), ())
    chat.close()


def test_a_server_that_renders_chats_itself_takes_no_template() -> None:
    with pytest.raises(Exception, match="chat_template"):
        app("openai", "http://127.0.0.1:1", chat_template=TEMPLATE)


def _texts(stream: str) -> list[str]:
    """The texts of the deltas of a stream of any chat protocol."""
    texts = []
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line[6:])
        if choices := data.get("choices"):
            texts.append(choices[0]["delta"].get("content") or "")
        elif data.get("type") == "response.output_text.delta":
            texts.append(data["delta"])
        elif data.get("type") == "content_block_delta":
            texts.append(data["delta"]["text"])
    return texts
