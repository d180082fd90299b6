"""What tells the dialects of TGI apart, as data: `tgi` (3.x), `tgi-0.9` and `mindie`.

Every field is a knob that a configuration may set; the code never asks for a dialect's name.
Sources: huggingface/text-generation-inference:router/src/{lib,server,validation}.rs at 3.3 and v0.9.4; MindIE's page
"TGI流式推理接口", and Ascend/MindIE-LLM:src/server/endpoint for what the page leaves open.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters import mindie


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter's interval, the ends out of it where they are `open`, and the words that refuse a `{value}`."""

    name: str
    message: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the interval."""
        if self.low is not None and (value < self.low or (self.open_low and value == self.low)):
            return False
        return self.high is None or value < self.high or (value == self.high and not self.open_high)


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a kind of error is said. No `type`: an empty body. `text` may hold the error's own `{message}`."""

    status: int
    type: str = ""
    text: str = "{message}"


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table. Defaults are TGI 3's.

    Attributes:
        name: the dialect's name.
        parameters: those that are known; others are unknown fields.
        ineffective: those that are accepted, checked and then have no effect.
        bounds: their intervals.
        list_inputs: whether `inputs` may be a list of parts, which makes one user turn.
        max_images: of such a list.
        max_input_chars: of `inputs`, or of one of its texts.
        bare_do_sample: `do_sample` where `parameters` are absent altogether.
        warpers_sample: a temperature, top_k, top_p or typical_p samples even if `do_sample` is false.
        default_max_new_tokens: None is as far as the context reaches.
        max_iter_times: cap on `max_new_tokens`.
        unlimited_max_new_tokens: what asks a remote to go on as far as it can; None leaves the field out.
        compat_full_text: `return_full_text` where it is absent on `/`.
        string_stop: whether `stop` may be a string.
        max_stop_sequences: of one request.
        max_stop_chars: of one stop sequence.
        max_stop_chars_total: of all of them together.
        include_stop: whether a matched stop sequence stays in the text.
        max_best_of: 1 is none.
        max_top_n_tokens: log-probabilities per position.
        truncate_within_context: whether `truncate` must be less than the model's context, where that is known.
        adapter_pattern: what an `adapter_id` looks like.
        no_adapter: the `adapter_id` that means none.
        always_seeded: a seed is drawn and echoed even for a greedy answer.
        details_logprobs: whether details ask the backend for log-probabilities. Off, they are null where it tells none.
        sse_prefix: before every frame's JSON (axum wrote no space until TGI 2.1).
        index: whether frames are counted.
        prompt_count: the key of the prompt's token count in a stream's details.
        scores: whether `logprob` and `special` are told (else null), and special tokens by name.
        full_text: MindIE's "fullTextEnabled": `token.text` is all the text so far.
        ids_only: whole answers tell ids of tokens only, details first.
        timing_headers: whether whole answers carry x-compute-time and its like.
        token_headers: whether whole answers carry x-prompt-tokens and x-generated-tokens.
        compute_type: x-compute-type; empty leaves the header out.
        compute_seconds: x-compute-time is in seconds, not milliseconds.
        info: the form of `/info`.
        finish: our finish reason -> its word.
        reasons: its word -> our finish reason; a remote's other words are failures.
        failures: our kind of error -> its words.
        unsupported: refuses a `{field}` that the model cannot honour.
        streamed_decoder_input_details: refuses `decoder_input_details` in a stream.
        stream_errors_as_frames: TGI's own way: status 200 and an event, even for an invalid request.
    """

    name: str

    parameters: tuple[str, ...]
    ineffective: tuple[str, ...] = ()
    bounds: tuple[Bound, ...]
    list_inputs: bool = False
    max_images: int | None = None
    max_input_chars: int | None = None
    bare_do_sample: bool | None = True
    warpers_sample: bool = True
    default_max_new_tokens: int | None = None
    max_iter_times: int | None = None
    unlimited_max_new_tokens: int | None = None
    compat_full_text: bool = True
    string_stop: bool = False
    max_stop_sequences: int = 4
    max_stop_chars: int | None = None
    max_stop_chars_total: int | None = None
    include_stop: bool = True
    max_best_of: int = 2
    max_top_n_tokens: int = 5
    truncate_within_context: bool = True
    adapter_pattern: str | None = None
    no_adapter: str | None = None
    always_seeded: bool = False
    details_logprobs: bool = True

    sse_prefix: str = "data: "
    index: bool = True
    prompt_count: Literal["input_length", "prompt_tokens"] | None = "input_length"
    scores: bool = True
    full_text: bool = False
    ids_only: bool = False
    timing_headers: bool = True
    token_headers: bool = True
    compute_type: str = "unknown"
    compute_seconds: bool = True
    info: Literal["tgi", "tgi-0.9", "mindie"] = "tgi"

    finish: dict[str, str]
    reasons: dict[str, str]
    failures: dict[str, Failure]
    unsupported: str = "`{field}` is not supported by this model"
    streamed_decoder_input_details: str = "`decoder_input_details` == true is not supported when streaming tokens"
    stream_errors_as_frames: bool = False


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


def _within(name: str, low: int, high: int) -> Bound:
    """An integer type of the reference server, whose own words for it are a parser's."""
    return Bound(name, f"`{name}` must be an integer from {low} to {high}", low, high)


