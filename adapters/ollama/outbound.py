"""Requests for remotes: the body of a client of the same dialect, every other request encoded from the IR.

What the protocol cannot express is refused, never dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Outbound
from adapters.ollama.dialects import Dialect
from adapters.ollama.messages import write_images, write_messages
from adapters.outbound import has_body_for, inexpressible, relayed_body
from schemas.ir import ChatPrompt, Embed, Generate, Grammar, Sampling, Stopping, TextPrompt, Tool

_UNSUPPORTED_SAMPLING = ("logit_bias", "watermark", "bad_words")
_UNSUPPORTED_STOPPING = ("min_new_tokens", "stop_token_ids", "ignore_eos", "shows_stop")
_UNSUPPORTED_FIELDS = ("best_of", "echo", "prompt_logprobs", "truncate_prompt_tokens", "lora_adapter")
_EFFORTS: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
}
"""OpenAI's word for an effort -> the value of `think`."""


def relays(dialect: Dialect, request: Generate | Embed) -> bool:
    """Whether client and remote speak the same dialect, so that body and answer are relayed."""
    return has_body_for("ollama", dialect.name, request)


def write_request(dialect: Dialect, request: Generate) -> Outbound:
    """The request in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
    """
    origin = request.origin
    if origin is not None and relays(dialect, request):
        fixed = {"model": request.model, "stream": request.stream}
        return Outbound(f"/api/{origin.operation}", relayed_body(origin.body, fixed))
    _refuse_unsupported(request)
    path, prompt = _prompt(request)
    fields = {
        "model": request.model,
        **prompt,
        # Without the field Ollama streams.
        "stream": request.stream,
        "format": _format(request.grammar),
        "options": _options(request.sampling, request.stopping) or None,
        "think": _think(request),
        # Without the field Ollama leaves out the oldest messages of a prompt that is too long, and says nothing.
        "truncate": None if request.overflow == "drop_turns" else False,
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
    }
    return Outbound(path, msgspec.json.encode({name: value for name, value in fields.items() if value is not None}))


def write_embed(dialect: Dialect, request: Embed) -> Outbound:
    """The request for embeddings in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
    """
    origin = request.origin
    if origin is not None and relays(dialect, request):
        return Outbound(f"/api/{origin.operation}", relayed_body(origin.body, {"model": request.model}))
    if request.instruction:
        raise inexpressible("instruction")
    texts = [given.text for given in request.inputs if isinstance(given, TextPrompt)]
    if len(texts) < len(request.inputs):
        raise inexpressible("token_prompts")
    dimensions = {} if request.dimensions is None else {"dimensions": request.dimensions}
    return Outbound("/api/embed", msgspec.json.encode({"model": request.model, "input": texts} | dimensions))


def _refuse_unsupported(request: Generate) -> None:
    sampling, stopping = request.sampling, request.stopping
    asked = [name for name in _UNSUPPORTED_SAMPLING if getattr(sampling, name)]
    asked += [name for name in _UNSUPPORTED_FIELDS if getattr(request, name)]
    asked += [name.replace("shows_stop", "include_stop") for name in _UNSUPPORTED_STOPPING if getattr(stopping, name)]
    # One request of the protocol gives one answer.
    if request.n > 1 or len(request.prompts) > 1:
        asked.append("n")
    if request.tools and request.parallel_tool_calls is False:
        asked.append("parallel_tool_calls")
    # The model decides whether it calls a tool, and which one.
    if request.tool_choice is not None and request.tool_choice.mode not in ("auto", "none"):
        asked.append("tool_choice")
    if asked:
        raise inexpressible(asked[0])


def _prompt(request: Generate) -> tuple[str, dict[str, Any]]:
    """The path for a request, and the fields with its prompt."""
    prompt = request.prompts[0]
    if isinstance(prompt, ChatPrompt):
        return "/api/chat", {"messages": write_messages(prompt.messages), "tools": _tools(request)}
    if not isinstance(prompt, TextPrompt):
        raise inexpressible("token_prompts")
    return "/api/generate", {
        "prompt": prompt.text,
        "suffix": request.suffix,
        # A suffix needs the model's own template.
        "raw": (request.raw_prompt and request.suffix is None) or None,
        "images": write_images(prompt.images) or None,
    }


def _tools(request: Generate) -> list[dict[str, Any]] | None:
    """The tools; none if none may be called."""
    if request.tool_choice is not None and request.tool_choice.mode == "none":
        return None
    return [_tool(tool) for tool in request.tools] or None


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.parameters or {"type": "object", "properties": {}}}
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": function | described}


def _format(grammar: Grammar | None) -> Any:
    if grammar is None:
        return None
    if grammar.kind not in ("json_object", "json_schema"):
        raise inexpressible("grammar")
    return "json" if grammar.kind == "json_object" else grammar.value


def _options(sampling: Sampling, stopping: Stopping) -> dict[str, Any]:
    fields = {
        "temperature": 0 if sampling.greedy else sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        # The IR's penalties look at all tokens, Ollama's at the last 64 by default.
        "repeat_last_n": -1 if _penalises(sampling) else None,
        # The same 64 bits as a signed number, as Ollama's type is.
        "seed": _signed(sampling.seed),
        "num_predict": stopping.max_new_tokens,
        "stop": list(stopping.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _penalises(sampling: Sampling) -> bool:
    return any((sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty))


def _signed(seed: int | None) -> int | None:
    return seed - 2**64 if seed is not None and seed >= 2**63 else seed


def _think(request: Generate) -> bool | str | None:
    """The value of `think` for the effort that the client asked for."""
    effort, thinking = request.hints.get("reasoning_effort"), request.hints.get("thinking")
    if isinstance(effort, str):
        return _EFFORTS.get(effort, effort)
    return bool(thinking.get("type") != "disabled") if isinstance(thinking, dict) else None
