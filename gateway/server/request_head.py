"""The head of a request, read strictly: RFC 9112 as one regular expression.

Strategy: parsers of HTTP accept much for the sake of old clients (two Transfer-Encodings, no Host, several spaces,
HTTP/0.9), and have no limits. A server behind a proxy that reads such a head differently answers requests that the
proxy never saw (request smuggling), so a head that is not plainly correct is refused, and the connection closed. What
passes has one reading, and no other parser reads it: one that calls Python for each header takes twice as long. A
client repeats its head in each request but for the length of the body, so heads are remembered (`HeadReader`). No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gateway.access.headers import decode_headers
from gateway.config import Limits
from schemas.errors import InvalidRequest

if TYPE_CHECKING:
    from gateway.http.direct.lane import Lane

END = b"\r\n\r\n"

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
# RFC 3986, appendix A: what a path and a query consist of. A fragment (`#`) is never sent.
_URI = rb"[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=]*+(?:%[0-9A-Fa-f]{2}[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=]*+)*+"
# RFC 9112, section 3.2: origin form, absolute form, and the asterisk form of OPTIONS.
_TARGET = rb"(/%b|[Hh][Tt][Tt][Pp][Ss]?://[^/?#\s]+(?:[/?]%b)?|\*)" % (_URI, _URI)
# RFC 9110, section 5.5: visible characters, space, tab and 0x80 to 0xFF; a line that begins with a space (obs-fold) has
# no name.
_FIELDS = rb"(?:%b:[^\x00-\x08\x0a-\x1f\x7f]*+\r\n)*+" % _TOKEN
_LINE = rb"(%b) %b HTTP/1\.([01])\r\n" % (_TOKEN, _TARGET)
_HEAD = re.compile(rb"%b(%b)\r\n" % (_LINE, _FIELDS))
FIELDS = re.compile(_FIELDS)
"""Header lines."""
_REQUEST_LINE = re.compile(_LINE)
_OTHER_VERSION = re.compile(rb"%b [!-~]+ HTTP/(?!1\.[01])[0-9]\.[0-9]\r\n" % _TOKEN)
_FIELD = re.compile(rb"([^:]++):([^\r]*+)\r\n")
# RFC 3986, section 3.2.2, less the delimiters that no host name has and that readers disagree about.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[\w.~%\-]*)(?::[0-9]*)?", re.ASCII)
_DIGITS = 18
_LENGTH = re.compile(rb"[0-9]{1,%d}" % _DIGITS)
_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,%d})\r\n" % _DIGITS)
_LONGEST_KNOWN, _MOST_KNOWN = 4096, 256
"""Bytes of a head that is remembered, and how many are: one megabyte of heads, and a few of what was read of them."""
_CODING = re.compile(rb"chunked", re.IGNORECASE)
_STRAY = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\0")
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS"))


class Framing(Enum):
    """How the end of a body is found, where no length says it."""

    CHUNKED = "chunked"


class Head(NamedTuple):
    """A correct head.

    Attributes:
        method: one that the server has.
        target: of the request, as it was sent.
        version: "1.0" or "1.1".
        headers: lower-case names, and values without the spaces around them.
        framing: the length of the body in bytes, or chunked.
        keeps_alive: whether the client sends more requests on the connection.
        expects_continue: whether the client waits for a word before it sends the body.
        text: the headers as text, by name; None: a key is given twice.
        lanes: those of the head, by the address that it came to (`gateway.http.direct`), for as long as it is
            remembered, whatever the length of its body; None: it is not remembered.
    """

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    framing: int | Framing
    keeps_alive: bool
    expects_continue: bool
    text: Mapping[str, str] | None
    lanes: dict[tuple[str, int | None] | None, Lane | None] | None = None


class RefusedHead(Exception):
    """A head that is not taken.

    Args:
        status: of the answer.
        reason: one sentence for the client.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def read_head(head: bytes, limits: Limits) -> Head:
    """Read a request's head.

    Args:
        head: request line and fields, with the empty line that ends them.
        limits: of its size.

    Raises:
        RefusedHead: it is too large, or no correct head.
    """
    check_size(head, limits)
    if head.count(b"\r\n") - 2 > limits.max_headers:
        raise RefusedHead(431, f"The request has more than {limits.max_headers} headers.")
    found = _HEAD.fullmatch(head)
    if found is None:
        raise _wrong_syntax(head)
    method, target, minor, fields = found.groups()
    if method not in _METHODS:
        raise RefusedHead(501, "The method is not implemented.")
    if target == b"*" and method != b"OPTIONS":
        raise RefusedHead(400, "The request target is wrong.")
    # RFC 9112, section 5.1: spaces and tabs around a value are not part of it.
    headers = [(name.lower(), value.strip(b" \t")) for name, value in _FIELD.findall(fields)]
    is_http_1_0 = minor == b"0"
    framing = _framing(headers, is_http_1_0=is_http_1_0)
    names = dict(headers)
    keeps_alive = not is_http_1_0
    if b"connection" in names:  # maybe several times
        keeps_alive &= not any(name == b"connection" and _says_close(value) for name, value in headers)
    expects = names.get(b"expect", b"").lower() == b"100-continue"
    version = "1.0" if is_http_1_0 else "1.1"
    return Head(method, target, version, headers, framing, keeps_alive, expects, _text_of(headers))


