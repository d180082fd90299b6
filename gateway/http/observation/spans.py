"""What the spans of a request say, by OpenTelemetry's semantic conventions for HTTP servers and generative AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar.types import HTTPScope

from gateway.http.accounting import RequestAccount
from gateway.observability.traces import Attributes, Trace
from schemas.ir import ChatPrompt, Embed, FinishReason, Generate, Request

_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALL: "tool_calls",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""`gen_ai.response.finish_reasons`; all others are "stop"."""
_CLIENTS_DOING = frozenset({"client_gone", "cancelled"})


def request_attributes(headers: Mapping[str, str], scope: HTTPScope, route: str) -> Attributes:
    """What is known of a request when its headers have arrived."""
    client, server = scope.get("client"), scope.get("server")
    return _known(
        {
            "http.request.method": scope["method"],
            "http.route": route,
            # `path` is what Litestar has left of it for its own routing.
            "url.path": scope["raw_path"].decode("latin-1").partition("?")[0],
            "url.scheme": scope["scheme"],
            "client.address": client[0] if client else None,
            "server.address": server[0] if server else None,
            "server.port": server[1] if server else None,
            "user_agent.original": headers.get("user-agent"),
        }
    )


def operation(request: Request | None) -> str:
    """`gen_ai.operation.name`; empty for a request that runs no model."""
    if isinstance(request, Embed):
        return "embeddings"
    if not isinstance(request, Generate):
        return ""
    return "chat" if any(isinstance(prompt, ChatPrompt) for prompt in request.prompts) else "text_completion"


def span_name(request: Request | None, model: str) -> str:
    """The name of a span that is about a model's work: operation and model."""
    return f"{operation(request) or 'ask'} {model}"


def end_trace(trace: Trace, account: RequestAccount) -> None:
    """End the spans of a request, whose account is closed."""
    target, status, outcome = account.target, account.status or 499, account.outcome
    model = target.model if target is not None else ""
    # A wrong request is an error of the client's span, not of this one.
    failed = outcome != "ok" and outcome not in _CLIENTS_DOING and not 400 <= status < 500
    own = _known(
        {
            "http.response.status_code": status,
            "error.type": None if outcome == "ok" else outcome,
            "gen_ai.request.model": account.request.model if account.request is not None else None,
            "gen_ai.response.id": account.request_id,
            "gen_ai.response.time_to_first_chunk": account.first_token,
            "interlingua.backend": target.entity.backend if target is not None else None,
            "interlingua.served_entity": target.entity.name if target is not None else None,
            "interlingua.key": account.key.name if account.key is not None else None,
        }
    )
    trace.end(span_name(account.request, model), own, _answer(account, model), failed=failed)


def _answer(account: RequestAccount, model: str) -> Attributes:
    """What the request asked of the model, and what came back."""
    request, usage = account.request, account.usage
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation(request),
        "gen_ai.request.model": model,
        "gen_ai.response.model": model if usage is not None else None,
        "gen_ai.response.finish_reasons": [_REASONS.get(reason, "stop") for reason in account.finish_reasons] or None,
    }
    if isinstance(request, Generate):
        found |= {
            "gen_ai.request.stream": request.stream,
            "gen_ai.request.max_tokens": request.stopping.max_new_tokens,
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.request.top_p": request.sampling.top_p,
            "gen_ai.request.top_k": request.sampling.top_k,
            "gen_ai.request.seed": request.sampling.seed,
            "gen_ai.request.choice.count": request.n if request.n > 1 else None,
        }
    if usage is not None:
        found |= {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
    return _known(found)


def _known(attributes: Mapping[str, Any]) -> Attributes:
    """The attributes without those that are not known."""
    return {name: value for name, value in attributes.items() if value is not None and value != ""}
