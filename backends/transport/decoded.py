"""Answers with a content encoding, decoded while they are read: no request asks for one, but some proxies compress.

zlib itself and not httpx's decoders: those take an encoded body that was cut for a whole one, and expand a piece
without a bound.
"""

from __future__ import annotations

import zlib

from backends.transport.limits import TransportLimits
from backends.transport.response import Response
from schemas.errors import BackendFailed, Fault, Incomplete

_KNOWN = frozenset({"gzip", "x-gzip", "deflate"})
_EITHER_HEADER = (
    32 + zlib.MAX_WBITS
)  # zlib.decompressobj: that of gzip or of zlib, which "deflate" means (RFC 9110, 8.4)


def decoded(encoded: Response, limits: TransportLimits) -> Response:
    """The same answer without its content encoding.

    Raises:
        schemas.errors.BackendFailed: the encoding is not known.
    """
    if encoded.header("content-encoding").strip().lower() not in _KNOWN:
        raise BackendFailed("The backend's answer has an unknown content encoding.", fault=Fault.MALFORMED)
    return _Decoded(encoded, limits)


class _Decoded(Response):
    __slots__ = ("_begun", "_encoded", "_inflater", "_limits", "_waiting")

    def __init__(self, encoded: Response, limits: TransportLimits) -> None:
        # What a body's headers say of its encoded form is not true of the decoded one.
        gone = ("content-encoding", "content-length")
        headers = tuple(each for each in encoded.headers if each[0] not in gone)
        super().__init__(encoded.status, headers, limits.body)
        self._encoded = encoded
        self._limits = limits
        self._inflater = zlib.decompressobj(_EITHER_HEADER)
        self._waiting = b""  # received and not decoded yet
        self._begun = False

    async def read(self, deadline: float | None) -> bytes:
        while True:
            if not self._waiting:
                self._waiting = await self._encoded.read(deadline)
                if not self._waiting:
                    return self._end()
            self._begun = True
            # Bounded: a byte may expand to a thousand.
            try:
                data = self._inflater.decompress(self._waiting, self._limits.buffered)
            except zlib.error:
                message = "The backend's answer could not be read: its content encoding is broken."
                raise BackendFailed(message, fault=Fault.MALFORMED) from None
            self._waiting = self._inflater.unconsumed_tail
            if self._inflater.eof and (self._waiting or self._inflater.unused_data):  # gzip may have several members
                self._waiting = self._inflater.unused_data
                self._inflater = zlib.decompressobj(_EITHER_HEADER)
            if data:  # a piece may end in the middle of a block and decode to nothing
                return data

    def _end(self) -> bytes:
        if self._begun and not self._inflater.eof:  # an empty body is encoded as an empty body
            message = "The backend's answer stopped before it was finished."
            raise Incomplete(message, fault=Fault.TRUNCATED)
        return b""

    def finish(self) -> None:
        self._encoded.finish()

    def close(self) -> None:
        self._encoded.close()
