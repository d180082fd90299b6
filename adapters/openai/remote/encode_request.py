"""The internal form to a request for a remote of this protocol, or a refusal: nothing asked for is left out silently.

A client's own request of the same dialect is relayed: its bytes, but for the model's name. Two things are added or
taken out nevertheless, both invisible to the client: the usage is asked for, because every stream of events ends with
one, and a prompt's text is not asked back, because it is known.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Outbound
from adapters.openai.dialects import HINTS, Dialect
from adapters.openai.responses.decode import OPERATION
from adapters.outbound import image_url, inexpressible
from schemas.ir import (
    ChatPrompt,
    Embed,
    Generate,
    Grammar,
    Message,
    Part,
    Prompt,
    Sampling,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)

_FEATURES = {
    "tools": "tools",
    "tool_choice": "tools",
    "response_format": "grammar",
    "echo": "prompt_logprobs",
}
"""The feature for which a field is sent, where that has another name."""


_HINTS = (*HINTS, "user")

raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""An object's fields, each as it was written."""


def is_chat(request: Generate) -> bool:
    """Whether the remote is asked for a chat: a text that wants the chat template is one turn of a user."""
    return isinstance(request.prompts[0], ChatPrompt) or not request.raw_prompt


def write_request(dialect: Dialect, request: Generate) -> Outbound:
    """The request as the remote's own clients would write it.

    Raises:
        schemas.errors.UnsupportedFeature: the dialect cannot say it.
    """
    path = "/chat/completions" if is_chat(request) else "/completions"
    return Outbound(path, write_body(dialect, request, {"model": request.model}))


def write_body(dialect: Dialect, request: Generate, named: dict[str, Any]) -> bytes:
    """The request's JSON; `named` is how it names the model, and what else the remote's kind wants said.

    Raises:
        schemas.errors.UnsupportedFeature: the dialect cannot say it.
    """
    if unsayable := [feature for feature, asked in _unsayable(request).items() if asked]:
        raise inexpressible(unsayable[0])
    if is_of(dialect, request):
        assert request.origin is not None
        return _relayed(dialect, request, request.origin.body, named)
    prompt, fields = _prompt(request), _fields(dialect, request)
    for field in fields:
        if field not in dialect.remote.remote_fields:
            raise inexpressible(_FEATURES.get(field, field))
    return msgspec.json.encode(named | prompt | fields)


def is_of(dialect: Dialect, request: Generate | Embed) -> bool:
    """Whether the client speaks as the remote does, so that what it sent can be passed on."""
    origin = request.origin
    same = origin is not None and (origin.protocol, origin.dialect) == (dialect.protocol, dialect.name)
    return same and origin is not None and bool(origin.body) and origin.operation != OPERATION


def passes_back(dialect: Dialect, request: Generate) -> bool:
    """Whether what the remote answers can be passed on too: nothing in it is for us to say."""
    return is_of(dialect, request) and not request.answer_suffix and (not request.echo or asks_echo(request))


def _unsayable(request: Generate) -> dict[str, bool]:
    """What the protocol has no words for."""
    chat = is_chat(request)
    return {
        "several_prompts": chat and len(request.prompts) > 1,
        "token_prompts": chat and isinstance(request.prompts[0], TokensPrompt),
        "tools": not chat
        and bool(request.tools)
        and (request.tool_choice is None or request.tool_choice.mode != "none"),
        # Of a stream nobody tells where its prompt ends.
        "prompt_logprobs": request.prompt_logprobs and (chat or request.stream),
        "suffix": chat and bool(request.suffix),
        "best_of": (request.best_of or 1) > request.n and (chat or request.stream),
        "grammar": request.grammar is not None and request.grammar.kind == "regex",
        "watermark": request.sampling.watermark,
        "lora_adapters": request.lora_adapter is not None,
    }


def _relayed(dialect: Dialect, request: Generate, body: bytes, named: dict[str, Any]) -> bytes:
    fields: dict[str, Any] = raw_fields(body)
    if "model" not in named:
        fields.pop("model", None)
    fields |= named
    # What our encoder says itself.
    if request.echo and not asks_echo(request):
        fields.pop("echo", None)
    if request.answer_suffix:
        fields.pop("suffix", None)
    if request.stream != (bytes(fields.get("stream", b"null")) == b"true"):
        fields["stream"] = request.stream
    if request.stream and dialect.remote.ask_usage and not request.stream_usage:
        options = msgspec.json.decode(fields.get("stream_options", b"null")) or {}
        fields["stream_options"] = options | {"include_usage": True}
    return msgspec.json.encode(fields)


