"""Request parameters: JSON values to typed values within their bounds, and those to the IR and back.

The dialect has the names, types and bounds of the parameters, this module their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from adapters.body import parse
from adapters.triton.dialects import Dialect, Parameter
from schemas.errors import InvalidRequest, MalformedBody
from schemas.ir import Grammar, Sampling, Stopping

Values = dict[str, Any]


def read(given: dict[str, Any], dialect: Dialect) -> tuple[Values, dict[str, Any]]:
    """The known parameters as typed values, and the unknown ones as they are.

    Raises:
        schemas.errors.InvalidRequest: a value has a wrong type, is out of bounds or is not supported.
    """
    known: Values = {}
    rest: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        rule = dialect.requests.parameters.get(name)
        if rule is None:
            rest[name] = value
        else:
            known[name] = _typed(name, value, rule, dialect)
    # They would change the answer, and no backend has them: refused, never dropped. False and 1 are the defaults.
    for name, default in (("use_beam_search", False), ("beam_width", 1)):
        if known.get(name, default) != default:
            raise InvalidRequest(f"parameter '{name}' is not supported", param=name)
    return known, rest


def sampling(values: Values, dialect: Dialect) -> Sampling:
    """The sampling parameters of a request."""
    temperature = values.get("temperature", dialect.defaults.default_temperature)
    do_sample = values.get("do_sample")
    if dialect.defaults.always_samples:
        # vLLM's rule: a temperature of 0 is greedy, and there is no `do_sample`.
        do_sample = temperature != 0
    seed = values.get("seed")
    return Sampling(
        do_sample=do_sample,
        temperature=temperature,
        top_k=values["top_k"] if values.get("top_k", -1) > 0 else None,  # 0 and -1: off
        top_p=values.get("top_p"),
        min_p=values.get("min_p") or None,
        repetition_penalty=values.get("repetition_penalty"),
        presence_penalty=values.get("presence_penalty"),
        frequency_penalty=values.get("frequency_penalty"),
        logit_bias=values.get("logit_bias", ()),
        bad_words=values.get("bad_words", ()),
        seed=None if seed == -1 else seed,
    )


def stopping(values: Values, dialect: Dialect) -> Stopping:
    """The stopping criteria of a request."""
    # vLLM's name first; `max_new_tokens` is MindIE's.
    tokens = values.get("max_tokens", values.get("max_new_tokens", dialect.defaults.default_max_tokens))
    return Stopping(
        max_new_tokens=tokens,
        min_new_tokens=values.get("min_tokens", 0),
        # `stop_words` is TensorRT-LLM's name.
        stop=values.get("stop", ()) + values.get("stop_words", ()),
        stop_token_ids=values.get("stop_token_ids", ()) + ((values["end_id"],) if "end_id" in values else ()),
        ignore_eos=values.get("ignore_eos", False),
        include_stop=values.get("include_stop_str_in_output", False),
    )


def grammar(values: Values) -> Grammar | None:
    """The grammar of a request, if any."""
    found: Grammar | None = values.get("structured_outputs", values.get("guided_decoding"))
    return found


def write(sampling: Sampling, stopping: Stopping, dialect: Dialect) -> dict[str, Any]:
    """The parameters for a remote. Neutral values are omitted, except where the remote has another default."""
    unbounded = stopping.max_new_tokens is None
    required: dict[str, Any] = {
        dialect.remote.max_tokens_name: dialect.remote.unbounded_max_tokens if unbounded else stopping.max_new_tokens,
        "seed": sampling.seed,
    }
    others = {
        "min_tokens": stopping.min_new_tokens,
        "stop": list(stopping.stop),
        "stop_token_ids": list(stopping.stop_token_ids),
        "ignore_eos": stopping.ignore_eos,
        "include_stop_str_in_output": stopping.shows_stop,
        "top_k": sampling.top_k,
        "top_p": _nucleus(sampling.top_p),
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias},
        "watermark": sampling.watermark,
        "bad_words": list(sampling.bad_words),
    }
    values = {name: value for name, value in required.items() if value is not None}
    # Falsy values are neutral in all of these: 0, "", [] and False turn a parameter off.
    values |= {name: value for name, value in others.items() if value}
    return values | _temperature(sampling, dialect)


def _nucleus(top_p: float | None) -> float | None:
    """`top_p` for a remote: 1 turns it off and some servers refuse it; 0 is out of the interval of all servers."""
    if top_p is None or top_p >= 1:
        return None
    # So small that only the most likely token is left.
    return max(top_p, 1e-6)


def _temperature(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The parameters for greedy decoding or for sampling with a temperature."""
    if not dialect.defaults.always_samples:
        if sampling.greedy or sampling.temperature is None:
            # MindIE refuses a temperature of 0: greedy decoding is `do_sample: false`.
            return {"do_sample": not sampling.greedy}
        return {"do_sample": True, "temperature": sampling.temperature}
    return {"temperature": 0.0 if sampling.greedy else 1.0 if sampling.temperature is None else sampling.temperature}


