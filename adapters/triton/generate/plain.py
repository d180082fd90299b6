"""Plain bodies of the generate extension, a text with scalar parameters and flags, decoded in one step.

Strategy: a dictionary loses what makes Triton's rules slow to apply, a name that is given twice. But each name and each
text has two quotes, so the number of quotes in the body tells whether there was one.
"""

from __future__ import annotations

import msgspec

from adapters import body as bodies
from adapters.triton.dialects import Dialect
from adapters.triton.generate.request import Given
from adapters.triton.tensors import INPUT
from schemas.catalog import ModelCard, TensorNames
from schemas.triton import Scalar

_decode = msgspec.json.Decoder(dict[str, Scalar | dict[str, Scalar]]).decode
_USUAL = TensorNames()


def read_plain(body: bytes, card: ModelCard, dialect: Dialect) -> Given | None:
    """A plain body, as `generate.body.read` reads it; None: that is to read or to refuse it."""
    # The tensors of a small body have less than twice its bytes.
    has_own_rules = dialect.requests.rules != "triton" or dialect.limits.max_input_bytes < 2 * bodies.SMALL
    if has_own_rules or card.tensors != _USUAL:
        return None
    members = bodies.read_plain(_decode, body)
    if members is None or b"\\\\" in body:
        return None
    id = ""
    pairs: list[tuple[str, Scalar]] = []
    for name, value in members.items():
        if name == "parameters" and isinstance(value, dict):
            pairs += value.items()
        elif name == "id" and isinstance(value, str):
            id = value
        elif isinstance(value, dict) or name in ("parameters", "id"):
            return None
        else:
            pairs.append((name, value))
    given = dict(pairs)
    names = len(pairs) + ("id" in members) + ("parameters" in members)
    texts = sum([type(value) is str for value in given.values()]) + ("id" in members)
    quotes = body.count(b'"') - body.count(b'\\"')
    return None if len(given) < len(pairs) or quotes != 2 * (names + texts) else _sorted(given, id)


def _sorted(given: dict[str, Scalar], id: str) -> Given | None:
    """The text, the flags and the parameters among the members of a body; None: there is anything else."""
    text, flags = given.pop("text_input", None), {}
    parameters: dict[str, Scalar | list[Scalar]] = {}
    found: dict[str, Scalar | list[Scalar]] = {}
    for name, value in given.items():
        tensor = INPUT.get(name)
        if tensor is None:
            parameters[name] = value
        elif tensor.parameter:
            if tensor.datatype == "BYTES" and not isinstance(value, str):
                return None
            # An empty text is TensorRT-LLM's "no words".
            found[tensor.parameter] = value if tensor.dims == (1,) else [value] if value != "" else []
        elif tensor.datatype == "BOOL" and isinstance(value, bool):
            flags[name] = value
        else:
            return None
    if not isinstance(text, str):
        return None
    return Given(texts=(text,), id=id, flags=flags, parameters=parameters | found)
