"""Plain requests, a text with a few parameters, decoded in one step."""

from __future__ import annotations

import msgspec

from adapters.base import Call
from adapters.body import read_plain
from adapters.tgi.decode import read_given
from adapters.tgi.dialects import Dialect
from adapters.unknown_fields import Unknown
from schemas.ir import Generate
from schemas.tgi import CompatGenerateRequest, GenerateRequest, Parameters

_NOTHING = Unknown({}, ())


class _Parameters(Parameters, frozen=True, forbid_unknown_fields=True):
    adapter_id: None = None
    grammar: None = None


class _Request(GenerateRequest, frozen=True, forbid_unknown_fields=True):
    inputs: str
    parameters: _Parameters | None = None


class _CompatRequest(CompatGenerateRequest, frozen=True, forbid_unknown_fields=True):
    inputs: str
    parameters: _Parameters | None = None


_decode = msgspec.json.Decoder(_Request).decode
_decode_compat = msgspec.json.Decoder(_CompatRequest).decode


class PlainRequests:
    """Reads the plain requests of one dialect.

    Args:
        dialect: whose rules hold.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._foreign = sorted(set(Parameters.__struct_fields__) - set(dialect.requests.parameters))

    def read(self, operation: str, body: bytes, call: Call) -> Generate | None:
        """The request of a plain body, as `read_generate` reads it; None: that is to read or to refuse it.

        Raises:
            schemas.errors.RequestError: it breaks a rule of the dialect.
        """
        given = read_plain(_decode_compat if operation == "compat" else _decode, body)
        if given is None or any(getattr(given.parameters, name, None) is not None for name in self._foreign):
            return None
        return read_given(self._dialect, operation, given, _NOTHING, body, call)
