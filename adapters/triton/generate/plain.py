"""Plain bodies of the generate extension, a text with scalar parameters and flags, decoded in one step.

Strategy: a dictionary loses what makes Triton's rules slow to apply, a name that is given twice. But each name and each
text has two quotes, so the number of quotes in the body tells whether there was one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters import body as bodies
from adapters.triton.dialects import Dialect
from adapters.triton.generate.request import Given
from adapters.triton.tensors import INPUT
from schemas.catalog import ModelCard, TensorNames
from schemas.triton import Scalar

_decode = msgspec.json.Decoder(dict[str, Scalar | dict[str, Scalar]]).decode
_USUAL = TensorNames()
_NOTHING: dict[str, Scalar] = {}


def read_plain(body: bytes, card: ModelCard, dialect: Dialect) -> Given | None:
    """A plain body, as `generate.body.read` reads it; None: that is to read or to refuse it."""
    # The tensors of a small body have less than twice its bytes.
    has_own_rules = dialect.requests.rules != "triton" or dialect.limits.max_input_bytes < 2 * bodies.SMALL
    if has_own_rules or card.tensors != _USUAL:
        return None
    given: dict[str, Any] | None = bodies.read_plain(_decode, body)
    if given is None or b"\\\\" in body:
        return None
    names, nested = len(given), given.pop("parameters", _NOTHING)
    # Within `parameters` an id is an ordinary parameter.
    if not isinstance(nested, dict) or "id" in nested or not given.keys().isdisjoint(nested):
        return None
    names, given = names + len(nested), given | nested
    types = [*map(type, given.values())]
    quotes = body.count(b'"') - body.count(b'\\"')
    return None if dict in types or quotes != 2 * (names + types.count(str)) else _sorted(given)


def _sorted(given: dict[str, Any]) -> Given | None:
    """The text, the flags and the parameters among the members of a body; None: there is anything else."""
    text, id = given.pop("text_input", None), given.pop("id", "")
    if not isinstance(text, str) or not isinstance(id, str):
        return None
    flags: dict[str, bool] = {}
    parameters: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, value in given.items():
        tensor = INPUT.get(name)
        if tensor is None:
            parameters[name] = value
        elif tensor.parameter and tensor.parameter not in found:
            if tensor.datatype == "BYTES" and not isinstance(value, str):
                return None
            # An empty text is TensorRT-LLM's "no words".
            found[tensor.parameter] = value if tensor.dims == (1,) else [value] if value != "" else []
        elif tensor.datatype == "BOOL" and isinstance(value, bool):
            flags[name] = value
        else:
            return None
    return Given(texts=(text,), id=id, flags=flags, parameters=parameters | found)
