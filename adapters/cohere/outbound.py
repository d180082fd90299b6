"""Requests for remotes, encoded from the IR. What the protocol cannot express is refused, never dropped."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from adapters.base import Outbound
from adapters.cohere.dialects import Dialect
from adapters.outbound import conversation, image_url, images_after_results, inexpressible
from schemas.cohere import InputType
from schemas.errors import InvalidRequest
from schemas.ir import Embed, Generate, Grammar, ImagePart, Message, Sampling, TextPrompt, Tool, ToolChoice

EXACT_EFFORTS = ("none", "high")
"""The efforts that are the protocol's "disabled" and "enabled"; others are enabled, too, and named to the client."""
INPUT_TYPE = "input_type"
"""The field of a client's body that is passed on."""
_USUAL_INPUT_TYPE: InputType = "search_document"

_UNSUPPORTED_SAMPLING = ("min_p", "typical_p", "repetition_penalty", "logit_bias", "watermark", "bad_words")
_UNSUPPORTED_STOPPING = ("min_new_tokens", "stop_token_ids", "ignore_eos", "shows_stop")
_UNSUPPORTED_FIELDS = (
    "best_of",
    "echo",
    "suffix",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "lora_adapter",
)


def write_request(dialect: Dialect, request: Generate) -> Outbound:
    """The request in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
    """
    _refuse_unsupported(dialect, request)
    fields = {
        "model": request.model,
        "messages": [_message(message) for message in images_after_results(conversation(request))],
        "stream": request.stream,
        "max_tokens": request.stopping.max_new_tokens,
        "stop_sequences": list(request.stopping.stop) or None,
        **_sampling(dialect, request.sampling),
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _choice(request.tool_choice),
        # Of all tools or of none.
        "strict_tools": any(tool.strict for tool in request.tools) or None,
        "response_format": _format(request.grammar),
        "thinking": _thinking(request),
    }
    return Outbound(
        "/v2/chat", msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    )


def write_embed(request: Embed) -> Outbound:
    """The request for embeddings in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
        schemas.errors.InvalidRequest: the client's `input_type` is not one.
    """
    if request.instruction:
        raise inexpressible("instruction")
    texts = [given.text for given in request.inputs if isinstance(given, TextPrompt)]
    if len(texts) < len(request.inputs):
        raise inexpressible("token_prompts")
    fields = {
        "model": request.model,
        "texts": texts,
        "input_type": _input_type(request.extra.get(INPUT_TYPE)),
        "embedding_types": ["float"],
        "output_dimension": request.dimensions,
        # By default Cohere cuts a text that is too long, and says nothing.
        "truncate": "NONE",
    }
    body = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    return Outbound("/v2/embed", body)


def _input_type(given: Any) -> str:
    """What the embeddings are for: the API requires the field, which other protocols do not have."""
    known = get_args(InputType)
    if given is not None and given not in known:
        message = f"Invalid value for '{INPUT_TYPE}': expected one of {', '.join(known)}."
        raise InvalidRequest(message, param=INPUT_TYPE)
    return str(given or _USUAL_INPUT_TYPE)


def _refuse_unsupported(dialect: Dialect, request: Generate) -> None:
    sampling, stopping = request.sampling, request.stopping
    asked = [name for name in _UNSUPPORTED_SAMPLING if getattr(sampling, name)]
    asked += [name for name in _UNSUPPORTED_FIELDS if getattr(request, name)]
    asked += [name.replace("shows_stop", "include_stop") for name in _UNSUPPORTED_STOPPING if getattr(stopping, name)]
    # One request of the protocol gives one answer.
    if request.n > 1 or len(request.prompts) > 1:
        asked.append("n")
    if request.parallel_tool_calls is False:
        asked.append("parallel_tool_calls")
    # Sending only the tool that is named would change the prompt.
    if request.tool_choice is not None and request.tool_choice.mode in ("named", "allowed"):
        asked.append("tool_choice")
    # Clamping 2 to 1 would change the answer silently.
    if (sampling.temperature or 0) > dialect.max_temperature:
        asked.append("temperature")
    if (sampling.top_k or 0) > dialect.max_k:
        asked.append("top_k")
    penalties = ("frequency_penalty", "presence_penalty")
    asked += [name for name in penalties if not 0 <= (getattr(sampling, name) or 0) <= dialect.max_penalty]
    if asked:
        raise inexpressible(asked[0])


def _sampling(dialect: Dialect, sampling: Sampling) -> dict[str, Any]:
    low, high = dialect.top_p
    return {
        "temperature": 0 if sampling.greedy else sampling.temperature,
        # Both ends of the interval are the closest to "all tokens" and "the most likely token" that the API has.
        "p": None if sampling.top_p is None else min(max(sampling.top_p, low), high),
        "k": sampling.top_k,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "seed": sampling.seed,
    }


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    content = _content(message)
    if message.role != "assistant":
        # The field is required of all others.
        fields |= {"content": content or ""}
    elif message.reasoning and not message.tool_calls:
        text = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
        fields["content"] = [{"type": "thinking", "thinking": message.reasoning}, *text]
    elif content:
        fields["content"] = content
    if message.role == "tool":
        fields["tool_call_id"] = message.tool_call_id or ""
    if message.tool_calls:
        fields |= {"tool_plan": message.reasoning} if message.reasoning else {}
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return fields


def _content(message: Message) -> str | list[dict[str, Any]] | None:
    if message.content is None or isinstance(message.content, str):
        return message.content
    return [
        _image(part) if isinstance(part, ImagePart) else {"type": "text", "text": part.text} for part in message.content
    ]


def _image(image: ImagePart) -> dict[str, Any]:
    detail = {} if image.detail is None else {"detail": image.detail}
    return {"type": "image_url", "image_url": {"url": image_url(image)} | detail}


def _tool(tool: Tool) -> dict[str, Any]:
    # `parameters` is required, also of a tool without any.
    function = {"name": tool.name, "parameters": tool.parameters or {"type": "object", "properties": {}}}
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": function | described}


def _choice(choice: ToolChoice | None) -> str | None:
    return None if choice is None or choice.mode == "auto" else choice.mode.upper()


def _format(grammar: Grammar | None) -> dict[str, Any] | None:
    if grammar is None:
        return None
    if grammar.kind not in ("json_object", "json_schema"):
        raise inexpressible("grammar")
    schema = {"json_schema": grammar.value} if grammar.kind == "json_schema" else {}
    return {"type": "json_object"} | schema


def _thinking(request: Generate) -> dict[str, Any] | None:
    """Whether the model thinks before it answers, and for how many tokens at most."""
    effort, thinking = request.hints.get("reasoning_effort"), request.hints.get("thinking")
    if isinstance(effort, str):
        return {"type": "disabled" if effort == "none" else "enabled"}
    if not isinstance(thinking, dict):
        return None
    if thinking.get("type") == "disabled":
        return {"type": "disabled"}
    budget = thinking.get("budget_tokens")
    return {"type": "enabled"} | ({"token_budget": budget} if isinstance(budget, int) else {})
