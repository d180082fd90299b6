"""The dialect of Databricks as data: OpenAI's groups of fields with the platform's values, and one field more.

Sources: Databricks' page "Foundation Model REST API reference"; recorded traffic (chunks that all carry the usage, a
last delta `{"content": ""}`); databricks/databricks-sdk-py:databricks/sdk/errors and mlflow:mlflow/exceptions.py for
the error codes.
"""

from __future__ import annotations

from adapters.dialect import Bound, Failure
from adapters.openai import dialects as openai


class Requests(openai.Requests, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which fields a request may have, and how they are read.

    Attributes:
        alternating_roles: whether the roles of a chat must alternate: a system message first, if any, then user and
            assistant in turn, and a user message or a tool's result last.
        tool_descriptions: whether every function must have a description.
    """

    alternating_roles: bool = True
    tool_descriptions: bool = True


class Dialect(openai.Dialect, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of Databricks' protocol. The groups' defaults are OpenAI's where the dialect sets none."""

    protocol: str = "databricks"
    requests: Requests = Requests()


def _bound(name: str, low: float, high: float | None, words: str, *, open_low: bool = False) -> Bound:
    return Bound(name, low, high, open_low=open_low, message=f"Parameter '{name}' must be {words}, got {{value}}.")


_POSITIVE = "null or an integer greater than 0"

_BOUNDS = (
    _bound("max_tokens", 1, None, _POSITIVE),
    _bound("max_completion_tokens", 1, None, _POSITIVE),
    _bound("temperature", 0, 2, "in [0, 2]"),
    _bound("top_p", 0, 1, "in (0, 1]", open_low=True),
    _bound("top_k", 1, None, _POSITIVE),
    _bound("n", 1, 128, "an integer greater than 0 and not over 128"),
    _bound("best_of", 1, 20, "an integer from 1 to 20"),
    Bound("seed", -openai.I63, openai.I63 - 1),
    *openai.PENALTIES,
    # Not vLLM's interval of `top_k`, in which -1 turns it off: the page has "greater than 0".
    *(bound for bound in openai.EXTENSIONS if bound.name != "top_k"),
)

_BAD = "BAD_REQUEST"
_INVALID = "invalid_request_error"
_SERVER = "server_error"
_VALUE = Failure(400, _INVALID, "INVALID_PARAMETER_VALUE")
_UNAVAILABLE = Failure(503, _SERVER, "TEMPORARILY_UNAVAILABLE")
_INTERNAL = Failure(500, _SERVER, "INTERNAL_ERROR", final=True)

_FAILURES = {
    "invalid_request": _VALUE,
    "malformed_body": Failure(400, _INVALID, _BAD),
    "unsupported": _VALUE,
    "context_length": Failure(400, _INVALID, _BAD),
    "unauthorized": Failure(401, _INVALID, "UNAUTHENTICATED"),
    "forbidden": Failure(403, _INVALID, "PERMISSION_DENIED"),
    "model_not_found": Failure(404, _INVALID, "RESOURCE_DOES_NOT_EXIST"),
    "route_not_found": Failure(404, _INVALID, "ENDPOINT_NOT_FOUND"),
    "method_not_allowed": Failure(405, _INVALID, _BAD),
    "conflict": Failure(409, _INVALID, "RESOURCE_CONFLICT"),
    "body_too_large": Failure(413, _INVALID, _BAD),
    "unsupported_media_type": Failure(415, _INVALID, _BAD),
    "request_timeout": Failure(408, _INVALID, "DEADLINE_EXCEEDED"),
    "rate_limited": Failure(429, "rate_limit_error", "REQUEST_LIMIT_EXCEEDED"),
    "overloaded": _UNAVAILABLE,
    "shutting_down": _UNAVAILABLE,
    # Not 503, which the SDK would retry for five minutes.
    "backend_failed": _INTERNAL,
    "backend_unavailable": _UNAVAILABLE,
    "timeout": Failure(504, _SERVER, "DEADLINE_EXCEEDED", final=True),
    "incomplete": _INTERNAL,
    "internal": _INTERNAL,
}

DATABRICKS = Dialect(
    name="databricks",
    requests=Requests(
        roles=("system", "user", "assistant", "tool"),
        stream_options_need_stream=False,
        echo_only=False,
        functions=False,
        default_models=(),
    ),
    limits=openai.Limits(bounds=_BOUNDS, max_stop=None, max_tools=32, max_properties=15),
    defaults=openai.Defaults(completion_max_tokens=None, raw_prompts=False),
    answers=openai.Answers(
        id_prefix="chatcmpl_",
        completion_id_prefix="cmpl_",
        refusal=False,
        annotations=False,
        last_delta_content=True,
        usage_on_every_chunk=True,
    ),
    wording=openai.Wording(finish=openai.FINISH, failures=_FAILURES, unknown_field='json: unknown field "{name}"'),
    remote=openai.Remote(
        reasons=openai.REASONS,
        remote_fields=(
            "max_tokens",
            "stream",
            "temperature",
            "top_p",
            "top_k",
            "stop",
            "n",
            "tools",
            "tool_choice",
            "response_format",
            "logprobs",
            "top_logprobs",
            "echo",
            "reasoning_effort",
        ),
        ask_usage=False,
    ),
)

DIALECTS: dict[str, Dialect] = {DATABRICKS.name: DATABRICKS}
