"""The dialects of Triton's HTTP protocol as data: `triton` and `mindie-triton`.

`triton` is Triton's HTTP server with its vLLM backend, `mindie-triton` MindIE's Triton endpoints. Every field may be
set by a configuration; no code asks for a dialect's name.
Sources: triton-inference-server/server:src/http_server.cc and docs/protocol/extension_generate.md,
triton-inference-server/vllm_backend:src/utils/request.py, and
Ascend/MindIE-LLM:src/server/endpoint/single_req_infer_interface/single_req_triton_text_infer_interface.cpp.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters.dialect import Bound, Group
from schemas.ir import FinishReason


class Parameter(Bound, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request parameter: its type, and the interval of its value, or of each of its values.

    `remote` False: this server honours it, other servers of the dialect ignore it, so it is never sent to them.
    """

    type: Literal["int", "float", "bool", "string", "strings", "ints", "biases", "grammar"]
    remote: bool = True


class Requests(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a request is read.

    Attributes:
        rules: the rules for bodies of the generate extension: Triton's (ordered pairs; members are tensors or
            parameters) or MindIE's (an object; null and unknown members are ignored).
        parameters: the known parameters, by name. Others are kept in `Generate.extra`.
        numbers_in_strings: whether "0.5" is read as 0.5; vLLM's backend casts, and its own sample client relies on it.
        strict: whether unknown parameters and members are refused.
    """

    rules: Literal["triton", "mindie"] = "triton"
    parameters: dict[str, Parameter]
    numbers_in_strings: bool = True
    strict: bool = False


class Limits(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What values a request may have, beside the intervals of its parameters.

    Attributes:
        id_pattern: regular expression of an `id`.
        max_input_bytes: bytes of all input tensors of a request together.
    """

    id_pattern: str | None = None
    max_input_bytes: int = 1 << 26


