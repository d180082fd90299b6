"""Requests for `/responses` of a remote, written from the IR. What the API cannot express is refused, never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from adapters.openai.dialects import Dialect
from adapters.openai.remote.encode_request import short_user
from adapters.openai.responses.decode import LOGPROBS
from adapters.outbound import conversation, image_url, inexpressible
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Part,
    TemplateOptions,
    TextPart,
    Tool,
    ToolChoice,
)
from schemas.left_out import DETAIL, STRICT

SENT = ("reasoning_effort", "verbosity", "service_tier", "prompt_cache_retention", STRICT, DETAIL)
"""The hints and places (`schemas.left_out`) that the API has a form for."""

_LABELS = ("metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""The hints that are fields of a request under the same name."""
_UNSUPPORTED_SAMPLING = ("top_k", "min_p", "typical_p", "repetition_penalty", "logit_bias", "watermark", "bad_words")
_UNSUPPORTED_STOPPING = ("stop", "min_new_tokens", "stop_token_ids", "ignore_eos")
_UNSUPPORTED_FIELDS = ("best_of", "echo", "suffix", "prompt_logprobs", "truncate_prompt_tokens", "lora_adapter")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def write_body(dialect: Dialect, request: Generate) -> bytes:
    """The JSON of a request. The server is to store nothing: what is stored, is stored here.

    Raises:
        schemas.errors.UnsupportedFeature: the API cannot express the request.
    """
    _refuse_unsupported(request)
    sampling, hints = request.sampling, request.hints
    fields: dict[str, Any] = {
        "model": request.model,
        "input": [item for message in conversation(request) for item in _items(message)],
        "max_output_tokens": request.stopping.max_new_tokens,
        "temperature": dialect.remote.greedy_temperature if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "include": [LOGPROBS] if request.logprobs else None,
        "top_logprobs": request.top_logprobs or None,
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _tool_choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "text": _text(request.grammar, hints.get("verbosity")),
        "reasoning": {"effort": hints["reasoning_effort"]} if "reasoning_effort" in hints else None,
        "truncation": "auto" if request.overflow == "drop_turns" else None,
        "user": short_user(request.user),
        **{name: hints.get(name) for name in _LABELS},
        "stream": request.stream or None,
        "store": False,
    }
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def _refuse_unsupported(request: Generate) -> None:
    sampling, prompt = request.sampling, request.prompts[0]
    asked = [name for name in _UNSUPPORTED_SAMPLING if getattr(sampling, name)]
    # A seed that the gateway drew reproduces nothing for the client, so it may be dropped.
    if sampling.seed is not None and not sampling.seed_drawn:
        asked.append("seed")
    asked += [name for name in _UNSUPPORTED_FIELDS if getattr(request, name)]
    asked += [name for name in _UNSUPPORTED_STOPPING if getattr(request.stopping, name)]
    # One request of the API gives one answer.
    if request.n > 1 or len(request.prompts) > 1:
        asked.append("n")
    if isinstance(prompt, ChatPrompt) and prompt.template != TemplateOptions():
        asked.append("template_options")
    if asked:
        raise inexpressible(asked[0])


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """The items of a message: calls of tools are items of their own."""
    if message.role == "tool":
        output = _content(message, "input_text")
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": output}
        return
    if message.content is not None or message.reasoning or not message.tool_calls:
        kind = "output_text" if message.role == "assistant" else "input_text"
        yield {"role": message.role, "content": _content(message, kind)}
    for call in message.tool_calls:
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _content(message: Message, kind: str) -> str | list[dict[str, Any]]:
    content = message.content or ""
    if isinstance(content, str) and not message.reasoning:
        return content
    parts: tuple[Part, ...] = content if isinstance(content, tuple) else (TextPart(content),) if content else ()
    if message.reasoning:
        # The API takes reasoning that its own server has encrypted, and no other.
        parts = (TextPart(f"<thinking>\n{message.reasoning}\n</thinking>"), *parts)
    return [_part(part, kind) for part in parts]


def _part(part: Part, kind: str) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "input_image", "image_url": image_url(part), **detail}
    return {"type": kind, "text": part.text}


def _tool(tool: Tool) -> dict[str, Any]:
    # Without `strict` the API's functions are strict, those of all others are not.
    fields = {"type": "function", "name": tool.name, "parameters": tool.parameters or _NO_PARAMETERS}
    return fields | {"strict": bool(tool.strict)} | ({"description": tool.description} if tool.description else {})


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None or choice.mode in ("none", "auto", "required"):
        return None if choice is None else choice.mode
    tools = [{"type": "function", "name": name} for name in choice.names]
    if choice.mode == "named":
        return tools[0]
    return {"type": "allowed_tools", "mode": "required" if choice.required else "auto", "tools": tools}


def _text(grammar: Grammar | None, verbosity: str | None) -> dict[str, Any] | None:
    """The options of the text."""
    options: dict[str, Any] = {} if verbosity is None else {"verbosity": verbosity}
    if grammar is None:
        return options or None
    if grammar.kind == "json_object":
        return {"format": {"type": "json_object"}} | options
    # The API has schemas alone: neither regular expressions nor other grammars.
    if grammar.kind != "json_schema":
        raise inexpressible("grammar")
    # A name is required; grammars of other protocols have none.
    format = {"type": "json_schema", "name": grammar.name or "answer", "schema": grammar.value}
    return {"format": format | ({} if grammar.strict is None else {"strict": grammar.strict})} | options
