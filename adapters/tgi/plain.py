"""Plain requests, a text with a few parameters, decoded in one step."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from adapters.base import Call
from adapters.body import read_plain
from adapters.tgi.decode import read_given
from adapters.tgi.dialects import Dialect
from adapters.unknown_fields import Unknown
from schemas.ir import Generate
from schemas.tgi import CompatGenerateRequest, GenerateRequest, Parameters

_NOTHING = Unknown({}, ())
_RARE = ("adapter_id", "grammar")
"""Parameters that no plain request has."""
_NEVER = Literal[""]
"""A value that is not sent. Null is another one: with it, a parameter of another dialect is an unknown field."""


class PlainRequests:
    """Reads the plain requests of one dialect.

    Args:
        dialect: whose rules hold.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._foreign = sorted(set(Parameters.__struct_fields__) - set(dialect.requests.parameters))
        rare = [(name, None, None) for name in _RARE if name not in self._foreign]
        parameters = _plain(Parameters, [*rare, *((name, _NEVER, None) for name in self._foreign)])
        fields = [("inputs", str), ("parameters", parameters | None, None)]
        self._decode = msgspec.json.Decoder(_plain(GenerateRequest, fields)).decode
        self._decode_compat = msgspec.json.Decoder(_plain(CompatGenerateRequest, fields)).decode

    def read(self, operation: str, body: bytes, call: Call) -> Generate | None:
        """The request of a plain body, as `read_generate` reads it; None: that is to read or to refuse it.

        Raises:
            schemas.errors.RequestError: it breaks a rule of the dialect.
        """
        given = read_plain(self._decode_compat if operation == "compat" else self._decode, body)
        if given is None or any(getattr(given.parameters, name, None) is not None for name in self._foreign):
            return None
        return read_given(self._dialect, operation, given, _NOTHING, body, call)


def _plain(base: type[msgspec.Struct], fields: list[Any]) -> Any:
    """The same struct with narrower fields, and without unknown ones."""
    return msgspec.defstruct(f"Plain{base.__name__}", fields, bases=(base,), frozen=True, forbid_unknown_fields=True)
