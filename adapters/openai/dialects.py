"""What tells the dialects of the OpenAI protocol apart, as data: `openai` and `mindie-openai`; Databricks adds its own.

Every field is a knob that a configuration may set; the code never asks for a dialect's name.
Sources: openai/openai-openapi:openapi.yaml; MindIE's page "推理接口" (/v1/chat/completions), and for the errors, which
the page leaves open, Ascend/MindIE-LLM:src/server/endpoint.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters import mindie
from schemas.ir import FinishReason


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter's interval, the ends out of it where they are `open`.

    `message` refuses a `{value}`; without one it is said in OpenAI's own words.
    """

    name: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    message: str | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the interval."""
        return not self.below(value) and (self.high is None or value <= self.high)

    def below(self, value: float) -> bool:
        """Whether `value` lies under the interval."""
        return self.low is not None and (value < self.low or (self.open_low and value == self.low))


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a kind of error is said. `text` may hold the error's own `{message}`.

    `final` tells the official SDKs not to try again what would fail again (`x-should-retry: false`).
    """

    status: int
    type: str = ""
    code: str | None = None
    text: str = "{message}"
    final: bool = False


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table. Defaults are OpenAI's.

    Attributes:
        name: the dialect's name.
        protocol: the protocol's name, for a request's origin.

        chat_fields: those of a chat that are known; others are unknown fields. None: all that the wire struct holds.
        bounds: parameters' intervals.
        max_top_logprobs: of chats.
        max_logprobs: of completions.
        max_stop: stop sequences of one request.
        max_tools: of one request.
        max_properties: of one tool's parameters, at their top level.
        roles: that messages may have.
        empty_content: whether a message may be empty.
        max_message_chars: over all messages of a request.
        model_pattern: what a model's name looks like.
        chat_max_tokens: `max_tokens` of a chat where it is absent; None is as far as the context reaches.
        completion_max_tokens: the same of a completion.
        echo_only: whether a completion that echoes may ask for 0 tokens.
        max_iter_times: cap on `max_tokens`.
        stream_default: whether an answer streams where the request does not say.
        stream_options_need_stream: whether `stream_options` without `stream` is refused.
        raw_prompts: whether a completion's prompt goes to the model as it is, unless the request says.
        strict: whether unknown fields are refused.
        unknown_field: refuses an unknown `{name}`.

        id_prefix: before the request's id in a chat's answer.
        stream_id_prefix: the same in a stream; None is `id_prefix`.
        completion_id_prefix: the same in a completion.
        fingerprint: `system_fingerprint`; empty leaves it out.
        owned_by: of listed models.
        refusal: whether messages carry `refusal` where there is none.
        logprobs: whether answers have the field.
        role_in_every_delta: instead of a first chunk that tells the role.
        last_delta_content: whether the last delta of a text is `{"content": ""}` instead of `{}`.
        usage_on_every_chunk: the usage so far in all chunks, exact in the last, and no chunk of its own.
        usage_details: whether cached and reasoning tokens are told, where they are known.
        finish: our finish reason -> its word.
        error_body: the form of errors.
        failures: our kind of error -> its words.

        reasons: a remote's word -> our finish reason. Others are failures.
        remote_fields: what a remote may be sent.
        max_tokens_field: what a remote chat's limit is called.
        ask_usage: whether a remote's stream is asked for its usage.
        greedy_temperature: what makes a remote take the likeliest token.
        signed_seed: whether a remote's seeds are signed 64-bit integers.
    """

    name: str
    protocol: str = "openai"

    chat_fields: tuple[str, ...] | None = None
    bounds: tuple[Bound, ...]
    max_top_logprobs: int = 20
    max_logprobs: int = 5
    max_stop: int | None = 4
    max_tools: int = 128
    max_properties: int | None = None
    roles: tuple[str, ...] = ("developer", "system", "user", "assistant", "tool")
    empty_content: bool = True
    max_message_chars: int | None = None
    model_pattern: str | None = None
    chat_max_tokens: int | None = None
    completion_max_tokens: int | None = 16
    echo_only: bool = True
    max_iter_times: int | None = None
    stream_default: bool = False
    stream_options_need_stream: bool = True
    raw_prompts: bool = True
    strict: bool = False
    unknown_field: str = "Unrecognized request argument supplied: {name}"

    id_prefix: str = "chatcmpl-"
    stream_id_prefix: str | None = None
    completion_id_prefix: str = "cmpl-"
    fingerprint: str = "fp_interlingua"
    owned_by: str = "interlingua"
    refusal: bool = True
    logprobs: bool = True
    role_in_every_delta: bool = False
    last_delta_content: bool = False
    usage_on_every_chunk: bool = False
    usage_details: bool = True
    finish: dict[str, str]
    error_body: Literal["openai", "mindie"] = "openai"
    failures: dict[str, Failure]

    reasons: dict[str, FinishReason]
    remote_fields: tuple[str, ...]
    max_tokens_field: str = "max_tokens"
    ask_usage: bool = True
    greedy_temperature: float = 0.0
    signed_seed: bool = True


I63 = 2**63
U64 = 2**64 - 1

PENALTIES = (Bound("presence_penalty", -2, 2), Bound("frequency_penalty", -2, 2))
EXTENSIONS = (
    Bound("top_k", -1),
    Bound("min_p", 0, 1),
    Bound("typical_p", 0, 1, open_low=True),
    Bound("repetition_penalty", 0, open_low=True),
    Bound("min_tokens", 0),
    Bound("truncate_prompt_tokens", 1),
)
"""Nobody's document: vLLM's and TGI's ranges."""