class HeadReader:
    """Reads heads. One that differs from an earlier one in the length of its body alone is not read again.

    What is remembered is bounded, and nothing of it is trusted: it is compared with all other bytes of a head.

    Args:
        limits: of a head's size.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # A longer body has a few more digits: no head here may then be too large.
        self._longest = min(_LONGEST_KNOWN, limits.max_request_line - _DIGITS)
        self._known: dict[bytes, tuple[Head, int]] = {}  # by all but the digits; the place of the length, or -1
        # What is around the digits of the head that was read last: the next one mostly begins and ends like it.
        self._around = b"-", b""

    def read(self, head: bytes) -> Head:
        """Read a request's head, as `read_head` does.

        Raises:
            RefusedHead: it is too large, or no correct head.
        """
        before, after = self._around
        digits = head[len(before) : -len(after)] if head.startswith(before) and head.endswith(after) else b""
        if not digits.isdigit() or len(digits) > _DIGITS:
            found = _LENGTH_LINE.search(head)
            before, digits, after = (
                (head, b"", b"") if found is None else (head[: found.start(1)], found[1], head[found.end(1) :])
            )
        known = self._known.get(before + after)
        if known is None:
            return self._remember(before + after, head)
        if digits:
            self._around = before, after
        read, place = known
        if not digits or read.headers[place][1] == digits:
            return read
        headers = read.headers.copy()
        headers[place] = (b"content-length", digits)
        text = None if read.text is None else {**read.text, "content-length": digits.decode()}
        method, target, version, _, _, keeps_alive, expects, _, lanes = read
        return Head(method, target, version, headers, int(digits), keeps_alive, expects, text, lanes)

    def _remember(self, name: bytes, head: bytes) -> Head:
        read = read_head(head, self._limits)
        if len(head) <= self._longest:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            read = read._replace(lanes={})
            place = next((at for at, (field, _) in enumerate(read.headers) if field == b"content-length"), -1)
            self._known[name] = read, place
        return read


def _text_of(headers: list[tuple[bytes, bytes]]) -> Mapping[str, str] | None:
    try:
        return decode_headers(headers)
    except InvalidRequest:
        return None  # refused where the request is handled, in its protocol


def check_part(part: bytes, limits: Limits) -> None:
    """Check the beginning of a head, as far as it has come: what is wrong already is refused without waiting.

    Raises:
        RefusedHead: it is too large, or cannot become a correct head.
    """
    check_size(part, limits)
    if _STRAY.search(part):
        raise RefusedHead(400, "The request has a line that does not end in CR LF.")
    end = part.find(b"\r\n")
    if end >= 0 and not _REQUEST_LINE.match(part):
        raise _wrong_syntax(part)


def check_size(head: bytes, limits: Limits) -> None:
    """Check the size of a head, or of what has come of it.

    Raises:
        RefusedHead: the request line or the headers are too large.
    """
    if len(head) <= limits.max_request_line:  # most heads: one comparison
        return
    end = head.find(b"\r\n")
    if end < 0 or end > limits.max_request_line:
        raise RefusedHead(414, f"The request line is longer than {limits.max_request_line} bytes.")
    if len(head) - end > limits.max_header_bytes:
        raise RefusedHead(431, f"The headers are larger than {limits.max_header_bytes} bytes.")


def origin_form(target: bytes) -> bytes:
    """The path and query of an absolute target (RFC 9112, section 3.2.2); the asterisk as a path that nobody has."""
    if target == b"*":
        return b"/*"
    rest = target.partition(b"://")[2]
    path = rest[len(rest.partition(b"/")[0].partition(b"?")[0]) :]
    return path if path.startswith(b"/") else b"/" + path


def _wrong_syntax(head: bytes) -> RefusedHead:
    if not _REQUEST_LINE.match(head):
        if _OTHER_VERSION.match(head):
            return RefusedHead(505, "This server speaks HTTP/1.1.")
        return RefusedHead(400, "The request line is wrong.")
    return RefusedHead(400, "A header line is wrong.")


def _framing(headers: list[tuple[bytes, bytes]], *, is_http_1_0: bool) -> int | Framing:
    """How the fields frame the body."""
    hosts = lengths = codings = 0
    framing: int | Framing = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if not _HOST.fullmatch(value):
                raise RefusedHead(400, "The Host header is wrong.")
        elif name == b"content-length":
            lengths += 1
            if not _LENGTH.fullmatch(value):
                raise RefusedHead(400, "The Content-Length header is wrong.")
            framing = int(value)
        elif name == b"transfer-encoding":
            codings += 1
            framing = _chunked(value)
    # RFC 9112, section 3.2: exactly one Host in HTTP/1.1. Sections 6.1 and 6.3: any doubt about the body's end is an
    # attempt to smuggle a request.
    if hosts > 1 or (hosts == 0 and not is_http_1_0):
        raise RefusedHead(400, "A request has one Host header.")
    if lengths + codings > 1:
        raise RefusedHead(400, "A request has one Content-Length or one Transfer-Encoding header.")
    if codings and is_http_1_0:
        raise RefusedHead(400, "HTTP/1.0 has no Transfer-Encoding.")
    return framing


def _says_close(value: bytes) -> bool:
    """Whether a Connection header says that the client sends no further request (RFC 9112, section 9.3)."""
    return b"close" in [option.strip(b" \t") for option in value.lower().split(b",")]


def _chunked(value: bytes) -> Framing:
    if _CODING.fullmatch(value):
        return Framing.CHUNKED
    # RFC 9112, section 6.1: a coding that the server does not know is 501, an unclear end of the body 400.
    if _CODING.fullmatch(value.rpartition(b",")[2].strip(b" \t")) and value.lower().count(b"chunked") == 1:
        raise RefusedHead(501, "The transfer coding is not implemented.")
    raise RefusedHead(400, "The Transfer-Encoding header is wrong.")