class Defaults(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a value is where the request does not say.

    Attributes:
        default_max_tokens: tokens to generate; None generates as far as the context reaches.
        default_temperature: the temperature.
        always_samples: whether sampling is on unless the temperature is 0.
        exclude_input_by_default: whether `text_output` is the completion alone.
    """

    default_max_tokens: int | None = 16
    default_temperature: float | None = 1.0
    always_samples: bool = True
    exclude_input_by_default: bool = True


class Answers(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of answers and streams.

    Attributes:
        always_id: whether the answer to a request without an `id` has one.
        model_version: the version that answers name.
        sorted_keys: whether response members are sorted by name.
        details: whether `parameters.details` asks for a member `details` (MindIE's), which has the finish reason.
        frame_prefix: what precedes the JSON of a frame.
        full_text: whether every frame has the whole text so far (MindIE's `fullTextEnabled`).
        abort_on_error: whether the connection is reset after an error in a stream, for clients that ignore the frame.
    """

    always_id: bool = False
    model_version: str | None = "1"
    sorted_keys: bool = True
    details: bool = False
    frame_prefix: str = "data: "
    full_text: bool = False
    abort_on_error: bool = False


class Wording(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish reasons and errors in the dialect's words.

    Attributes:
        finish_reasons: our finish reason -> the dialect's.
        unfinished: the finish reason of a choice that has not ended.
        bad_id: refuses an `id` that does not match the pattern.
        malformed: refuses a body that is not JSON, for a `{reason}`.
        type_error: refuses the value of the parameter `{name}`, which is not of `{type}`.
        range_error: refuses the `{value}` of the parameter `{name}`, which is not in `{interval}`.
        unknown: refuses the unknown parameter `{name}`.
        statuses: our kind of error -> HTTP status.
        error_types: HTTP status -> `error_type`; a status that is not here has no such member.
    """

    finish_reasons: dict[FinishReason, str]
    unfinished: str = "None"
    bad_id: str = "Unable to parse 'id'"
    malformed: str = "failed to parse the request JSON buffer: {reason}"
    type_error: str = "parameter '{name}' must be of type {type}"
    range_error: str = "parameter '{name}' must be in {interval}, got {value}"
    unknown: str = "unexpected parameter '{name}'"
    statuses: dict[str, int]
    error_types: dict[int, str] = msgspec.field(default_factory=dict)


class Remote(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a remote server of the dialect is called and understood.

    Attributes:
        max_tokens_name: the parameter for the number of tokens to generate.
        unbounded_max_tokens: its value for "as far as the context reaches", which the protocol cannot express.
        ends: the remote's finish reason -> ours; any other is a failure.
        finish_reason_output: whether remotes return the finish reason. If not, a clean end of a stream ends the answer.
    """

    max_tokens_name: str = "max_tokens"
    unbounded_max_tokens: int = 1 << 20
    ends: dict[str, FinishReason]
    finish_reason_output: bool = True


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol. The defaults of all fields are Triton's."""

    name: str
    requests: Requests
    limits: Limits = Limits()
    defaults: Defaults = Defaults()
    answers: Answers = Answers()
    wording: Wording
    remote: Remote


_INT32 = (1 << 31) - 1
_UINT64 = (1 << 64) - 1

_VLLM = (
    Parameter("max_tokens", 1, _INT32, type="int"),
    Parameter("max_new_tokens", 1, _INT32, type="int"),
    Parameter("min_tokens", 0, _INT32, type="int"),
    Parameter("temperature", 0, type="float"),
    Parameter("top_p", 0, 1, open_low=True, type="float"),
    Parameter("top_k", -1, _INT32, type="int"),
    Parameter("min_p", 0, 1, type="float"),
    Parameter("repetition_penalty", 0, open_low=True, type="float"),
    Parameter("presence_penalty", -2, 2, type="float"),
    Parameter("frequency_penalty", -2, 2, type="float"),
    Parameter("logit_bias", type="biases"),
    # -1 means no seed, see `parameters.sampling`.
    Parameter("seed", -1, _UINT64, type="int"),
    Parameter("n", 1, 128, type="int"),
    Parameter("best_of", 1, 128, type="int"),
    Parameter("stop", type="strings"),
    Parameter("stop_words", type="strings"),
    Parameter("stop_token_ids", 0, _INT32, type="ints"),
    Parameter("include_stop_str_in_output", type="bool"),
    Parameter("ignore_eos", type="bool"),
    Parameter("bad_words", type="strings"),
    # Known, so that their types are checked; in `parameters.read` other values than the defaults are refused.
    Parameter("use_beam_search", type="bool"),
    # TensorRT-LLM's. Without beams the last three have no effect.
    Parameter("beam_width", 1, type="int", remote=False),
    Parameter("end_id", 0, _INT32, type="int", remote=False),
    Parameter("pad_id", type="int", remote=False),
    Parameter("length_penalty", type="float", remote=False),
    Parameter("early_stopping", type="bool", remote=False),
    Parameter("truncate_prompt_tokens", 1, _INT32, type="int"),
    Parameter("logprobs", 0, 20, type="int"),
    Parameter("prompt_logprobs", 0, 20, type="int"),
    Parameter("structured_outputs", type="grammar"),
    Parameter("guided_decoding", type="grammar"),
    Parameter("lora_name", type="string"),
)

_MINDIE = (
    Parameter("max_new_tokens", 0, _INT32, open_low=True, type="int"),
    Parameter("temperature", 0, open_low=True, type="float"),
    # MindIE's Triton endpoint takes 0 as "off", its TGI endpoint does not (AssignTopK, allowLowerBound).
    Parameter("top_k", 0, _INT32, type="int"),
    # "absent means 1.0, but 1.0 may not be sent"
    Parameter("top_p", 0, 1, open_low=True, open_high=True, type="float"),
    Parameter("typical_p", 0, 1, open_low=True, type="float"),
    Parameter("do_sample", type="bool"),
    Parameter("seed", 0, _UINT64, type="int"),
    Parameter("repetition_penalty", 0, open_low=True, type="float"),
    Parameter("watermark", type="bool"),
    Parameter("details", type="bool"),
    Parameter("priority", 1, 5, type="int"),
    Parameter("timeout", 0, 65535, open_low=True, type="int"),
    Parameter("batch_size", 0, _INT32, open_low=True, type="int"),
    # MindIE's TGI endpoint has these, its Triton endpoint drops them silently.
    Parameter("stop", remote=False, type="strings"),
    Parameter("truncate", 0, _INT32, open_low=True, remote=False, type="int"),
    Parameter("adapter_id", remote=False, type="string"),
)

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


def _by_name(parameters: tuple[Parameter, ...]) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in parameters}


_TRITON = Dialect(
    name="triton",
    requests=Requests(parameters=_by_name(_VLLM)),
    # vLLM's backend puts the prompt in front of whole answers by default. The generate extension's own example shows
    # the output alone, litellm shows users the whole `text_output`, and one prompt should give one text in every
    # protocol.
    defaults=Defaults(exclude_input_by_default=True),
    wording=Wording(
        finish_reasons={
            FinishReason.EOS: "stop",
            FinishReason.STOP_STRING: "stop",
            FinishReason.STOP_TOKEN: "stop",
            FinishReason.LENGTH: "length",
            FinishReason.TOOL_CALL: "stop",
            FinishReason.CONTENT_FILTER: "content_filter",
        },
        statuses=_TRITON_STATUSES,
    ),
    remote=Remote(
        ends={
            "stop": FinishReason.EOS,
            "length": FinishReason.LENGTH,
            "content_filter": FinishReason.CONTENT_FILTER,
        }
    ),
)

_MINDIE_TRITON = Dialect(
    name="mindie-triton",
    requests=Requests(rules="mindie", parameters=_by_name(_MINDIE), numbers_in_strings=False),
    limits=Limits(id_pattern="[A-Za-z0-9_-]{1,256}"),
    # Greedy unless a parameter of sampling is set, as at its TGI endpoint.
    defaults=Defaults(default_max_tokens=20, default_temperature=None, always_samples=False),
    answers=Answers(
        always_id=True,
        model_version=None,
        sorted_keys=False,
        details=True,
        frame_prefix="data:",  # no space, as MindIE writes it here and nowhere else
    ),
    wording=Wording(
        finish_reasons={
            FinishReason.EOS: "eos_token",
            FinishReason.STOP_STRING: "eos_token",
            FinishReason.STOP_TOKEN: "eos_token",
            FinishReason.LENGTH: "length",
            FinishReason.TOOL_CALL: "eos_token",
            FinishReason.CONTENT_FILTER: "stop_sequence",  # MindIE's word for everything that was cut off
        },
        bad_id=(
            "The id can contain only digits, letters, underscores(_), hyphens(-) and no more than 256 words in length."
        ),
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
    ),
    remote=Remote(
        max_tokens_name="max_new_tokens",
        unbounded_max_tokens=_INT32,
        ends={"eos_token": FinishReason.EOS, "length": FinishReason.LENGTH},
    ),
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (_TRITON, _MINDIE_TRITON)}
"""By name; the first is the default."""
