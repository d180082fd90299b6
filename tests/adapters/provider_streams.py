"""Streams as public providers send them: the same events and fields, with texts of our own.

Written after the providers' references; each has fields that nobody here knows (`obfuscation`, `p`, `x_groq`, …).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from schemas.ir import FinishReason

Events = list[dict[str, Any]]


class Recorded(NamedTuple):
    """A stream: the dialect, the events, and what they say."""

    dialect: str
    events: Events
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: FinishReason = FinishReason.EOS
    usage: tuple[int, int] = (5, 7)

    def data(self) -> bytes:
        """The bytes of the stream."""
        lines = []
        for event in self.events:
            name = f"event: {event['type']}\n" if self.dialect == "anthropic" else ""
            lines.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n")
        return "".join(lines).encode() + (b"" if self.dialect == "anthropic" else b"data: [DONE]\n\n")


def _chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "far", "choices": [choice]}
    return head | fields


def _usage(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12} | details


def _call(index: int, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index} | fields]}


def _block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> Events:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


_START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "far",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 1, "service_tier": "standard"},
    },
}


def _end(reason: str) -> Events:
    delta = {"stop_reason": reason, "stop_sequence": None, "stop_details": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}, {"type": "message_stop"}]


STREAMS: dict[str, Recorded] = {
    "OpenAI, text": Recorded(
        "openai",
        [
            _chunk({"role": "assistant", "content": "", "refusal": None}, usage=None, obfuscation="aB3"),
            _chunk({"content": "Grü"}, usage=None, obfuscation="k"),
            _chunk({"content": "ße\u2028"}, usage=None, service_tier="default"),
            _chunk({}, "stop", usage=None),
            {"id": "c", "model": "far", "choices": [], "usage": _usage(prompt_tokens_details={"audio_tokens": 0})},
        ],
        text="Grüße\u2028",
    ),
    "OpenAI, parallel calls": Recorded(
        "openai",
        [
            _chunk(
                {"role": "assistant", "content": None}
                | _call(0, id="call_1", type="function", function={"name": "f", "arguments": ""})
            ),
            _chunk(_call(0, function={"arguments": '{"a":'})),
            _chunk(_call(0, function={"arguments": "1}"})),
            _chunk(_call(1, id="call_2", type="function", function={"name": "g", "arguments": "{}"})),
            _chunk({}, "tool_calls"),
            {"id": "c", "model": "far", "choices": [], "usage": _usage()},
        ],
        calls=(("f", '{"a":1}'), ("g", "{}")),
        finish=FinishReason.TOOL_CALL,
    ),
    "Azure, content filter results": Recorded(
        "openai",
        [
            {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            _chunk({"role": "assistant", "content": "Hi"}, content_filter_results={}),
            _chunk({}, "length"),
            {"id": "c", "model": "far", "choices": [], "usage": _usage()},
        ],
        text="Hi",
        finish=FinishReason.LENGTH,
    ),
    "DeepSeek, reasoning": Recorded(
        "openai",
        [
            _chunk({"role": "assistant", "content": None, "reasoning_content": "Let "}),
            _chunk({"content": None, "reasoning_content": "me."}),
            _chunk({"content": "5", "reasoning_content": None}),
            _chunk({"content": ""}, "stop", usage=_usage(prompt_cache_hit_tokens=0)),
        ],
        text="5",
        reasoning="Let me.",
    ),
    "Google, thoughts in tags and a signed call": Recorded(
        "openai",
        [
            _chunk({"role": "assistant", "content": "<thought>Let ", "extra_content": {"google": {"thought": True}}}),
            _chunk({"content": "me.", "extra_content": {"google": {"thought": True}}}),
            _chunk({"content": "</thought>5"}),
            _chunk(
                _call(
                    0,
                    id="call_1",
                    type="function",
                    function={"name": "f", "arguments": '{"a":1}'},
                    extra_content={"google": {"thought_signature": "c2ln"}},
                )
            ),
            _chunk({"content": None}, "tool_calls", usage=_usage()),
        ],
        text="5",
        reasoning="Let me.",
        calls=(("f", '{"a":1}'),),
        finish=FinishReason.TOOL_CALL,
    ),
    "Mistral, thinking in a list": Recorded(
        "openai",
        [
            _chunk({"role": "assistant", "content": ""}, p="abc"),
            _chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Let "}]}]}),
            _chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "me."}], "closed": True}]}),
            _chunk({"content": [{"type": "text", "text": "5"}, {"type": "reference", "reference_ids": [1]}]}),
            _chunk({"content": "."}, "stop", usage=_usage()),
        ],
        text="5.",
        reasoning="Let me.",
    ),
    "Databricks, reasoning in a list": Recorded(
        "databricks",
        [
            _chunk(
                {
                    "role": "assistant",
                    "content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Let me."}]}],
                },
                usage=_usage(),
            ),
            _chunk({"content": [{"type": "text", "text": "5"}]}, usage=_usage()),
            _chunk({"content": ""}, "stop", usage=_usage()),
        ],
        text="5",
        reasoning="Let me.",
    ),
    "vLLM, whole call and stop reason": Recorded(
        "openai",
        [
            _chunk({"role": "assistant", "content": ""}, prompt_token_ids=None),
            _chunk({"reasoning": "Let me.", "reasoning_content": "Let me."}),
            _chunk(_call(0, id="chatcmpl-tool-1", type="function", function={"name": "f", "arguments": '{"a":1}'})),
            _chunk({"content": ""}, "tool_calls", stop_reason=None),
            {"id": "c", "model": "far", "choices": [], "usage": _usage()},
        ],
        reasoning="Let me.",
        calls=(("f", '{"a":1}'),),
        finish=FinishReason.TOOL_CALL,
    ),
    "Gemini's OpenAI form, a call without an index": Recorded(
        "openai",
        [
            _chunk(
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a":1}'},
                            "extra_content": {"google": {"thought_signature": "c2ln"}},
                        }
                    ],
                }
            ),
            _chunk({"role": "assistant"}, "tool_calls", usage=_usage()),
        ],
        calls=(("f", '{"a":1}'),),
        finish=FinishReason.TOOL_CALL,
    ),
    "Anthropic, thinking and a call": Recorded(
        "anthropic",
        [
            _START,
            {"type": "ping"},
            *_block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "Let me."},
                {"type": "signature_delta", "signature": "c2ln"},
            ),
            *_block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look\u2028."}),
            *_block(
                2,
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "caller": {"type": "direct"}},
                {"type": "input_json_delta", "partial_json": ""},
                {"type": "input_json_delta", "partial_json": '{"a":'},
                {"type": "input_json_delta", "partial_json": "1}"},
            ),
            *_block(3, {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}),
            *_end("tool_use"),
        ],
        text="I look\u2028.",
        reasoning="Let me.",
        calls=(("f", '{"a":1}'), ("g", "{}")),
        finish=FinishReason.TOOL_CALL,
    ),
    "Anthropic, server tools": Recorded(
        "anthropic",
        [
            _START,
            *_block(
                0,
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"url":"x"}'},
            ),
            *_block(
                1,
                {
                    "type": "web_fetch_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {"type": "web_fetch_result", "url": "x", "content": {"type": "document", "title": None}},
                },
            ),
            *_block(
                2,
                {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {"stdout": "5"}},
            ),
            *_block(
                3,
                {"type": "text", "text": "", "citations": []},
                {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x"}},
                {"type": "text_delta", "text": "5"},
            ),
            *_block(
                4, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "What was said."}
            ),
            *_end("end_turn"),
        ],
        text="5",
    ),
}