# --- types ------------------------------------------------------------------------------------------------------


def _typed(name: str, value: Any, rule: Parameter, dialect: Dialect) -> Any:
    if dialect.requests.numbers_in_strings and isinstance(value, str):
        value = _UNQUOTE.get(rule.type, str)(value)
    typed = _READERS[rule.type](value)
    if typed is None:
        message = dialect.wording.type_error.format(name=name, type=_TYPE_NAMES[rule.type])
        raise InvalidRequest(message, param=name)
    # Each item of a list has the interval of the parameter. `value`, not `typed`, so that a message shows what was
    # given.
    for number in typed if isinstance(typed, tuple) else (value,):
        if isinstance(number, int | float) and not rule.holds(number):
            message = (rule.message or dialect.wording.range_error).format(
                name=name, interval=rule.interval(), value=number
            )
            raise InvalidRequest(message, param=name)
    return typed


def _int(value: Any) -> int | None:
    # 5.0 counts as 5: JSON has one type of number.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # `float` of a huge integer would raise OverflowError. Infinity and NaN, which quoted numbers can hold, fail the
    # comparison.
    return float(value) if abs(value) < 1e308 else None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: Any) -> tuple[str, ...] | None:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) and text for text in values):
        return None
    return tuple(values)


def _ints(value: Any) -> tuple[int, ...] | None:
    values = [_int(number) for number in (value if isinstance(value, list) else [value])]
    return None if None in values else tuple(number for number in values if number is not None)


def _biases(value: Any) -> tuple[tuple[int, float], ...] | None:
    """`{"token id": bias}`."""
    if not isinstance(value, dict):
        return None
    pairs = []
    for token, bias in value.items():
        number = _float(bias)
        if number is None or not re.fullmatch("[0-9]{1,9}", token):
            return None
        pairs.append((int(token), number))
    return tuple(pairs)


def _grammar(value: Any) -> Grammar | None:
    """vLLM's structured outputs: an object or its JSON, with `json`, `regex`, `choice`, `grammar` or `json_object`."""
    given = _json(value)
    if not isinstance(given, dict):
        return None
    match {
        kind: constraint for kind, constraint in given.items() if constraint is not None and constraint is not False
    }:
        case {"json": schema, **rest} if not rest and isinstance(_json(schema), dict):
            return Grammar("json_schema", _json(schema))
        case {"regex": str() as regex, **rest} if not rest:
            return Grammar("regex", regex)
        case {"choice": [str(), *_] as choices, **rest} if not rest and all(isinstance(text, str) for text in choices):
            # A choice of texts is a regular expression of their alternatives; `escape` keeps them literal.
            return Grammar("regex", "|".join(re.escape(text) for text in choices))
        case {"json_object": True, **rest} if not rest:
            return Grammar("json_object")
        case {"grammar": str() as ebnf, **rest} if not rest:
            return Grammar("ebnf", ebnf)
    return None


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse(value.encode())
    except MalformedBody:
        return None


def _number(text: str) -> Any:
    """The number in a text, or the text itself, which every number type refuses."""
    try:
        # 20 digits hold every 64-bit integer; the pattern bounds what `int` reads.
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text) else float(text)
    except ValueError:
        return text


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "string": _string,
    "strings": _strings,
    "ints": _ints,
    "biases": _biases,
    "grammar": _grammar,
}
_UNQUOTE: dict[str, Callable[[str], Any]] = {
    "int": _number,
    "float": _number,
    "ints": _number,
    "bool": lambda text: {"true": True, "false": False}.get(text.lower(), text),
}
_TYPE_NAMES = {
    "int": "integer",
    "float": "float",
    "bool": "boolean",
    "string": "string",
    "strings": "string or array of strings, none empty",
    "ints": "integer or array of integers",
    "biases": "object of token ids and numbers",
    "grammar": "object with one of 'json', 'regex', 'choice', 'grammar' or 'json_object'",
}
