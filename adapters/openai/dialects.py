"""The dialects of the OpenAI protocol as data: `openai` and `mindie-openai`; `adapters.databricks` adds its own.

Every field can be set in a configuration (`dialect_options`). Code asks for a field, never for a dialect's name.
Sources: openai/openai-openapi:openapi.yaml; MindIE's page "推理接口" (/v1/chat/completions), and for the errors, which
the page leaves open, Ascend/MindIE-LLM:src/server/endpoint.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from adapters import mindie
from adapters.dialect import Bound, Failure, Group
from schemas.ir import FinishReason, Overflow


class Requests(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which fields a request may have, and how they are read.

    Attributes:
        chat_fields: names of the chat fields that are known; None is all fields of the wire struct.
        strict: whether unknown fields are refused.
        roles: roles that a message may have.
        functions: whether tools may have their first, deprecated form (`functions`, `function_call`).
        tool_call_ids: whether a tool's result must name the call that it belongs to.
        overflow: what happens if the prompt and the answer's limit exceed the context.
        empty_content: whether a message may be empty.
        stream_options_need_stream: whether `stream_options` without `stream` is refused.
        echo_only: whether a completion with `echo` may ask for 0 tokens.
        default_models: names, or patterns of names, that mean the default endpoint unless a model has that name. TGI's
            clients must send some name and send these: huggingface_hub "tgi" or "dummy", huggingface.js the URL.
    """

    chat_fields: tuple[str, ...] | None = None
    strict: bool = False
    roles: tuple[str, ...] = ("developer", "system", "user", "assistant", "tool", "function")
    functions: bool = True
    tool_call_ids: bool = True
    overflow: Overflow = "refuse"
    empty_content: bool = True
    stream_options_need_stream: bool = True
    echo_only: bool = True
    default_models: tuple[str, ...] = ("", "tgi", "dummy", "http://*", "https://*")


