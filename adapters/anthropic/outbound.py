"""Requests for remotes: the body of a client of the same dialect as it came, every other request encoded from the IR.

What the protocol cannot express is refused, never dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.anthropic.dialects import Dialect
from adapters.anthropic.messages import CONTINUED, write_conversation
from adapters.anthropic.relay import relays, remote_headers
from adapters.base import Outbound
from adapters.formats.closed_schemas import closed
from adapters.outbound import conversation, inexpressible, relayed_body
from schemas.ir import ChatPrompt, Generate, Grammar, Prompt, TemplateOptions, Tool, ToolChoice

DEFAULT_MAX_TOKENS = 4096
"""`max_tokens` where the client set none: the protocol requires the field."""

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_UNSUPPORTED_SAMPLING = ("seed", "min_p", "typical_p", "logit_bias", "watermark", "bad_words", *_PENALTIES)
_UNSUPPORTED_STOPPING = ("min_new_tokens", "stop_token_ids", "ignore_eos")
_UNSUPPORTED_FIELDS = (
    "best_of",
    "echo",
    "suffix",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "lora_adapter",
)
_MODES = {"auto": "auto", "none": "none", "required": "any", "named": "tool"}
"""Our mode of tool choice -> the protocol's `type`."""


def write_request(dialect: Dialect, request: Generate) -> Outbound:
    """The request in the protocol.

    Raises:
        schemas.errors.UnsupportedFeature: the protocol cannot express it.
    """
    origin = request.origin
    if origin is not None and relays(dialect, request):
        fixed = {"model": request.model} | ({"stream": True} if request.stream else {})
        return Outbound("/v1/messages", relayed_body(origin.body, fixed), headers=remote_headers(origin.headers))
    _refuse_unsupported(dialect, request)
    system, turns = write_conversation(conversation(request))
    sampling, stopping = request.sampling, request.stopping
    fields: dict[str, Any] = {
        "model": request.model,
        "max_tokens": stopping.max_new_tokens or DEFAULT_MAX_TOKENS,
        "system": system or None,
        "messages": turns,
        # The API always samples; temperature 0 is the closest to greedy decoding that it has.
        "temperature": 0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_sequences": list(stopping.stop) or None,
        "tools": [_tool(tool) for tool in request.tools] or None,
        # The API refuses a choice without tools.
        "tool_choice": _choice(request.tool_choice, request.parallel_tool_calls) if request.tools else None,
        "metadata": {"user_id": user} if (user := request.user or request.safety_identifier) else None,
        "thinking": request.hints.get("thinking"),
        "output_config": _output_config(request.grammar),
        "stream": request.stream or None,
    }
    body = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    return Outbound("/v1/messages", body, headers=remote_headers())


def _refuse_unsupported(dialect: Dialect, request: Generate) -> None:
    sampling, stopping = request.sampling, request.stopping
    asked = [name for name in _UNSUPPORTED_SAMPLING if getattr(sampling, name)]
    if sampling.seed_drawn:
        # A seed that the gateway drew reproduces nothing for the client, so it may be dropped.
        asked.remove("seed")
    asked += [name for name in _UNSUPPORTED_FIELDS if getattr(request, name)]
    asked += [name for name in _UNSUPPORTED_STOPPING if getattr(stopping, name)]
    # One request of the protocol gives one answer.
    if request.n > 1 or len(request.prompts) > 1:
        asked.append("n")
    # Clamping 2 to 1 would change the answer silently.
    if (sampling.temperature or 0) > dialect.limits.max_temperature:
        asked.append("temperature")
    if not _ends_as_ever(request.prompts[0]):
        asked.append("template_options")
    if asked:
        raise inexpressible(asked[0])


def _ends_as_ever(prompt: Prompt) -> bool:
    """Whether the answer begins where the protocol has it begin: behind the last turn, or within the assistant's."""
    if not isinstance(prompt, ChatPrompt) or prompt.template == TemplateOptions():
        return True
    continues = bool(prompt.messages) and prompt.messages[-1].role == "assistant"
    return continues and prompt.template == CONTINUED


def _output_config(grammar: Grammar | None) -> dict[str, Any] | None:
    """The field that holds the answer to a JSON schema."""
    if grammar is None:
        return None
    # The protocol has schemas alone: neither regular expressions nor JSON of any form.
    if grammar.kind != "json_schema":
        raise inexpressible("grammar")
    # Every object has to be closed, which strict schemas of OpenAI are and others are not.
    schema = closed(grammar.value) if isinstance(grammar.value, dict) else grammar.value
    return {"format": {"type": "json_schema", "schema": schema}}


def _tool(tool: Tool) -> dict[str, Any]:
    # `input_schema` is required, also of a tool without parameters.
    fields = {"name": tool.name, "input_schema": tool.parameters or {"type": "object"}}
    return fields | ({"description": tool.description} if tool.description is not None else {})


def _choice(choice: ToolChoice | None, parallel: bool | None) -> dict[str, Any] | None:
    if choice is None and parallel is None:
        return None
    # OpenAI's `allowed_tools`. Sending only the allowed tools would change the prompt.
    if choice is not None and choice.mode == "allowed":
        raise inexpressible("tools")
    # `disable_parallel_tool_use` is a field of the choice, so a request without a choice gets the default one.
    fields: dict[str, Any] = {"type": "auto" if choice is None else _MODES[choice.mode]}
    if choice is not None and choice.mode == "named":
        fields["name"] = choice.names[0]
    if choice is not None and choice.mode == "none":
        return fields  # it has no other field
    return fields if parallel is None else fields | {"disable_parallel_tool_use": not parallel}
