"""Cohere's side of its API, as far as the IR goes: what its OpenAPI document says, read and written as plain JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from adapters.fold import fold
from backends.scripted import ScriptedBackend
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Events,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Part,
    Sampling,
    Started,
    Stopping,
    TextPart,
    TextPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)

Body = dict[str, Any]

REASONS = {
    FinishReason.EOS: "COMPLETE",
    FinishReason.STOP_STRING: "STOP_SEQUENCE",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.TOOL_CALL: "TOOL_CALL",
}


def read_request(body: Body) -> Generate:
    """The request of a body of `/v2/chat`; a field that the API does not have is an error."""
    given = dict(body)
    sampling = Sampling(
        do_sample=True,
        temperature=given.pop("temperature", None),
        top_p=given.pop("p", None),
        top_k=given.pop("k", None),
        frequency_penalty=given.pop("frequency_penalty", None),
        presence_penalty=given.pop("presence_penalty", None),
        seed=given.pop("seed", None),
    )
    strict = given.pop("strict_tools", None)
    tools = tuple(Tool(strict=strict, **tool["function"]) for tool in given.pop("tools", ()))
    choice = given.pop("tool_choice", None)
    form = given.pop("response_format", None)
    thinking = given.pop("thinking", None)
    request = Generate(
        id="r1",
        model=given.pop("model"),
        prompts=(ChatPrompt(tuple(map(_message, given.pop("messages")))),),
        stream=given.pop("stream"),
        sampling=sampling,
        stopping=Stopping(given.pop("max_tokens", None), stop=tuple(given.pop("stop_sequences", ()))),
        tools=tools,
        tool_choice=None if choice is None else ToolChoice(choice.lower()),
        grammar=None if form is None else _grammar(form),
        hints={} if thinking is None else {"thinking": _thinking(thinking)},
        raw_prompt=False,
    )
    assert not given, given
    return request


def _message(given: Body) -> Message:
    content, thoughts = given.get("content"), given.get("tool_plan")
    if isinstance(content, list):
        thoughts = "".join(part["thinking"] for part in content if part["type"] == "thinking") or thoughts
        parts = tuple(_part(part) for part in content if part["type"] != "thinking")
        alone = len(parts) == 1 and isinstance(parts[0], TextPart) and thoughts
        content = parts[0].text if alone and isinstance(parts[0], TextPart) else parts or None
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in given.get("tool_calls", ())
    )
    return Message(given["role"], content, None, calls, given.get("tool_call_id"), thoughts)


def _part(given: Body) -> Part:
    if given["type"] == "text":
        return TextPart(given["text"])
    url = given["image_url"]["url"]
    return ImagePart(url, "data" if url.startswith("data:") else "url", given["image_url"].get("detail"))


def _grammar(form: Body) -> Grammar:
    assert form["type"] == "json_object"
    schema = form.get("json_schema")
    return Grammar("json_object") if schema is None else Grammar("json_schema", schema)


def _thinking(given: Body) -> Body:
    budget = {"budget_tokens": given["token_budget"]} if "token_budget" in given else {}
    return {"type": given["type"]} | budget


def write_answer(events: Events) -> Body:
    """A whole answer."""
    answer = fold(events)
    [choice] = answer.choices
    content = [{"type": "thinking", "thinking": choice.reasoning}] if choice.reasoning else []
    content += [{"type": "text", "text": choice.text}] if choice.text else []
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.tool_calls
    ]
    message = {"role": "assistant", "content": content, "citations": []} | ({"tool_calls": calls} if calls else {})
    return {
        "id": "c14c80c3",
        "finish_reason": REASONS[choice.reason],
        "message": message,
        "usage": _usage(answer.usage),
    }


def _usage(usage: Usage) -> Body:
    counts = {"input_tokens": float(usage.prompt_tokens), "output_tokens": float(usage.completion_tokens)}
    return {"billed_units": {"input_tokens": 1.0, "output_tokens": 1.0}, "tokens": counts}


def write_stream(events: Events) -> bytes:
    """The server-sent events of a streamed answer."""
    written: list[Body] = []
    reason = FinishReason.EOS
    for event in events:
        if isinstance(event, Started):
            message: Body = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            written.append({"id": "c14c80c3", "type": "message-start", "delta": {"message": message}})
        elif isinstance(event, Usage):
            delta = {"finish_reason": REASONS[reason], "usage": _usage(event)}
            written.append({"id": "c14c80c3", "type": "message-end", "delta": delta})
        elif isinstance(event, Delta):
            written += _deltas(event)
            reason = event.reason if isinstance(event, Finished) else reason
    frames = [f"event: {each['type']}\ndata: {json.dumps(each, ensure_ascii=False)}\n\n" for each in written]
    return "".join((*frames, "data: [DONE]\n\n")).encode()


def _deltas(delta: Delta) -> list[Body]:
    written: list[Body] = []
    for name, text in (("thinking", delta.reasoning), ("text", delta.text)):
        if text:
            start = {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": name, name: ""}}}}
            piece = {"type": "content-delta", "index": 0, "delta": {"message": {"content": {name: text}}}}
            written += [start, piece, {"type": "content-end", "index": 0}]
    for call in delta.tool_calls:
        if call.name is not None:
            function = {"name": call.name, "arguments": ""}
            calls: Body = {"id": call.id, "type": "function", "function": function}
            start = {"type": "tool-call-start", "index": call.index, "delta": {"message": {"tool_calls": calls}}}
            written.append(start)
        if call.arguments:
            calls = {"function": {"arguments": call.arguments}}
            piece = {"type": "tool-call-delta", "index": call.index, "delta": {"message": {"tool_calls": calls}}}
            written.append(piece)
    return written


async def answered(backend: ScriptedBackend, path: str, body: Body) -> tuple[bytes, str]:
    """The body and the media type of what Cohere's server would answer with the models of `backend`."""
    if path == "/v2/embed":
        assert body["embedding_types"] == ["float"]
        texts = tuple(map(TextPrompt, body["texts"]))
        found = await backend.embed(Embed(id="r1", model=body["model"], inputs=texts))
        meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": found.usage.prompt_tokens}}
        answer = {"id": "e", "texts": body["texts"], "embeddings": {"float": found.vectors}, "meta": meta}
        return json.dumps(answer).encode(), "application/json"
    request = read_request(body)
    events: Events = tuple([event async for batch in backend.generate(request) for event in batch])
    if request.stream:
        return write_stream(events), "text/event-stream"
    return json.dumps(write_answer(events)).encode(), "application/json"


class CohereServer:
    """An ASGI application in front of another one: answers `/v2/chat` and `/v2/embed` below `prefix` as Cohere does."""

    def __init__(self, app: Any, backend: ScriptedBackend, prefix: str) -> None:
        self._app = app
        self._backend = backend
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        # All else is the other application's, as those that serve it expect.
        return getattr(self._app, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(f"{self._prefix}/v2/"):
            await self._app(scope, receive, send)
            return
        data = b"".join([part async for part in _parts(receive)])
        body, media_type = await answered(self._backend, path.removeprefix(self._prefix), json.loads(data))
        headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _parts(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        yield message.get("body", b"")
