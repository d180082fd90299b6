"""The dialects of TGI as data: `tgi` (3.x), `tgi-0.9` and `mindie`.

Every field may be set by a configuration; no code asks for a dialect's name.
Sources: huggingface/text-generation-inference:router/src/{lib,server,validation}.rs at 3.3 and v0.9.4; MindIE's page
"TGI流式推理接口", and Ascend/MindIE-LLM:src/server/endpoint for what the page leaves open.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters import mindie
from adapters.dialect import Bound, Failure, Group
from schemas.ir import Overflow


class Requests(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which parameters a request may have and how they are read.

    Attributes:
        parameters: the known parameters; others are unknown fields.
        ineffective: parameters that are accepted and checked, but have no effect.
        list_inputs: whether `inputs` may be a list of parts, which becomes one user message.
        string_stop: whether `stop` may be a string.
        warpers_sample: whether a temperature, top_k, top_p or typical_p enables sampling even if `do_sample` is false.
        details_logprobs: whether `details` requests log-probabilities from the backend. If not, they are null unless
            the backend returns them anyway.
        no_adapter: the `adapter_id` that means none.
        overflow: what happens if the prompt and `max_new_tokens` exceed the context.
        strict: whether unknown fields are refused.
    """

    parameters: tuple[str, ...]
    ineffective: tuple[str, ...] = ()
    list_inputs: bool = False
    string_stop: bool = False
    warpers_sample: bool = True
    details_logprobs: bool = True
    no_adapter: str | None = None
    overflow: Overflow = "refuse"
    strict: bool = False


