"""Streams of a Responses API as OpenAI sends them, with what only that API has."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 42,
}
REASONING = {
    "id": "rs_68a1",
    "type": "reasoning",
    "encrypted_content": "gAAAAABo",
    "summary": [{"type": "summary_text", "text": "**Looking**"}, {"type": "summary_text", "text": "Found it."}],
}
SEARCH = {
    "id": "ws_68a1",
    "type": "web_search_call",
    "status": "completed",
    "action": {
        "type": "search",
        "query": "capital of France",
        "sources": [{"type": "url", "url": "https://a.example"}],
    },
}
CITATION = {
    "type": "url_citation",
    "start_index": 0,
    "end_index": 5,
    "url": "https://a.example",
    "title": "A",
}
CUSTOM = {
    "id": "ctc_68a1",
    "type": "custom_tool_call",
    "status": "completed",
    "call_id": "call_c",
    "name": "apply_patch",
    "input": "*** Begin Patch",
}
FUNCTION = {
    "id": "fc_68a1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_f",
    "name": "f",
    "arguments": '{"a":1}',
}
NEW = {"id": "new_1", "type": "thought_transfer", "status": "completed", "content": {"of": "any"}, "arguments": [1]}


def message(text: str, *annotations: Json, status: str = "completed") -> Json:
    part = {"type": "output_text", "annotations": list(annotations), "logprobs": [], "text": text}
    return {"id": "msg_68a1", "type": "message", "status": status, "content": [part], "role": "assistant"}


REFUSAL = {
    "id": "msg_68a2",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "refusal", "refusal": "I cannot."}],
}


def response(*output: Json, status: str = "completed", **fields: Any) -> Json:
    """A whole response. It has fields that no gateway knows."""
    return {
        "id": "resp_68a1",
        "object": "response",
        "created_at": 1741476542,
        "status": status,
        "background": False,
        "billing": {"payer": "developer"},
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "gpt-5-2026",
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": "low", "summary": "detailed"},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": USAGE if status in ("completed", "incomplete") else None,
        "user": None,
        "metadata": {},
    } | fields


def stream(*output: Json, end: Json | None = None, before: tuple[Json, ...] = ()) -> list[Json]:
    """The events of a response with these items; `end` is the last one, `before` precede the first one."""
    begun = response(status="in_progress")
    events: list[Json] = [*before, {"type": "response.created", "response": begun}]
    events.append({"type": "response.in_progress", "response": begun})
    for index, item in enumerate(output):
        events += _item(index, item)
    last = end or {"type": "response.completed", "response": response(*output)}
    return [event | {"sequence_number": number} for number, event in enumerate([*events, last])]


def _item(index: int, item: Json) -> list[Json]:
    place = {"item_id": item["id"], "output_index": index}
    empty = item | {"status": "in_progress"}
    inside: list[Json] = []
    match item["type"]:
        case "reasoning":
            empty = item | {"summary": []}
            for part, summary in enumerate(item["summary"]):
                there, text = place | {"summary_index": part}, summary["text"]
                prefix = "response.reasoning_summary"
                inside += [
                    {"type": f"{prefix}_part.added", **there, "part": {"type": "summary_text", "text": ""}},
                    *({"type": f"{prefix}_text.delta", **there, "delta": each, "obfuscation": "x"} for each in text),
                    {"type": f"{prefix}_text.done", **there, "text": text},
                    {"type": f"{prefix}_part.done", **there, "part": summary},
                ]
        case "web_search_call":
            inside = [{"type": f"response.web_search_call.{step}", **place} for step in ("in_progress", "searching")]
            inside.append({"type": "response.web_search_call.completed", **place})
        case "custom_tool_call":
            empty = empty | {"input": ""}
            prefix = "response.custom_tool_call_input"
            inside = [{"type": f"{prefix}.delta", **place, "delta": each} for each in item["input"].split()]
            inside.append({"type": f"{prefix}.done", **place, "input": item["input"]})
        case "function_call":
            empty = empty | {"arguments": ""}
            prefix = "response.function_call_arguments"
            inside = [{"type": f"{prefix}.delta", **place, "delta": each} for each in item["arguments"]]
            inside.append({"type": f"{prefix}.done", **place, "arguments": item["arguments"], "name": item["name"]})
        case "message":
            empty = empty | {"content": []}
            inside = [event for part, content in enumerate(item["content"]) for event in _part(place, part, content)]
    added = {"type": "response.output_item.added", "output_index": index, "item": empty}
    return [added, *inside, {"type": "response.output_item.done", "output_index": index, "item": item}]


def _part(place: Json, index: int, part: Json) -> list[Json]:
    there, field = place | {"content_index": index}, "refusal" if part["type"] == "refusal" else "text"
    prefix = "response.refusal" if field == "refusal" else "response.output_text"
    cited = [
        {"type": "response.output_text.annotation.added", **there, "annotation_index": at, "annotation": annotation}
        for at, annotation in enumerate(part.get("annotations", ()))
    ]
    return [
        {"type": "response.content_part.added", **there, "part": part | {field: ""}},
        *(
            {"type": f"{prefix}.delta", **there, "delta": each, "logprobs": [], "obfuscation": "x"}
            for each in part[field]
        ),
        *cited,
        {"type": f"{prefix}.done", **there, field: part[field], "logprobs": []},
        {"type": "response.content_part.done", **there, "part": part},
    ]


def sse(events: list[Json]) -> bytes:
    """The events as they are sent."""
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def failed(code: str, text: str) -> Json:
    error = {"code": code, "message": text}
    return {"type": "response.failed", "response": response(status="failed", error=error)}


def cut_off(reason: str, *output: Json) -> Json:
    details = {"reason": reason}
    return {
        "type": "response.incomplete",
        "response": response(*output, status="incomplete", incomplete_details=details),
    }


SEARCHED = (REASONING, SEARCH, message("Paris", CITATION))
EVERYTHING = (*SEARCHED, FUNCTION, CUSTOM, NEW)
