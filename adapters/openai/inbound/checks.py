"""The rules that a request must obey, and their refusals: OpenAI's sentences unless the dialect has its own."""

from __future__ import annotations

import re

from adapters.body import LONGEST_WORD, one_of
from adapters.dialect import Bound
from adapters.openai.dialects import Dialect
from schemas.errors import InvalidRequest
from schemas.openai.requests import ChatRequest, CompletionRequest, GenerationRequest

# --- refusals -----------------------------------------------------------------------------------------------------


def missing(param: str) -> InvalidRequest:
    """A required field is absent."""
    return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def not_one_of(param: str, value: str, known: tuple[str, ...]) -> InvalidRequest:
    """A word is none of those `known`."""
    message = f"Invalid value: '{value[:LONGEST_WORD]}'. Supported values are: {one_of(known)}."
    return InvalidRequest(message, param=param, code="invalid_value")


def too_long(param: str, limit: int, length: int) -> InvalidRequest:
    """A list has more than `limit` items."""
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


def refused(param: str, message: str) -> InvalidRequest:
    """Any other fault, in a sentence of its own."""
    return InvalidRequest(message, param=param)


def out_of_bounds(bound: Bound, value: float) -> InvalidRequest:
    """A number lies outside of its interval."""
    if bound.message is not None:
        return InvalidRequest(bound.message.format(value=_number(value)), param=bound.name)
    # OpenAI's sentence and code, word for word: "Invalid 'temperature': decimal above maximum value. Expected a value
    # <= 2, but got 3 instead.", `decimal_above_max_value`.
    kind = "integer" if isinstance(value, int) else "decimal"
    below = bound.below(value)
    end = bound.low if below else bound.high
    # The value lies outside, so the end that it exceeds exists.
    assert end is not None
    sign = (">" if bound.open_low else ">=") if below else "<="
    side, code = ("below minimum", "below_min_value") if below else ("above maximum", "above_max_value")
    message = (
        f"Invalid '{bound.name}': {kind} {side} value. "
        f"Expected a value {sign} {_number(end)}, but got {_number(value)} instead."
    )
    return InvalidRequest(message, param=bound.name, code=f"{kind}_{code}")


def _number(value: float) -> str:
    """The number as a client would write it: 3, not 3.0."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


# --- rules --------------------------------------------------------------------------------------------------------


def check_bound(bound: Bound, value: float | None) -> None:
    """Refuse a number outside of its interval.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    if value is not None and not bound.holds(value):
        raise out_of_bounds(bound, value)


def check(dialect: Dialect, given: GenerationRequest) -> None:
    """Refuse a chat or a completion that breaks a rule of the dialect.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    limits = dialect.limits
    # `echo` with no tokens at all asks for the log-probabilities of the prompt.
    scores_prompt = given.max_tokens == 0 and bool(given.echo) and dialect.requests.echo_only
    for bound in limits.bounds:
        # A dialect's bounds cover chats and completions: a field that this struct lacks is None.
        value = getattr(given, bound.name, None)
        if value is not None and not (scores_prompt and bound.name == "max_tokens"):
            check_bound(bound, value)
    if limits.model_pattern is not None and not re.fullmatch(limits.model_pattern, given.model or ""):
        raise refused("model", "The format of model is invalid.")
    if given.stop is not None:
        _check_stop(dialect, (given.stop,) if isinstance(given.stop, str) else given.stop)
    if given.logit_bias is not None:
        _check_logit_bias(given.logit_bias)
    if "" in (given.bad_words or (None,)):
        raise refused("bad_words", "Invalid 'bad_words': empty string. Expected a string with minimum length 1.")
    _check_best_of(given)
    streams = dialect.defaults.stream_default if given.stream is None else given.stream
    if given.stream_options is not None and not streams and dialect.requests.stream_options_need_stream:
        raise refused("stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")


def check_chat(dialect: Dialect, given: ChatRequest) -> None:
    """Refuse a chat that breaks a rule which completions do not have.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    if given.top_logprobs is None:
        return
    # Built here, not in the table, because the limit is a field of its own that a configuration may set.
    check_bound(Bound("top_logprobs", 0, dialect.limits.max_top_logprobs), given.top_logprobs)
    if not given.logprobs:
        raise refused("top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.")


def check_completion(dialect: Dialect, given: CompletionRequest) -> None:
    """Refuse a completion that breaks a rule which chats do not have.

    Raises:
        schemas.errors.InvalidRequest: `param` names the parameter.
    """
    check_bound(Bound("logprobs", 0, dialect.limits.max_logprobs), given.logprobs)


def _check_best_of(given: GenerationRequest) -> None:
    n = given.n or 1
    if given.best_of is not None and given.best_of < n:
        raise refused("best_of", f"'best_of' ({given.best_of}) must be greater than or equal to 'n' ({n}).")
    # The best answers are known only when all are complete.
    if given.best_of is not None and given.best_of > n and given.stream:
        raise refused("best_of", "The 'best_of' parameter is only allowed when 'stream' is not enabled.")


def _check_stop(dialect: Dialect, stops: tuple[str, ...]) -> None:
    limit = dialect.limits.max_stop
    if limit is not None and len(stops) > limit:
        raise too_long("stop", limit, len(stops))
    if "" in stops:
        raise refused("stop", "Invalid 'stop': empty string. Expected a string with minimum length 1.")


def _check_logit_bias(biases: dict[str, float]) -> None:
    for token, bias in biases.items():
        # Keys are token ids as strings, because JSON has no other keys.
        if not re.fullmatch(r"[0-9]{1,10}", token):
            raise refused("logit_bias", f"Invalid key in 'logit_bias': '{token}'. Expected a token id.")
        if not -100 <= bias <= 100:
            raise refused("logit_bias", f"Invalid 'logit_bias': {_number(bias)} is not between -100 and 100.")
