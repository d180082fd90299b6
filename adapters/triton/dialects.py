"""Triton's dialects as data: every knob of the protocol that is not the same everywhere.

`triton` speaks as Triton's HTTP server in front of its vLLM backend, `mindie-triton` as MindIE's Triton endpoints.
Sources: triton-inference-server/server:src/http_server.cc and docs/protocol/extension_generate.md,
triton-inference-server/vllm_backend:src/utils/request.py, and
Ascend/MindIE-LLM:src/server/endpoint/single_req_infer_interface/single_req_triton_text_infer_interface.cpp.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.ir import FinishReason


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request parameter: its type, and the interval its value must lie in (`open_…`: without the bound itself).

    `remote` False: we honour it, other servers of the dialect ignore it, so it cannot be asked of them.
    """

    type: Literal["int", "float", "bool", "string", "strings", "ints", "biases", "grammar"]
    least: float | None = None
    most: float | None = None
    open_least: bool = False
    open_most: bool = False
    remote: bool = True


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table.

    Attributes:
        name: what a configuration calls it.
        rules: whose rules a generate body is read by: Triton's (ordered pairs, members are tensors or parameters) or
            MindIE's (an object; null and unknown members are ignored).
        parameters: the parameters it knows. Others are kept in `extra`.
        numbers_in_strings: whether "0.5" counts as 0.5; vLLM's backend casts, and its own sample client relies on it.
        default_max_tokens: tokens to generate if the client does not say; None = as far as the context reaches.
        unbounded_max_tokens: what is sent to a remote for "as far as the context reaches", which has no spelling.
        max_tokens_name: the parameter that is sent to a remote.
        default_temperature: the temperature if the client does not say.
        always_samples: whether sampling is on unless the temperature is 0.
        exclude_input_by_default: whether `text_output` is the completion alone unless the client says otherwise.
        id_pattern: what an `id` must match.
        bad_id: the words for one that does not.
        always_id: whether an answer without a requested `id` carries ours.
        model_version: the version that answers name.
        sorted_keys: whether response members are sorted by name.
        details: whether `parameters.details` asks for a `details` member (MindIE) that ends with the finish reason.
        frame_prefix: what precedes the JSON of a frame.
        full_text: whether every frame carries the text so far (MindIE's `fullTextEnabled`).
        finish_reasons: the words for why a choice ended.
        unfinished: the word for a choice that has not.
        ends: what a remote's words mean; others are failures.
        finish_reason_output: whether remotes tell the finish reason. If not, a clean end of a stream counts as its end.
        abort_on_error: whether the connection is reset after an in-stream error, for clients that ignore the frame.
        malformed: the words for a body that is not JSON.
        type_error: the words for a parameter of a wrong type.
        range_error: the words for a parameter out of its interval.
        statuses: HTTP status by kind of error.
        error_types: `error_type` by HTTP status; empty = no such member.
        max_input_bytes: the most that all inputs of a request may take up.
    """

    name: str
    rules: Literal["triton", "mindie"] = "triton"
    parameters: dict[str, Parameter]
    numbers_in_strings: bool = True
    default_max_tokens: int | None = 16
    unbounded_max_tokens: int = 1 << 20
    max_tokens_name: str = "max_tokens"
    default_temperature: float | None = 1.0
    always_samples: bool = True
    exclude_input_by_default: bool = True
    id_pattern: str | None = None
    bad_id: str = "Unable to parse 'id'"
    always_id: bool = False
    model_version: str | None = "1"
    sorted_keys: bool = True
    details: bool = False
    frame_prefix: str = "data: "
    full_text: bool = False
    finish_reasons: dict[FinishReason, str]
    unfinished: str = "None"
    ends: dict[str, FinishReason]
    finish_reason_output: bool = True
    abort_on_error: bool = False
    malformed: str = "failed to parse the request JSON buffer: {reason}"
    type_error: str = "parameter '{name}' must be of type {type}"
    range_error: str = "parameter '{name}' must be in {interval}, got {value}"
    statuses: dict[str, int]
    error_types: dict[int, str] = {}
    max_input_bytes: int = 1 << 26


_INT32 = (1 << 31) - 1
_UINT64 = (1 << 64) - 1

_VLLM: dict[str, Parameter] = {
    "max_tokens": Parameter("int", least=1, most=_INT32),
    "max_new_tokens": Parameter("int", least=1, most=_INT32),
    "min_tokens": Parameter("int", least=0, most=_INT32),
    "temperature": Parameter("float", least=0),
    "top_p": Parameter("float", least=0, most=1, open_least=True),
    "top_k": Parameter("int", least=-1, most=_INT32),
    "min_p": Parameter("float", least=0, most=1),
    "repetition_penalty": Parameter("float", least=0, open_least=True),
    "presence_penalty": Parameter("float", least=-2, most=2),
    "frequency_penalty": Parameter("float", least=-2, most=2),
    "logit_bias": Parameter("biases"),
    "seed": Parameter("int", least=-1, most=_UINT64),
    "n": Parameter("int", least=1, most=128),
    "best_of": Parameter("int", least=1, most=128),
    "stop": Parameter("strings"),
    "stop_words": Parameter("strings"),
    "stop_token_ids": Parameter("ints", least=0, most=_INT32),
    "include_stop_str_in_output": Parameter("bool"),
    "ignore_eos": Parameter("bool"),
    "bad_words": Parameter("strings"),
    "use_beam_search": Parameter("bool"),
    "truncate_prompt_tokens": Parameter("int", least=1, most=_INT32),
    "logprobs": Parameter("int", least=0, most=20),
    "prompt_logprobs": Parameter("int", least=0, most=20),
    "structured_outputs": Parameter("grammar"),
    "guided_decoding": Parameter("grammar"),
    "lora_name": Parameter("string"),
}

_MINDIE: dict[str, Parameter] = {
    "max_new_tokens": Parameter("int", least=0, most=_INT32, open_least=True),
    "temperature": Parameter("float", least=0, open_least=True),
    # MindIE's Triton endpoint takes 0 as "off", its TGI endpoint does not (AssignTopK, allowLowerBound).
    "top_k": Parameter("int", least=0, most=_INT32),
    # "absent means 1.0, but 1.0 may not be sent"
    "top_p": Parameter("float", least=0, most=1, open_least=True, open_most=True),
    "typical_p": Parameter("float", least=0, most=1, open_least=True),
    "do_sample": Parameter("bool"),
    "seed": Parameter("int", least=0, most=_UINT64),
    "repetition_penalty": Parameter("float", least=0, open_least=True),
    "watermark": Parameter("bool"),
    "details": Parameter("bool"),
    "priority": Parameter("int", least=1, most=5),
    "timeout": Parameter("int", least=0, most=65535, open_least=True),
    "batch_size": Parameter("int", least=0, most=_INT32, open_least=True),
    # MindIE's TGI endpoint has these, its Triton endpoint drops them without a word.
    "stop": Parameter("strings", remote=False),
    "truncate": Parameter("int", least=0, most=_INT32, open_least=True, remote=False),
    "adapter_id": Parameter("string", remote=False),
}

# TRITONSERVER_Error codes and their statuses: INVALID_ARG 400, NOT_FOUND 404, UNAVAILABLE 503, UNSUPPORTED 501,
# INTERNAL 500. There is none for "too many requests": a rate limit is UNAVAILABLE.
_TRITON_STATUSES = {
    "invalid_request": 400,
    "malformed_body": 400,
    "unsupported": 501,
    "context_length": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "model_not_found": 404,
    "route_not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "request_timeout": 408,
    "rate_limited": 503,
    "overloaded": 503,
    "shutting_down": 503,
    "backend_failed": 500,
    "backend_unavailable": 503,
    "timeout": 503,
    "incomplete": 500,
    "internal": 500,
}

_TRITON = Dialect(
    name="triton",
    parameters=_VLLM,
    finish_reasons={
        FinishReason.EOS: "stop",
        FinishReason.STOP_STRING: "stop",
        FinishReason.STOP_TOKEN: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.TOOL_CALL: "stop",
        FinishReason.CONTENT_FILTER: "content_filter",
    },
    ends={
        "stop": FinishReason.EOS,
        "length": FinishReason.LENGTH,
        "content_filter": FinishReason.CONTENT_FILTER,
    },
    # vLLM's backend puts the prompt in front of whole answers by default. The generate document's own example shows
    # the output alone, litellm shows users whatever comes, and one prompt should give one text in every protocol.
    exclude_input_by_default=True,
    statuses=_TRITON_STATUSES,
)

_MINDIE_TRITON = Dialect(
    name="mindie-triton",
    rules="mindie",
    parameters=_MINDIE,
    numbers_in_strings=False,
    default_max_tokens=20,
    unbounded_max_tokens=_INT32,
    max_tokens_name="max_new_tokens",
    default_temperature=None,
    always_samples=False,
    id_pattern="[A-Za-z0-9_-]{1,256}",
    bad_id="The id can contain only digits, letters, underscores(_), hyphens(-) and no more than 256 words in length.",
    always_id=True,
    model_version=None,
    sorted_keys=False,
    details=True,
    frame_prefix="data:",  # no space, as MindIE writes it here and nowhere else
    finish_reasons={
        FinishReason.EOS: "eos_token",
        FinishReason.STOP_STRING: "eos_token",
        FinishReason.STOP_TOKEN: "eos_token",
        FinishReason.LENGTH: "length",
        FinishReason.TOOL_CALL: "eos_token",
        FinishReason.CONTENT_FILTER: "stop_sequence",  # MindIE's word for everything that was cut off
    },
    ends={"eos_token": FinishReason.EOS, "length": FinishReason.LENGTH},
    malformed="Failed to parse request context to json",
    type_error="{name} must be {type} type.",
    range_error="Parameter {name} must be in {interval}, got {value}.",
    statuses=_TRITON_STATUSES
    | {
        "invalid_request": 422,
        "malformed_body": 422,
        "unsupported": 422,
        "context_length": 422,
        "rate_limited": 429,
        "backend_failed": 424,
        "timeout": 500,
    },
    error_types={
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFoundError",
        405: "Method Not Allowed",
        408: "Request Timeout",
        409: "Conflict",
        413: "Payload Too Large",
        415: "Unsupported Media Type",
        422: "Input Validation Error",
        424: "Generation Error",
        429: "Too Many Requests",
        500: "Incomplete Generation",
        503: "Service Unavailable",
    },
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (_TRITON, _MINDIE_TRITON)}
"""By name; the first is the default."""