def asks_echo(request: Generate) -> bool:
    """Whether only the remote can tell the prompt: its log-probabilities, or the text of token ids."""
    known = all(isinstance(prompt, TextPrompt) for prompt in request.prompts)
    return request.prompt_logprobs or (request.echo and not known)


def _prompt(request: Generate) -> dict[str, Any]:
    first = request.prompts[0]
    if isinstance(first, ChatPrompt):
        return {"messages": [_message(message) for message in first.messages]}
    if is_chat(request) and isinstance(first, TextPrompt):
        return {"messages": [{"role": "user", "content": _with_images(first) if first.images else first.text}]}
    prompts = [_raw(prompt) for prompt in request.prompts]
    return {"prompt": prompts[0] if len(prompts) == 1 else prompts}


def _raw(prompt: Prompt) -> str | tuple[int, ...]:
    if isinstance(prompt, ChatPrompt):
        raise inexpressible("chat")
    if isinstance(prompt, TextPrompt):
        if prompt.images:
            raise inexpressible("images")
        return prompt.text
    return prompt.ids


def _fields(dialect: Dialect, request: Generate) -> dict[str, Any]:
    """All that is asked for, under the protocol's names."""
    fields = {
        **_sampling(dialect, request.sampling),
        **_stopping(dialect, request),
        **(_chat_fields(request) if is_chat(request) else _completion_fields(request)),
        "n": request.n if request.n > 1 else None,
        "response_format": _response_format(request.grammar),
        "truncate_prompt_tokens": request.truncate_prompt_tokens,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.stream and dialect.remote.ask_usage else None,
        **_hints(dialect, request),
    }
    unlimited = {"max_tokens": None} if not is_chat(request) and "max_tokens" in dialect.remote.remote_fields else {}
    return unlimited | {name: value for name, value in fields.items() if value is not None}


def _hints(dialect: Dialect, request: Generate) -> dict[str, Any]:
    """What an answer does not depend on is left out where the remote would refuse it."""
    hints = request.hints | {"user": request.user}
    return {name: hint for name, hint in hints.items() if name in _HINTS and name in dialect.remote.remote_fields}


def _sampling(dialect: Dialect, sampling: Sampling) -> dict[str, Any]:
    """The API samples unless told otherwise, so that greedy is a temperature."""
    seed = None if sampling.seed_drawn and "seed" not in dialect.remote.remote_fields else sampling.seed
    if seed is not None and dialect.remote.signed_seed and seed >= 2**63:
        seed -= 2**64
    return {
        "temperature": dialect.remote.greedy_temperature if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "seed": seed,
    }


def _stopping(dialect: Dialect, request: Generate) -> dict[str, Any]:
    stopping = request.stopping
    return {
        dialect.remote.max_tokens_field if is_chat(request) else "max_tokens": stopping.max_new_tokens,
        "min_tokens": stopping.min_new_tokens or None,
        "stop": stopping.stop or None,
        "stop_token_ids": stopping.stop_token_ids or None,
        "ignore_eos": stopping.ignore_eos or None,
        "include_stop_str_in_output": stopping.shows_stop or None,
    }


def _chat_fields(request: Generate) -> dict[str, Any]:
    return {
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _tool_choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
    }


def _completion_fields(request: Generate) -> dict[str, Any]:
    return {
        "logprobs": request.top_logprobs if request.logprobs or request.prompt_logprobs else None,
        "echo": asks_echo(request) or None,
        "suffix": request.suffix,
        "best_of": request.best_of,
    }


def _message(message: Message) -> dict[str, Any]:
    content = message.content
    said = {
        "role": message.role,
        "content": [_part(part) for part in content] if isinstance(content, tuple) else content,
        "name": message.name,
        "tool_calls": [_tool_call(call) for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    return {name: value for name, value in said.items() if value is not None or name == "content"}


def _with_images(prompt: TextPrompt) -> list[dict[str, Any]]:
    return [*map(_part, prompt.images), {"type": "text", "text": prompt.text}]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    detail = {} if part.detail is None else {"detail": part.detail}
    return {"type": "image_url", "image_url": {"url": image_url(part), **detail}}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None or choice.mode in ("none", "auto", "required"):
        return None if choice is None else choice.mode
    tools = [{"type": "function", "function": {"name": name}} for name in choice.names]
    if choice.mode == "named":
        return tools[0]
    mode = "required" if choice.required else "auto"
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _response_format(grammar: Grammar | None) -> dict[str, Any] | None:
    if grammar is None:
        return None
    if grammar.kind == "json_object":
        return {"type": "json_object"}
    strict = {} if grammar.strict is None else {"strict": grammar.strict}
    schema = {"name": grammar.name or "answer", "schema": grammar.value} | strict
    return {"type": "json_schema", "json_schema": schema}