_TGI_BOUNDS = (
    Bound("temperature", "`temperature` must be strictly positive", low=0, open_low=True),
    Bound("repetition_penalty", "`repetition_penalty` must be strictly positive", low=0, open_low=True),
    Bound("frequency_penalty", "`frequency_penalty` must be >= -2.0 and <= 2.0", low=-2, high=2),
    Bound("top_p", "`top_p` must be > 0.0 and < 1.0", low=0, high=1, open_low=True, open_high=True),
    Bound("typical_p", "`typical_p` must be > 0.0 and < 1.0", low=0, high=1, open_low=True, open_high=True),
    Bound("top_k", "`top_k` must be strictly positive", low=1),
    _within("top_k", 1, U31),
    Bound("max_new_tokens", "`max_new_tokens` must be strictly positive", low=1),
    _within("max_new_tokens", 1, U32),
    _within("seed", 0, U64),
)

# The page shows no error, so the words are the server's where the intervals agree. `top_k` and `seed` are the page's.
_MINDIE_BOUNDS = (
    Bound("temperature", "Parameter temperature must be greater than 0.0, got {value}.", low=0, open_low=True),
    Bound("top_k", f"Parameter top_k must be in (0,{U31}], got {{value}}.", low=1, high=U31),
    Bound(
        "top_p",
        "Parameter top_p must be in (0.0,1.0), got {value}.",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    ),
    Bound("typical_p", "Parameter typical_p must be in (0.0,1.0], got {value}.", low=0, high=1, open_low=True),
    Bound("seed", f"Parameter seed must be in (0,{U64}], got {{value}}.", low=1, high=U64),
    Bound(
        "repetition_penalty",
        "Parameter repetition_penalty must be greater than 0.0, got {value}.",
        low=0,
        open_low=True,
    ),
    Bound("max_new_tokens", f"Parameter max_new_tokens must be in (0,{U31}], got {{value}}.", low=1, high=U31),
    Bound("truncate", f"truncate must be in (0,{U31}], got {{value}}.", low=1, high=U31),
)

_VALIDATION = Failure(422, "validation", "Input validation error: {message}")
_NOT_FOUND = Failure(404, "not_found")
_OVERLOADED = Failure(429, "overloaded")
_GENERATION = Failure(424, "generation", "Request failed during generation: {message}")

_TGI_FAILURES = {
    "invalid_request": _VALIDATION,
    "malformed_body": _VALIDATION,
    "unsupported": _VALIDATION,
    "context_length": _VALIDATION,
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
    "overloaded": Failure(429, "overloaded", "Model is overloaded"),
    "shutting_down": Failure(503, "overloaded"),
    "backend_failed": _GENERATION,
    "backend_unavailable": Failure(503, "generation"),
    "timeout": _GENERATION,
    "incomplete": Failure(500, "incomplete_generation", "Incomplete generation"),
    "internal": Failure(500, "internal"),
}

_MINDIE_FAILURES = {kind: Failure(*told) for kind, told in mindie.FAILURES.items()}

# "stop_sequence" is a stop string that matched. A filter comes nearest to that: the model itself would have gone on.
_TGI_FINISH = {
    "eos": "eos_token",
    "stop_string": "stop_sequence",
    "stop_token": "stop_sequence",
    "length": "length",
    "tool_call": "eos_token",
    "content_filter": "stop_sequence",
}
# MindIE keeps "stop_sequence" for what was cancelled or failed, and calls a matched stop string a normal end.
_MINDIE_FINISH = _TGI_FINISH | {"stop_string": "eos_token", "stop_token": "eos_token"}

TGI = Dialect(
    name="tgi",
    parameters=(*_09_PARAMETERS, "frequency_penalty", "top_n_tokens", "grammar", "adapter_id"),
    bounds=_TGI_BOUNDS,
    finish=_TGI_FINISH,
    reasons={"eos_token": "eos", "stop_sequence": "stop_string", "length": "length"},
    failures=_TGI_FAILURES,
)

TGI_09 = msgspec.structs.replace(
    TGI,
    name="tgi-0.9",
    parameters=_09_PARAMETERS,
    bare_do_sample=False,
    default_max_new_tokens=20,
    unlimited_max_new_tokens=512,
    sse_prefix="data:",
    index=False,
    prompt_count=None,
    token_headers=False,
    compute_seconds=False,
    info="tgi-0.9",
)

MINDIE = Dialect(
    name="mindie",
    parameters=_MINDIE_PARAMETERS,
    ineffective=("typical_p", "watermark"),
    bounds=_MINDIE_BOUNDS,
    list_inputs=True,
    max_images=1,  # the page; later sources (MAX_MULTIMODAL_URL_NUM) take 20, in every dialect
    max_input_chars=4 * 1024 * 1024,
    bare_do_sample=None,
    warpers_sample=False,
    default_max_new_tokens=20,
    unlimited_max_new_tokens=U31,
    compat_full_text=False,
    string_stop=True,
    max_stop_sequences=1024,
    max_stop_chars=1024,
    max_stop_chars_total=256 * 128,
    include_stop=False,
    max_best_of=1,
    max_top_n_tokens=0,
    truncate_within_context=False,
    adapter_pattern=r"[a-zA-Z0-9_./-]{1,256}",
    no_adapter="None",
    always_seeded=True,
    details_logprobs=False,
    index=False,
    prompt_count="prompt_tokens",
    scores=False,
    ids_only=True,
    timing_headers=False,
    token_headers=False,
    compute_type="",
    info="mindie",
    finish=_MINDIE_FINISH,
    reasons={"eos_token": "eos", "length": "length"},
    failures=_MINDIE_FAILURES,
    unsupported="Parameter {field} is not supported by this model.",
    streamed_decoder_input_details="The decoder_input_details must not be true when stream is true.",
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (TGI, TGI_09, MINDIE)}