class Limits(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What values a request may have.

    Attributes:
        bounds: intervals of numeric parameters; a parameter may have several, each with its own message.
        max_images: images in a list of parts.
        max_input_chars: characters of `inputs`, or of one text part.
        max_iter_times: cap on `max_new_tokens`.
        max_stop_sequences: stop sequences of one request.
        max_stop_chars: characters of one stop sequence.
        max_stop_chars_total: characters of all stop sequences together.
        max_best_of: answers to choose from; 1 refuses `best_of`.
        max_top_n_tokens: log-probabilities per position.
        truncate_within_context: whether `truncate` must be less than the model's context length, where that is known.
        adapter_pattern: regular expression of an `adapter_id`.
    """

    bounds: tuple[Bound, ...]
    max_images: int | None = None
    max_input_chars: int | None = None
    max_iter_times: int | None = None
    max_stop_sequences: int = 4
    max_stop_chars: int | None = None
    max_stop_chars_total: int | None = None
    max_best_of: int = 2
    max_top_n_tokens: int = 5
    truncate_within_context: bool = True
    adapter_pattern: str | None = None


class Defaults(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a value is where the request does not say.

    Attributes:
        bare_do_sample: `do_sample` of a request without any `parameters`.
        default_max_new_tokens: None generates as far as the context reaches.
        compat_full_text: `return_full_text` on the route `/`. TGI's is true for models whose pipeline tag is
            "text-generation" or unknown: a whole answer then has the prompt, and a stream of the same request has not.
        always_seeded: whether a seed is drawn, and returned even for a greedy answer.
    """

    bare_do_sample: bool | None = True
    default_max_new_tokens: int | None = None
    compat_full_text: bool = False
    always_seeded: bool = False


class Answers(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of answers and streams.

    Attributes:
        sse_prefix: what precedes the JSON of every frame (axum wrote no space until TGI 2.1).
        stream_errors_as_frames: whether an error of a streamed request has status 200 and is an event, even for an
            invalid request, as TGI itself does it.
        index: whether frames are numbered.
        prompt_count: the key of the prompt's token count in a stream's details.
        scores: whether `logprob` and `special` have values (else null) and special tokens have their names as text.
        full_text: MindIE's "fullTextEnabled": `token.text` is the whole text so far.
        include_stop: whether a matched stop sequence stays in the text.
        prefill: whether `decoder_input_details` asks for the prompt's tokens. If not, `prefill` is `[]`, which is what
            TGI 3 answers for models that it runs with flash attention.
        length_first: whether an answer whose last allowed token ends it anyway has the reason "length".
        ids_only: whether non-streamed answers have the ids of tokens only, and `details` as first member.
        timing_headers: whether non-streamed answers have x-compute-time and similar headers.
        token_headers: whether non-streamed answers have x-prompt-tokens and x-generated-tokens.
        compute_type: x-compute-type; empty leaves the header out.
        compute_seconds: whether x-compute-time is in seconds, not milliseconds.
        info: the form of `/info`.
    """

    sse_prefix: str = "data: "
    stream_errors_as_frames: bool = False
    index: bool = True
    prompt_count: Literal["input_length", "prompt_tokens"] | None = "input_length"
    scores: bool = True
    full_text: bool = False
    include_stop: bool = True
    prefill: bool = True
    length_first: bool = True
    ids_only: bool = False
    timing_headers: bool = True
    token_headers: bool = True
    compute_type: str = "unknown"
    compute_seconds: bool = True
    info: Literal["tgi", "tgi-0.9", "mindie"] = "tgi"


class Wording(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish reasons and errors in the dialect's words.

    Attributes:
        finish: our finish reason -> the dialect's.
        failures: our kind of error -> the dialect's answer. A failure without a `type` has an empty body.
        unsupported: refuses a `{field}` that the model cannot honour.
        streamed_decoder_input_details: refuses `decoder_input_details` in a stream.
        unknown_field: refuses an unknown field of this `{name}`.
    """

    finish: dict[str, str]
    failures: dict[str, Failure]
    unsupported: str = "`{field}` is not supported by this model"
    streamed_decoder_input_details: str = "`decoder_input_details` == true is not supported when streaming tokens"
    unknown_field: str = "unknown field `{name}`"


class Remote(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a remote server of the dialect is called and understood.

    Attributes:
        reasons: the remote's finish reason -> ours; any other is a failure.
        unlimited_max_new_tokens: `max_new_tokens` for "as far as the context reaches"; None leaves the field out.
    """

    reasons: dict[str, str]
    unlimited_max_new_tokens: int | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol. The defaults of all fields are TGI 3's."""

    name: str
    requests: Requests
    limits: Limits
    defaults: Defaults = Defaults()
    answers: Answers = Answers()
    wording: Wording
    remote: Remote


_09_PARAMETERS = (
    "best_of",
    "temperature",
    "repetition_penalty",
    "top_k",
    "top_p",
    "typical_p",
    "do_sample",
    "max_new_tokens",
    "return_full_text",
    "stop",
    "truncate",
    "watermark",
    "details",
    "decoder_input_details",
    "seed",
)
_MINDIE_PARAMETERS = (*_09_PARAMETERS[1:], "adapter_id")  # no best_of

U31 = 2**31 - 1
U32 = 2**32 - 1
U64 = 2**64 - 1


def _positive(name: str, *, integer: bool = False) -> Bound:
    message = f"`{name}` must be strictly positive"
    return Bound(name, 1, message=message) if integer else Bound(name, 0, open_low=True, message=message)


def _probability(name: str) -> Bound:
    return Bound(name, 0, 1, open_low=True, open_high=True, message=f"`{name}` must be > 0.0 and < 1.0")


def _integer(name: str, low: int, high: int) -> Bound:
    """The range of an integer type. The server's own message is its JSON parser's; this one is ours."""
    return Bound(name, low, high, message=f"`{name}` must be an integer from {low} to {high}")


_TGI_BOUNDS = (
    _positive("temperature"),
    _positive("repetition_penalty"),
    Bound("frequency_penalty", -2, 2, message="`frequency_penalty` must be >= -2.0 and <= 2.0"),
    _probability("top_p"),
    _probability("typical_p"),
    _positive("top_k", integer=True),
    # Two bounds: the first has the validation's message, the second the range of Rust's type.
    _integer("top_k", 1, U31),
    _positive("max_new_tokens", integer=True),
    _integer("max_new_tokens", 1, U32),
    _integer("seed", 0, U64),
)

# MindIE's page shows no errors: the messages are the server's where both agree on the interval. The intervals of
# `top_k` and `seed` are the page's.
_MINDIE_BOUNDS = (
    Bound("temperature", 0, open_low=True, message="Parameter temperature must be greater than 0.0, got {value}."),
    Bound("top_k", 1, U31, message=f"Parameter top_k must be in (0,{U31}], got {{value}}."),
    Bound("top_p", 0, 1, open_low=True, open_high=True, message="Parameter top_p must be in (0.0,1.0), got {value}."),
    Bound("typical_p", 0, 1, open_low=True, message="Parameter typical_p must be in (0.0,1.0], got {value}."),
    Bound("seed", 1, U64, message=f"Parameter seed must be in (0,{U64}], got {{value}}."),
    Bound(
        "repetition_penalty",
        0,
        open_low=True,
        message="Parameter repetition_penalty must be greater than 0.0, got {value}.",
    ),
    Bound("max_new_tokens", 1, U31, message=f"Parameter max_new_tokens must be in (0,{U31}], got {{value}}."),
    Bound("truncate", 1, U31, message=f"truncate must be in (0,{U31}], got {{value}}."),
)

_VALIDATION = Failure(422, "validation", text="Input validation error: {message}")
_NOT_FOUND = Failure(404, "not_found")
_OVERLOADED = Failure(429, "overloaded")
_GENERATION = Failure(424, "generation", text="Request failed during generation: {message}")

_TGI_FAILURES = {
    "invalid_request": _VALIDATION,
    "malformed_body": _VALIDATION,
    "unsupported": _VALIDATION,
    "context_length": _VALIDATION,
    # An empty body, as TGI's middleware for API keys answers.
    "unauthorized": Failure(401),
    "forbidden": Failure(403, "forbidden"),
    "model_not_found": _NOT_FOUND,
    "route_not_found": _NOT_FOUND,
    "method_not_allowed": Failure(405, "method_not_allowed"),
    "conflict": Failure(409, "validation"),
    "body_too_large": Failure(413, "validation"),
    "unsupported_media_type": Failure(415, "validation"),
    "request_timeout": Failure(408, "timeout"),
    "rate_limited": _OVERLOADED,
    "overloaded": Failure(429, "overloaded", text="Model is overloaded"),
    "shutting_down": Failure(503, "overloaded"),
    "backend_failed": _GENERATION,
    "backend_unavailable": Failure(503, "generation"),
    "timeout": _GENERATION,
    "incomplete": Failure(500, "incomplete_generation", text="Incomplete generation"),
    "internal": Failure(500, "internal"),
}

# "stop_sequence" is a matched stop string. A content filter is closest to that: it ends the text before the model does.
_TGI_FINISH = {
    "eos": "eos_token",
    "stop_string": "stop_sequence",
    "stop_token": "stop_sequence",
    "length": "length",
    "tool_call": "eos_token",
    "content_filter": "stop_sequence",
}
# In MindIE "stop_sequence" means cancelled or failed, and a matched stop string is a normal end.
_MINDIE_FINISH = _TGI_FINISH | {"stop_string": "eos_token", "stop_token": "eos_token"}

TGI = Dialect(
    name="tgi",
    answers=Answers(prefill=False),
    requests=Requests(parameters=(*_09_PARAMETERS, "frequency_penalty", "top_n_tokens", "grammar", "adapter_id")),
    limits=Limits(bounds=_TGI_BOUNDS),
    wording=Wording(finish=_TGI_FINISH, failures=_TGI_FAILURES),
    remote=Remote(reasons={"eos_token": "eos", "stop_sequence": "stop_string", "length": "length"}),
)

TGI_09 = Dialect(
    name="tgi-0.9",
    requests=Requests(parameters=_09_PARAMETERS),
    limits=TGI.limits,
    # 0.9 defaults to greedy and to 20 tokens; TGI 3 to the rest of the context.
    defaults=Defaults(bare_do_sample=False, default_max_new_tokens=20),
    answers=Answers(
        sse_prefix="data:",
        index=False,
        prompt_count=None,
        token_headers=False,
        compute_seconds=False,
        info="tgi-0.9",
    ),
    wording=TGI.wording,
    # 0.9 refuses a limit beyond `max_total_tokens` minus the prompt, and has no "as far as the context reaches".
    remote=Remote(reasons=TGI.remote.reasons, unlimited_max_new_tokens=512),
)

MINDIE = Dialect(
    name="mindie",
    requests=Requests(
        parameters=_MINDIE_PARAMETERS,
        ineffective=("typical_p", "watermark"),
        list_inputs=True,
        string_stop=True,
        warpers_sample=False,
        details_logprobs=False,
        no_adapter="None",
        # MindIE's page: a request ends at the maximum length of a sequence, whatever it asks for.
        overflow="truncate",
    ),
    limits=Limits(
        bounds=_MINDIE_BOUNDS,
        max_images=1,  # the page; later sources (MAX_MULTIMODAL_URL_NUM) take 20, in every dialect
        max_input_chars=4 * 1024 * 1024,
        max_stop_sequences=1024,
        max_stop_chars=1024,
        max_stop_chars_total=256 * 128,
        max_best_of=1,
        max_top_n_tokens=0,
        truncate_within_context=False,
        adapter_pattern=r"[a-zA-Z0-9_./-]{1,256}",
    ),
    defaults=Defaults(bare_do_sample=None, default_max_new_tokens=20, always_seeded=True),
    answers=Answers(
        index=False,
        prompt_count="prompt_tokens",
        scores=False,
        include_stop=False,
        length_first=False,
        ids_only=True,
        timing_headers=False,
        token_headers=False,
        compute_type="",
        info="mindie",
    ),
    wording=Wording(
        finish=_MINDIE_FINISH,
        failures=mindie.FAILURES,
        unsupported="Parameter {field} is not supported by this model.",
        streamed_decoder_input_details="The decoder_input_details must not be true when stream is true.",
    ),
    remote=Remote(reasons={"eos_token": "eos", "length": "length"}, unlimited_max_new_tokens=U31),
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (TGI, TGI_09, MINDIE)}
"""By name; the first is the default."""