_OPENAI_BOUNDS = (
    Bound("temperature", 0, 2),
    Bound("top_p", 0, 1),
    Bound("n", 1, 128),
    Bound("best_of", 1, 20),
    Bound("max_tokens", 1),
    Bound("max_completion_tokens", 1),
    Bound("seed", -I63, I63 - 1),
    *PENALTIES,
    *EXTENSIONS,
)

_INVALID = "invalid_request_error"
_SERVER = "server_error"

_OPENAI_FAILURES = {
    "invalid_request": Failure(400, _INVALID),
    "malformed_body": Failure(400, _INVALID),
    "unsupported": Failure(400, _INVALID, "unsupported_parameter"),
    "context_length": Failure(400, _INVALID, "context_length_exceeded"),
    "unauthorized": Failure(401, _INVALID, "invalid_api_key"),
    "forbidden": Failure(403, _INVALID, "permission_denied"),
    "model_not_found": Failure(404, _INVALID, "model_not_found"),
    "route_not_found": Failure(404, _INVALID, "unknown_url"),
    "method_not_allowed": Failure(405, _INVALID, "method_not_supported"),
    "conflict": Failure(409, _INVALID, "conflict"),
    "body_too_large": Failure(413, _INVALID, "request_too_large"),
    "unsupported_media_type": Failure(415, _INVALID, "unsupported_media_type"),
    "request_timeout": Failure(408, _INVALID, "request_timeout"),
    "rate_limited": Failure(429, "rate_limit_error", "rate_limit_exceeded"),
    "overloaded": Failure(503, _SERVER, "server_is_overloaded"),
    "shutting_down": Failure(503, _SERVER, "server_shutdown"),
    "backend_failed": Failure(502, _SERVER, "backend_failed", final=True),
    "backend_unavailable": Failure(503, _SERVER, "backend_unavailable"),
    "timeout": Failure(504, _SERVER, "timeout", final=True),
    "incomplete": Failure(502, _SERVER, "incomplete_generation", final=True),
    "internal": Failure(500, _SERVER, "internal_error", final=True),
}

_MINDIE_FAILURES = {kind: Failure(told.status, told.type, text=told.text) for kind, told in mindie.FAILURES.items()}

FINISH = {
    "eos": "stop",
    "stop_string": "stop",
    "stop_token": "stop",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "content_filter",
}
# The page knows "eos_token" (a normal end) and "length"; its "stop_sequence" is a request that was cancelled or failed.
_MINDIE_FINISH = {
    "eos": "eos_token",
    "stop_string": "eos_token",
    "stop_token": "eos_token",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "eos_token",
}

REASONS = {
    "stop": FinishReason.EOS,
    "eos": FinishReason.EOS,
    "eos_token": FinishReason.EOS,
    "EOS_TOKEN": FinishReason.EOS,
    "end_turn": FinishReason.EOS,
    "stop_sequence": FinishReason.STOP_STRING,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALL,
    "tool_use": FinishReason.TOOL_CALL,
    "function_call": FinishReason.TOOL_CALL,
    "content_filter": FinishReason.CONTENT_FILTER,
}
"""What servers of this protocol are known to write, OpenAI's words and others'."""

_STANDARD_FIELDS = (
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stream",
    "stream_options",
    "user",
    "echo",
    "suffix",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
)
HINTS = (
    "reasoning_effort",
    "verbosity",
    "service_tier",
    "metadata",
    "store",
    "prediction",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "chat_template_kwargs",
    "skip_special_tokens",
)
"""Fields that a model may heed and that go to `Generate.hints`."""

_VLLM_FIELDS = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "min_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
)

OPENAI = Dialect(
    name="openai",
    bounds=_OPENAI_BOUNDS,
    finish=FINISH,
    failures=_OPENAI_FAILURES,
    reasons=REASONS,
    remote_fields=(*_STANDARD_FIELDS, *HINTS, *_VLLM_FIELDS),
)


def _mindie(name: str, low: float, high: float, *, open_low: bool) -> Bound:
    interval = f"{'(' if open_low else '['}{low}, {high}]"
    return Bound(name, low, high, open_low, f"Parameter {name} must be in {interval}, got {{value}}.")


_MINDIE_FIELDS = (
    "model",
    "messages",
    "max_tokens",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "temperature",
    "top_p",
    "stream",
)

MINDIE = Dialect(
    name="mindie-openai",
    chat_fields=(*_MINDIE_FIELDS, "n"),
    bounds=(
        _mindie("temperature", 0.0, 2.0, open_low=True),
        _mindie("top_p", 0.0, 1.0, open_low=True),
        _mindie("presence_penalty", -2.0, 2.0, open_low=False),
        _mindie("frequency_penalty", -2.0, 2.0, open_low=False),
        _mindie("seed", 0, U64, open_low=True),
        _mindie("max_tokens", 0, U64, open_low=True),
        Bound("n", 1, 1, message="Parameter n must be 1, got {value}."),
    ),
    roles=("system", "user", "assistant", "tool"),
    empty_content=False,
    max_message_chars=512 * 1024,
    model_pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?",
    completion_max_tokens=None,
    stream_id_prefix="",
    fingerprint="",
    refusal=False,
    logprobs=False,
    role_in_every_delta=True,
    usage_details=False,
    finish=_MINDIE_FINISH,
    error_body="mindie",
    failures=_MINDIE_FAILURES,
    # "stop_sequence" is a failure there, and "invalid flag" is none of our reasons.
    reasons={word: reason for word, reason in REASONS.items() if word != "stop_sequence"},
    remote_fields=_MINDIE_FIELDS,
    ask_usage=False,
    greedy_temperature=0.001,
    signed_seed=False,
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (OPENAI, MINDIE)}
