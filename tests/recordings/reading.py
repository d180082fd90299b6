"""What a client makes of a stream, whatever the protocol: a reader of its own, which shares no code with the product.

The same function reads what a provider sent and what the gateway made of it, so the two can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

Frame = dict[str, Any]

_ENDS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
"""Anthropic's stop reasons in OpenAI's words; those of all other protocols below are OpenAI's, or have no calls."""
_TEXT_ENDS = {"eos_token": "stop", "stop_sequence": "stop"}


class Heard(NamedTuple):
    """The choice `index` of an answer.

    `calls` are names and decoded arguments. `finish` is OpenAI's word; "completed" and "incomplete" are those of the
    Responses API, which has no word for a call. `usage` are the tokens of prompt and answer, None without any.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    finish: str = ""
    usage: tuple[int, int] | None = None


def frames(data: bytes) -> Iterator[Frame]:
    """The JSON of each event or, of Ollama's, each line, as the providers' own SDKs find it."""
    if data.startswith(b"{"):
        yield from map(json.loads, data.splitlines())
        return
    for event in data.replace(b"\r\n", b"\n").decode().split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        if lines and lines != ["[DONE]"]:
            yield json.loads("\n".join(lines))


def heard(events: list[Frame], index: int = 0) -> Heard:
    """Read a stream of the chat protocols, TGI or Triton."""
    first = events[0]
    if "candidates" in first:
        return _of_gemini(events)
    if "done" in first:
        return _of_ollama(events)
    if "token" in first:
        return _of_tgi(events)
    if "text_output" in first:
        text = "".join(event["text_output"] for event in events)
        return Heard(text)
    if first.get("type", "").startswith("response."):
        return _of_responses(events)
    return _of_messages(events) if "type" in first else _of_chunks(events, index)


def _of_chunks(events: list[Frame], index: int) -> Heard:
    """OpenAI, Databricks and all who speak like them."""
    text = reasoning = refusal = finish = ""
    calls: dict[int, list[str]] = {}
    usage = None
    for event in events:
        if event.get("usage"):
            usage = event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]
        for choice in event.get("choices", ()):
            if choice["index"] != index:
                continue
            delta, finish = choice.get("delta", {}), choice.get("finish_reason") or finish
            text += choice.get("text") or ""  # of a completion
            words, thoughts = _of_content(delta.get("content"))
            text, refusal = text + words, refusal + (delta.get("refusal") or "")
            reasoning += thoughts + (delta.get("reasoning_content") or delta.get("reasoning") or "")
            for place, call in enumerate(delta.get("tool_calls") or ()):
                held = calls.setdefault(call.get("index", place), ["", ""])
                held[0] = held[0] or call["function"].get("name") or ""
                held[1] += call["function"].get("arguments") or ""
    return Heard(text, reasoning, refusal, _decoded(calls), finish, usage)


def _of_content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content, which Mistral and Databricks send as a list."""
    if not isinstance(content, list):
        return content or "", ""
    thoughts = [each for part in content for each in part.get("thinking") or part.get("summary") or ()]
    return "".join(part.get("text", "") for part in content), "".join(each["text"] for each in thoughts)


def _of_messages(events: list[Frame]) -> Heard:
    """Anthropic. Blocks of its server tools are nobody's text and nobody's call."""
    text = reasoning = finish = ""
    calls: dict[int, list[str]] = {}
    sizes: Frame = {}
    for event in events:
        match event["type"]:
            case "message_start":
                sizes = event["message"]["usage"]
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                given = event["content_block"]["input"]
                calls[event["index"]] = [event["content_block"]["name"], json.dumps(given) if given else ""]
            case "content_block_start":
                text += event["content_block"].get("text") or ""
            case "content_block_delta":
                delta = event["delta"]
                text, reasoning = text + delta.get("text", ""), reasoning + delta.get("thinking", "")
                if event["index"] in calls:
                    calls[event["index"]][1] += delta.get("partial_json", "")
            case "message_delta":
                finish = event["delta"]["stop_reason"]
                sizes = sizes | {name: size for name, size in event["usage"].items() if size is not None}
    prompt = sum(sizes.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_read_", "cache_creation_"))
    usage = (prompt, sizes["output_tokens"])
    return Heard(text, reasoning, "", _decoded(calls), _ENDS.get(finish, finish), usage)


def _of_responses(events: list[Frame]) -> Heard:
    text = reasoning = refusal = ""
    calls: dict[int, list[str]] = {}
    for event in events:
        type = event["type"]
        if type == "response.output_text.delta":
            text += event["delta"]
        elif type == "response.refusal.delta":
            refusal += event["delta"]
        elif type.startswith("response.reasoning") and type.endswith(".delta"):
            reasoning += event["delta"]
        elif type == "response.output_item.done" and event["item"]["type"] == "function_call":
            calls[event["output_index"]] = [event["item"]["name"], event["item"]["arguments"]]
    last = events[-1]["response"]
    usage = last["usage"]["input_tokens"], last["usage"]["output_tokens"]
    return Heard(text, reasoning, refusal, _decoded(calls), last["status"], usage)


def _of_gemini(events: list[Frame]) -> Heard:
    text = reasoning = finish = ""
    calls: list[tuple[str, Any]] = []
    usage = None
    for event in events:
        usage = event.get("usageMetadata", usage)
        for candidate in event.get("candidates", ()):
            for part in candidate.get("content", {}).get("parts", ()):
                thought = part.get("thought", False)
                reasoning += part.get("text", "") if thought else ""
                text += "" if thought else part.get("text", "")
                if "functionCall" in part:
                    calls.append((part["functionCall"]["name"], part["functionCall"].get("args", {})))
            finish = candidate.get("finishReason", finish)
    assert usage is not None
    generated = usage.get("candidatesTokenCount", 0) + usage.get("thoughtsTokenCount", 0)
    # The protocol has no reason of its own for calls.
    finish = "tool_calls" if calls else {"STOP": "stop", "MAX_TOKENS": "length"}.get(finish, finish)
    return Heard(text, reasoning, "", tuple(calls), finish, (usage["promptTokenCount"], generated))


def _of_ollama(events: list[Frame]) -> Heard:
    # Of `/api/generate`, an event is the message.
    messages = [event.get("message") or {"content": event["response"]} for event in events]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    last = events[-1]
    return Heard(
        "".join(message["content"] for message in messages),
        "".join(message.get("thinking") or "" for message in messages),
        "",
        tuple((call["name"], call["arguments"]) for call in calls),
        "tool_calls" if calls else last["done_reason"],  # likewise
        (last.get("prompt_eval_count", 0), last.get("eval_count", 0)),
    )


def _of_tgi(events: list[Frame]) -> Heard:
    text = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    last = events[-1]
    # T5 drops the space before the first word there.
    assert last["generated_text"].strip() == text.strip(), "the last frame repeats the text"
    finish = last["details"]["finish_reason"]
    return Heard(text, finish=_TEXT_ENDS.get(finish, finish))


def _decoded(calls: dict[int, list[str]]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, json.loads(arguments or "{}")) for _, (name, arguments) in sorted(calls.items()))
