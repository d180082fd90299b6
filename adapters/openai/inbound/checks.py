"""The rules a request must obey, in OpenAI's own words unless the dialect has others."""

from __future__ import annotations

import re

from adapters.dialect import Bound
from adapters.openai.dialects import Dialect
from schemas.errors import InvalidRequest
from schemas.openai.requests import ChatRequest, CompletionRequest, GenerationRequest


def missing(param: str) -> InvalidRequest:
    """A field that must be there is not."""
    return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def not_one_of(param: str, value: str, known: tuple[str, ...]) -> InvalidRequest:
    """A word that is none of those `known`."""
    words = ", ".join(f"'{word}'" for word in known)
    message = f"Invalid value: '{value}'. Supported values are: {words}."
    return InvalidRequest(message, param=param, code="invalid_value")


def too_long(param: str, limit: int, length: int) -> InvalidRequest:
    """A list with too many items."""
    message = (
        f"Invalid '{param}': array too long. "
        f"Expected an array with maximum length {limit}, but got an array with length {length} instead."
    )
    return InvalidRequest(message, param=param, code="array_above_max_length")


def empty(param: str) -> InvalidRequest:
    """A list that must have items has none."""
    message = (
        f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )
    return InvalidRequest(message, param=param, code="empty_array")


def refused(param: str, why: str) -> InvalidRequest:
    """A combination or a value that has a sentence of its own."""
    return InvalidRequest(why, param=param)


def check(dialect: Dialect, given: GenerationRequest) -> None:
    """Refuse what the dialect's server refuses.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    for bound in dialect.limits.bounds:
        value = getattr(given, bound.name, None)
        if value is not None and not bound.holds(value) and not _prompt_only(dialect, given, bound):
            raise out_of_bounds(bound, value)
    if dialect.limits.model_pattern is not None and not re.fullmatch(dialect.limits.model_pattern, given.model or ""):
        raise refused("model", "The format of model is invalid.")
    if given.stop is not None:
        _check_stop(dialect, given.stop)
    if given.logit_bias is not None:
        _check_logit_bias(given.logit_bias)
    streams = dialect.defaults.stream_default if given.stream is None else given.stream
    if given.stream_options is not None and not streams and dialect.requests.stream_options_need_stream:
        raise refused("stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")


def check_chat(dialect: Dialect, given: ChatRequest) -> None:
    """Refuse what only a chat can get wrong.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    top = given.top_logprobs
    if top is None:
        return
    bound = Bound("top_logprobs", 0, dialect.limits.max_top_logprobs)
    if not bound.holds(top):
        raise out_of_bounds(bound, top)
    if not given.logprobs:
        raise refused("top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.")


def check_completion(dialect: Dialect, given: CompletionRequest) -> None:
    """Refuse what only a completion can get wrong.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    bound = Bound("logprobs", 0, dialect.limits.max_logprobs)
    if given.logprobs is not None and not bound.holds(given.logprobs):
        raise out_of_bounds(bound, given.logprobs)
    n = given.n or 1
    if given.best_of is not None and given.best_of < n:
        raise refused("best_of", f"'best_of' ({given.best_of}) must be greater than or equal to 'n' ({n}).")
    if given.best_of is not None and given.best_of > n and given.stream:
        raise refused("best_of", "The 'best_of' parameter is only allowed when 'stream' is not enabled.")


def out_of_bounds(bound: Bound, value: float) -> InvalidRequest:
    """A number that its bound refuses."""
    shown = _number(value)
    if bound.message is not None:
        return InvalidRequest(bound.message.format(value=shown), param=bound.name)
    kind = "integer" if isinstance(value, int) else "decimal"
    below = bound.below(value)
    end = bound.low if below else bound.high
    assert end is not None
    sign = (">" if bound.open_low else ">=") if below else "<="
    side, code = ("below minimum", "below_min_value") if below else ("above maximum", "above_max_value")
    message = (
        f"Invalid '{bound.name}': {kind} {side} value. Expected a value {sign} {_number(end)}, but got {shown} instead."
    )
    return InvalidRequest(message, param=bound.name, code=f"{kind}_{code}")


def _prompt_only(dialect: Dialect, given: GenerationRequest, bound: Bound) -> bool:
    """Echo and no tokens at all is how a prompt's log-probabilities are asked for."""
    return bound.name == "max_tokens" and given.max_tokens == 0 and bool(given.echo) and dialect.requests.echo_only


def _number(value: float) -> str:
    """As a client would write it: 3, not 3.0."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def _check_stop(dialect: Dialect, stop: str | tuple[str, ...]) -> None:
    stops = (stop,) if isinstance(stop, str) else stop
    if dialect.limits.max_stop is not None and len(stops) > dialect.limits.max_stop:
        raise too_long("stop", dialect.limits.max_stop, len(stops))
    if "" in stops:
        raise refused("stop", "Invalid 'stop': empty string. Expected a string with minimum length 1.")


def _check_logit_bias(bias: dict[str, float]) -> None:
    for token, value in bias.items():
        if not re.fullmatch(r"[0-9]{1,10}", token):
            raise refused("logit_bias", f"Invalid key in 'logit_bias': '{token}'. Expected a token id.")
        if not -100 <= value <= 100:
            raise refused("logit_bias", f"Invalid 'logit_bias': {_number(value)} is not between -100 and 100.")