class Limits(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Intervals, counts, lengths and patterns. None is no limit.

    Attributes:
        bounds: intervals of the numeric parameters.
        max_top_logprobs: largest `top_logprobs` of a chat.
        max_logprobs: largest `logprobs` of a completion.
        max_stop: stop sequences in one request.
        max_tools: tools in one request.
        max_properties: top-level properties of one tool's parameters.
        max_message_chars: characters of text in all messages of a request.
        max_iter_times: tokens that an answer is silently cut to.
        model_pattern: regular expression that a model's name must match.
    """

    bounds: tuple[Bound, ...]
    max_top_logprobs: int = 20
    max_logprobs: int = 5
    max_stop: int | None = 4
    max_tools: int = 128
    max_properties: int | None = None
    max_message_chars: int | None = None
    max_iter_times: int | None = None
    model_pattern: str | None = None


class Defaults(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of fields that a request does not set.

    Attributes:
        chat_max_tokens: `max_tokens` of a chat; None is all that the context leaves.
        completion_max_tokens: `max_tokens` of a completion; None is all that the context leaves.
        stream_default: whether answers are streamed.
        raw_prompts: whether a completion's prompt skips the chat template.
    """

    chat_max_tokens: int | None = None
    completion_max_tokens: int | None = 16
    stream_default: bool = False
    raw_prompts: bool = True


class Answers(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of answers and streams.

    Attributes:
        id_prefix: stands before the request's id in a chat's answer.
        stream_id_prefix: the same for a streamed chat; None is `id_prefix`.
        completion_id_prefix: the same for a completion.
        fingerprint: `system_fingerprint`; "" omits the field.
        owned_by: owner of every listed model.
        refusal: whether a message without a refusal has `"refusal": null`.
        annotations: whether a whole message has `"annotations": []`.
        logprobs: whether choices have the field `logprobs`.
        role_in_every_delta: whether every delta has one token and the role, instead of a first chunk for the role.
        last_delta_content: whether the last delta of a text is `{"content": ""}` instead of `{}`.
        usage_on_every_chunk: whether every chunk has the usage so far (exact in the last), instead of a usage chunk.
        usage_details: whether the usage has cached and reasoning tokens where they are known.
    """

    id_prefix: str = "chatcmpl-"
    stream_id_prefix: str | None = None
    completion_id_prefix: str = "cmpl-"
    fingerprint: str = "fp_interlingua"
    owned_by: str = "interlingua"
    refusal: bool = True
    annotations: bool = True
    logprobs: bool = True
    role_in_every_delta: bool = False
    last_delta_content: bool = False
    usage_on_every_chunk: bool = False
    usage_details: bool = True


class Wording(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish reasons and errors in the dialect's words.

    Attributes:
        finish: our finish reason -> its `finish_reason`.
        failures: `GatewayError.kind` -> the answer.
        error_body: the form of an error's JSON.
        unknown_field: message that refuses an unknown field; `{name}` stands for the field.
    """

    finish: dict[str, str]
    failures: dict[str, Failure]
    error_body: Literal["openai", "mindie"] = "openai"
    unknown_field: str = "Unrecognized request argument supplied: {name}"


class Remote(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a remote server of the dialect is called and understood.

    Attributes:
        reasons: its `finish_reason` -> our finish reason; any other word is a failure.
        remote_fields: names of the fields that it accepts.
        max_tokens_field: its name for a chat's `max_tokens`.
        ask_usage: whether a stream is asked for its usage (`stream_options.include_usage`).
        greedy_temperature: the temperature that makes it decode greedily.
        signed_seed: whether its seeds are signed 64-bit integers.
    """

    reasons: dict[str, FinishReason]
    remote_fields: tuple[str, ...]
    max_tokens_field: str = "max_tokens"
    ask_usage: bool = True
    greedy_temperature: float = 0.0
    signed_seed: bool = True


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol. The groups' defaults are OpenAI's.

    `protocol` is the name of the adapter that the dialect belongs to, for a request's origin.
    """

    name: str
    protocol: str = "openai"
    requests: Requests = Requests()
    limits: Limits
    defaults: Defaults = Defaults()
    answers: Answers = Answers()
    wording: Wording
    remote: Remote


# Seeds: OpenAI's are int64, those of the IR and MindIE uint64.
I63 = 2**63
"""One more than the largest signed 64-bit integer."""

U64 = 2**64 - 1
"""The largest unsigned 64-bit integer."""

# --- tables -------------------------------------------------------------------------------------------------------

PENALTIES = (Bound("presence_penalty", -2, 2), Bound("frequency_penalty", -2, 2))
EXTENSIONS = (
    # vLLM: -1 turns it off.
    Bound("top_k", -1),
    Bound("min_p", 0, 1),
    Bound("typical_p", 0, 1, open_low=True),
    Bound("repetition_penalty", 0, open_low=True),
    Bound("min_tokens", 0),
    Bound("truncate_prompt_tokens", 1),
)
"""Extensions that OpenAI does not have, with the ranges of vLLM and TGI."""

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
    # The path exists, so that its code would mislead; OpenAI has none for an id.
    "object_not_found": Failure(404, _INVALID),
    "method_not_allowed": Failure(405, _INVALID, "method_not_supported"),
    "conflict": Failure(409, _INVALID, "conflict"),
    "body_too_large": Failure(413, _INVALID, "request_too_large"),
    "unsupported_media_type": Failure(415, _INVALID, "unsupported_media_type"),
    "request_timeout": Failure(408, _INVALID, "request_timeout"),
    "rate_limited": Failure(429, "rate_limit_error", "rate_limit_exceeded"),
    "overloaded": Failure(503, _SERVER, "server_is_overloaded"),
    "shutting_down": Failure(503, _SERVER, "server_shutdown"),
    # `final` marks errors after which the gateway has already tried what a retry could do, or the time is spent:
    # another attempt of the SDK (two by default) would only repeat a long generation.
    "backend_failed": Failure(502, _SERVER, "backend_failed", final=True),
    "backend_unavailable": Failure(503, _SERVER, "backend_unavailable"),
    "timeout": Failure(504, _SERVER, "timeout", final=True),
    "incomplete": Failure(502, _SERVER, "incomplete_generation", final=True),
    "internal": Failure(500, _SERVER, "internal_error", final=True),
}

FINISH = {
    "eos": "stop",
    "stop_string": "stop",
    "stop_token": "stop",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "content_filter",
}
# MindIE's page has "eos_token" (a normal end), "length", and "stop_sequence" for a cancelled or failed request.
_MINDIE_FINISH = {
    "eos": "eos_token",
    "stop_string": "eos_token",
    "stop_token": "eos_token",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "eos_token",
}

# For many servers: TGI's "eos_token", Databricks' "end_turn" and "tool_use", "function_call" from before tools.
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
"""The finish reasons that servers of this protocol write, OpenAI's own and those of others -> ours."""

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
"""Fields on which no answer depends; they are passed on in `Generate.hints`."""

# Sent to a remote only if the client set them: a remote that does not know them refuses or ignores them itself.
_VLLM_FIELDS = (
    *("top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids", "bad_words"),
    *("include_stop_str_in_output", "truncate_prompt_tokens", "add_generation_prompt", "continue_final_message"),
)

OPENAI = Dialect(
    name="openai",
    limits=Limits(bounds=_OPENAI_BOUNDS),
    wording=Wording(finish=FINISH, failures=_OPENAI_FAILURES),
    remote=Remote(reasons=REASONS, remote_fields=(*_STANDARD_FIELDS, *HINTS, *_VLLM_FIELDS)),
)

WITH_RESPONSES = replace(OPENAI, remote=replace(OPENAI.remote, max_tokens_field="max_completion_tokens"))
"""Of servers that have the Responses API, too: OpenAI's reasoning models refuse `max_tokens` in chats."""


def _mindie(name: str, low: float, high: float, *, open_low: bool) -> Bound:
    interval = f"{'(' if open_low else '['}{low}, {high}]"
    message = f"Parameter {name} must be in {interval}, got {{value}}."
    return Bound(name, low, high, open_low=open_low, message=message)


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
    requests=Requests(
        # Beside the page's fields: its role `tool` needs tools, and MindIE takes stop sequences.
        chat_fields=(*_MINDIE_FIELDS, "n", "stop", "tools", "tool_choice"),
        roles=("system", "user", "assistant", "tool"),
        functions=False,
        tool_call_ids=False,
        # MindIE's page: a request ends at the maximum length of a sequence, whatever it asks for.
        overflow="truncate",
        empty_content=False,
    ),
    limits=Limits(
        bounds=(
            _mindie("temperature", 0.0, 2.0, open_low=True),
            _mindie("top_p", 0.0, 1.0, open_low=True),
            _mindie("presence_penalty", -2.0, 2.0, open_low=False),
            _mindie("frequency_penalty", -2.0, 2.0, open_low=False),
            # MindIE's page: (0, 18446744073709551615].
            _mindie("seed", 0, U64, open_low=True),
            _mindie("max_tokens", 0, U64, open_low=True),
            Bound("n", 1, 1, message="Parameter n must be 1, got {value}."),
        ),
        max_stop=1024,
        max_message_chars=512 * 1024,
        # 1 to 256 characters, a letter or digit at both ends.
        model_pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?",
    ),
    defaults=Defaults(completion_max_tokens=None),
    answers=Answers(
        stream_id_prefix="",
        fingerprint="",
        refusal=False,
        annotations=False,
        logprobs=False,
        role_in_every_delta=True,
        usage_details=False,
    ),
    wording=Wording(finish=_MINDIE_FINISH, failures=mindie.FAILURES, error_body="mindie"),
    remote=Remote(
        # MindIE ends a failed generation with "stop_sequence". "invalid flag" is none of our reasons.
        reasons={word: reason for word, reason in REASONS.items() if word != "stop_sequence"},
        remote_fields=(*_MINDIE_FIELDS, "stop", "tools", "tool_choice"),
        ask_usage=False,
        # MindIE refuses a temperature of 0.
        greedy_temperature=0.001,
        signed_seed=False,
    ),
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (OPENAI, MINDIE)}
