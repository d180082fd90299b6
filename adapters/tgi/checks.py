"""Validation of request parameters, with the messages of the dialect's own server."""

from __future__ import annotations

import re

import msgspec

from adapters.tgi.dialects import Dialect
from schemas.errors import InvalidRequest
from schemas.tgi import Parameters


def check(dialect: Dialect, parameters: Parameters, *, stream: bool, context_length: int | None) -> None:
    """Check all parameters of a request.

    Raises:
        schemas.errors.InvalidRequest: the dialect's server would refuse a parameter, which `param` names.
    """
    for bound in dialect.limits.bounds:
        value = getattr(parameters, bound.name)
        if value is not None and not bound.holds(value):
            message = bound.message or f"`{bound.name}` must be in {bound.interval()}"
            # As JSON, not as Python's repr.
            raise _invalid(bound.name, message.format(value=msgspec.json.encode(value).decode()))
    _check_best_of(dialect, parameters, stream)
    _check_stop(dialect, parameters.stop)
    top_n, limit = parameters.top_n_tokens, dialect.limits.max_top_n_tokens
    if top_n is not None and not 0 <= top_n <= limit:
        raise _invalid("top_n_tokens", f"`top_n_tokens` must be >= 0 and <= {limit}. Given: {top_n}")
    if dialect.limits.truncate_within_context:
        _check_truncate(parameters.truncate, context_length)
    if stream and parameters.decoder_input_details:
        raise _invalid("decoder_input_details", dialect.wording.streamed_decoder_input_details)
    lora, pattern = parameters.adapter_id, dialect.limits.adapter_pattern
    if lora is not None and pattern is not None and not re.fullmatch(pattern, lora):
        raise _invalid("adapter_id", "The format of adapter_id is invalid.")


def _check_best_of(dialect: Dialect, parameters: Parameters, stream: bool) -> None:
    best_of, limit = parameters.best_of, dialect.limits.max_best_of
    if best_of is None or best_of == 1:
        return
    if stream:
        raise _invalid("best_of", "`best_of` != 1 is not supported when streaming tokens")
    if limit == 1:
        raise _invalid("best_of", "`best_of` != 1 is not allowed for this endpoint")
    if not 1 <= best_of <= limit:
        raise _invalid("best_of", f"`best_of` must be > 0 and <= {limit}. Given: {best_of}")
    # Greedy candidates would all be equal.
    samples = (parameters.temperature, parameters.top_k, parameters.top_p, parameters.typical_p)
    if not parameters.do_sample and all(value is None for value in samples):
        raise _invalid("best_of", "you must use sampling when `best_of` is > 1")
    if parameters.seed is not None:
        raise _invalid("seed", "`seed` must not be set when `best_of` > 1")


def _check_stop(dialect: Dialect, stop: str | tuple[str, ...] | None) -> None:
    if stop is None:
        return
    limit, total = dialect.limits.max_stop_chars, dialect.limits.max_stop_chars_total
    if isinstance(stop, str):
        if not dialect.requests.string_stop:
            raise _invalid("stop", "`stop` must be a list of strings")
        if not stop or (limit is not None and len(stop) > limit):
            raise _invalid("stop", f"length of `stop` must be in [1, {limit}], but got {len(stop)}")
        return
    if len(stop) > dialect.limits.max_stop_sequences:
        message = f"`stop` supports up to {dialect.limits.max_stop_sequences} stop sequences. Given: {len(stop)}"
        raise _invalid("stop", message)
    # TGI has no limit on characters; MindIE has both limits and one sentence for them.
    if limit is None or total is None:
        if "" in stop:
            raise _invalid("stop", "`stop` sequences cannot be empty")
    elif not all(1 <= len(text) <= limit for text in stop) or sum(map(len, stop)) > total:
        message = f"`stop` must be list[string] if list, and item length in [1, {limit}] with total <= {total}"
        raise _invalid("stop", message)


def _check_truncate(truncate: int | None, context_length: int | None) -> None:
    if truncate is None:
        return
    # TGI's limit is `max_input_tokens`, which leaves at least one token of the context for the answer.
    limit = context_length - 1 if context_length else None
    if truncate < 1 or (limit is not None and truncate > limit):
        than = "" if limit is None else f" and less than {limit}"
        raise _invalid("truncate", f"`truncate` must be strictly positive{than}. Given: {truncate}")


def _invalid(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=f"parameters.{name}")
