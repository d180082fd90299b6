"""Requests for remotes: the body of a client of the same dialect, every other request encoded from the IR.

What the protocol cannot express is refused, never dropped. The path is relative to the server's base URL, without the
version of the API.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from adapters.base import Outbound
from adapters.gemini.contents import write_conversation
from adapters.gemini.dialects import Dialect
from adapters.outbound import conversation, has_body_for, inexpressible
from schemas.ir import (
    Embed,
    Generate,
    Grammar,
    Sampling,
    Stopping,
    TextPrompt,
    Tool,
    ToolChoice,
)

_UNSUPPORTED_SAMPLING = (
    "min_p",
    "typical_p",
    "repetition_penalty",
    "logit_bias",
    "watermark",
    "bad_words",
)
_UNSUPPORTED_STOPPING = ("min_new_tokens", "stop_token_ids", "ignore_eos", "shows_stop")
_UNSUPPORTED_FIELDS = (
    "best_of",
    "echo",
    "suffix",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "lora_adapter",
)
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "named": "ANY"}
"""Our mode of tool choice -> the protocol's `mode`."""
_LEVELS = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def relays(dialect: Dialect, request: Generate | Embed) -> bool:
    """Whether client and remote speak the same dialect, so that body and answer are relayed."""
    return has_body_for("gemini", dialect.name, request)


def write_request(dialect: Dialect, request: Generate) -> Outbound:
    """The request in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
    """
    method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
    path = f"{_model(request.model)}:{method}"
    origin = request.origin
    if origin is not None and relays(dialect, request):
        return Outbound(path, origin.body)
    _refuse_unsupported(dialect, request)
    fields = {
        **write_conversation(conversation(request)),
        "tools": [{"functionDeclarations": [_tool(tool) for tool in request.tools]}] if request.tools else None,
        "toolConfig": _tool_config(request.tool_choice),
        "generationConfig": _config(request) or None,
    }
    return Outbound(path, msgspec.json.encode({name: value for name, value in fields.items() if value is not None}))


def write_embed(dialect: Dialect, request: Embed) -> Outbound:
    """The request for embeddings in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
    """
    model = _model(request.model)
    origin = request.origin
    if origin is not None and relays(dialect, request) and origin.operation == "embed":
        return Outbound(f"{model}:embedContent", origin.body)
    if request.instruction:
        raise inexpressible("instruction")
    texts = [given.text for given in request.inputs if isinstance(given, TextPrompt)]
    if len(texts) < len(request.inputs):
        raise inexpressible("token_prompts")
    size = {} if request.dimensions is None else {"outputDimensionality": request.dimensions}
    named = {"model": f"models/{request.model.removeprefix('models/')}"}
    requests = [named | {"content": {"parts": [{"text": text}]}} | size for text in texts]
    return Outbound(f"{model}:batchEmbedContents", msgspec.json.encode({"requests": requests}))


def _model(name: str) -> str:
    # A name may have a resource of its own, such as `tunedModels/x`; other characters are escaped.
    return f"/{quote(name if '/' in name else f'models/{name}', safe='/')}"


def _refuse_unsupported(dialect: Dialect, request: Generate) -> None:
    sampling, stopping = request.sampling, request.stopping
    asked = [name for name in _UNSUPPORTED_SAMPLING if getattr(sampling, name)]
    asked += [name for name in _UNSUPPORTED_FIELDS if getattr(request, name)]
    asked += [name.replace("shows_stop", "include_stop") for name in _UNSUPPORTED_STOPPING if getattr(stopping, name)]
    if len(request.prompts) > 1:
        asked.append("several prompts")
    if request.tools and request.parallel_tool_calls is False:
        asked.append("parallel_tool_calls")
    # Clamping 3 to 2 would change the answer silently.
    if (sampling.temperature or 0) > dialect.limits.max_temperature:
        asked.append("temperature")
    if asked:
        raise inexpressible(asked[0])


def _config(request: Generate) -> dict[str, Any]:
    fields = {
        **_sampling(request.sampling),
        **_stopping(request.stopping),
        "candidateCount": request.n if request.n > 1 else None,
        "responseLogprobs": request.logprobs or None,
        "logprobs": request.top_logprobs or None,
        **_format(request.grammar),
        "thinkingConfig": _thinking(request),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _sampling(sampling: Sampling) -> dict[str, Any]:
    seed = None if sampling.seed_drawn else sampling.seed
    return {
        "temperature": 0 if sampling.greedy else sampling.temperature,
        "topP": sampling.top_p,
        "topK": sampling.top_k,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        # The field has 32 bits, signed: other seeds are folded into them.
        "seed": None if seed is None else seed % 2**31,
    }


def _stopping(stopping: Stopping) -> dict[str, Any]:
    return {"maxOutputTokens": stopping.max_new_tokens, "stopSequences": list(stopping.stop) or None}


def _format(grammar: Grammar | None) -> dict[str, Any]:
    if grammar is None:
        return {}
    if grammar.kind not in ("json_object", "json_schema"):
        raise inexpressible("grammar")
    schema = grammar.value if grammar.kind == "json_schema" else None
    return {"responseMimeType": "application/json", "responseJsonSchema": schema}


def _thinking(request: Generate) -> dict[str, Any] | None:
    """How hard the model is to think; then the answer has its thoughts."""
    effort, thinking = request.hints.get("reasoning_effort"), request.hints.get("thinking")
    if effort == "none" or (isinstance(thinking, dict) and thinking.get("type") == "disabled"):
        return {"thinkingBudget": 0}
    if isinstance(effort, str):
        return {"includeThoughts": True, "thinkingLevel": _LEVELS.get(effort, effort)}
    if not isinstance(thinking, dict):
        return None
    budget = thinking.get("budget_tokens")
    return {"includeThoughts": True} | ({"thinkingBudget": budget} if isinstance(budget, int) else {})


def _tool(tool: Tool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    parameters = {} if tool.parameters is None else {"parametersJsonSchema": tool.parameters}
    return {"name": tool.name} | described | parameters


def _tool_config(choice: ToolChoice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    if choice.mode == "allowed":
        mode = "ANY" if choice.required else "VALIDATED"
    else:
        mode = _MODES[choice.mode]
    names = {"allowedFunctionNames": list(choice.names)} if choice.names else {}
    return {"functionCallingConfig": {"mode": mode} | names}
