"""Requests as raw bytes, malformed in the ways that tests of HTTP parsers list, and what RFC 9112 asks for."""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.config import Limits, ServerSection
from tests.gateway.serving import listening, scripted

LINE = b"GET /health HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"
GET = LINE + HOST
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
LAST = b"Connection: close\r\n\r\n"
SMUGGLED = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BODY = b'{"model":"echo","messages":[{"role":"user","content":"Hi"}]}'
BIG = 70_000

REFUSED: dict[str, tuple[int, bytes]] = {
    # The request line (RFC 9112, section 3).
    "HTTP/0.9": (400, b"GET /health\r\n"),
    "HTTP/0.9 and headers": (400, b"GET /health\r\n" + HOST + b"\r\n"),
    "no target": (400, b"GET HTTP/1.1\r\n" + HOST + b"\r\n"),
    "no method": (400, b"/health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method alone": (400, b"GET\r\n" + HOST + b"\r\n"),
    "two spaces before the target": (400, b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "two spaces behind the target": (400, b"GET /health  HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space before the method": (400, b" GET /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space behind the version": (400, b"GET /health HTTP/1.1 \r\n" + HOST + b"\r\n"),
    "a tab before the target": (400, b"GET\t/health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a tab behind the target": (400, b"GET /health\tHTTP/1.1\r\n" + HOST + b"\r\n"),
    "a vertical tab": (400, b"GET\x0b/health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space in the target": (400, b"GET /hea lth HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a word behind the version": (400, b"GET /health HTTP/1.1 x\r\n" + HOST + b"\r\n"),
    "a line of another protocol": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "SSH": (400, b"SSH-2.0-OpenSSH_9.6\r\n"),
    "an SMTP greeting": (400, b"EHLO localhost\r\n"),
    "an RTSP request": (400, b"OPTIONS rtsp://localhost/ RTSP/1.0\r\nCSeq: 1\r\n\r\n"),
    "two empty lines before it": (400, b"\r\n\r\n" + GET + b"\r\n"),
    "a lone LF before it": (400, b"\n" + GET + b"\r\n"),
    "NUL before it": (400, b"\0" + GET + b"\r\n"),
    "a byte order mark": (400, b"\xef\xbb\xbf" + GET + b"\r\n"),
    # Versions (RFC 9112, section 2.3; RFC 9110, section 15.6.6).
    "HTTP/2.0": (505, b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n"),
    "the preface of HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/3.0": (505, b"GET /health HTTP/3.0\r\n" + HOST + b"\r\n"),
    "HTTP/0.9 by name": (505, b"GET /health HTTP/0.9\r\n" + HOST + b"\r\n"),
    "HTTP/1.2": (505, b"GET /health HTTP/1.2\r\n" + HOST + b"\r\n"),
    "HTTP/1": (400, b"GET /health HTTP/1\r\n" + HOST + b"\r\n"),
    "HTTP/1.": (400, b"GET /health HTTP/1.\r\n" + HOST + b"\r\n"),
    "HTTP/11": (400, b"GET /health HTTP/11\r\n" + HOST + b"\r\n"),
    "HTTP/1.10": (400, b"GET /health HTTP/1.10\r\n" + HOST + b"\r\n"),
    "HTTP/01.1": (400, b"GET /health HTTP/01.1\r\n" + HOST + b"\r\n"),
    "HTTP/1,1": (400, b"GET /health HTTP/1,1\r\n" + HOST + b"\r\n"),
    "http/1.1": (400, b"GET /health http/1.1\r\n" + HOST + b"\r\n"),
    "HTTPS/1.1": (400, b"GET /health HTTPS/1.1\r\n" + HOST + b"\r\n"),
    "HTTP 1.1": (400, b"GET /health HTTP 1.1\r\n" + HOST + b"\r\n"),
    "HTTP/-1.1": (400, b"GET /health HTTP/-1.1\r\n" + HOST + b"\r\n"),
    "HTTP/x.y": (400, b"GET /health HTTP/x.y\r\n" + HOST + b"\r\n"),
    # Methods (RFC 9110, section 9.1).
    "an unknown method": (501, b"BREW /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a lower-case method": (501, b"get /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "CONNECT": (501, b"CONNECT /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "CONNECT to a host": (400, b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "TRACE": (501, b"TRACE /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method with a delimiter": (400, b"GE(T /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method with NUL": (400, b"GE\0T /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method above ASCII": (400, b"G\xc9T /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    # Targets (RFC 9112, section 3.2).
    "a relative target": (400, b"GET health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an authority": (400, b"GET localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an asterisk for GET": (400, b"GET * HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a fragment": (400, b"GET /health#x HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a byte above ASCII": (400, b"GET /h\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a control byte": (400, b"GET /h\x01 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "DEL": (400, b"GET /h\x7f HTTP/1.1\r\n" + HOST + b"\r\n"),
    "NUL in the target": (400, b"GET /h\0 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a backslash": (400, b"GET \\health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a backslash inside": (400, b"GET /\\health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a quote": (400, b'GET /"x" HTTP/1.1\r\n' + HOST + b"\r\n"),
    "an angle bracket": (400, b"GET /<x> HTTP/1.1\r\n" + HOST + b"\r\n"),
    "half an escape": (400, b"GET /%4 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an escape without digits": (400, b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n"),
    "another scheme": (400, b"GET ftp://localhost/health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a scheme without a host": (400, b"GET http:///health HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a long target": (414, b"GET /" + b"x" * BIG + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a long target without an end": (414, b"GET /" + b"x" * BIG),
    "a long query": (414, b"GET /health?" + b"x" * BIG + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a long method": (414, b"G" * BIG + b" / HTTP/1.1\r\n" + HOST + b"\r\n"),
    # Line ends (RFC 9112, section 2.2).
    "LF behind the request line": (400, b"GET /health HTTP/1.1\n" + HOST + b"\r\n"),
    "LF everywhere": (400, b"GET /health HTTP/1.1\nHost: localhost\n\n"),
    "LF behind a header": (400, LINE + b"Host: localhost\n\r\n"),
    "LF as the empty line": (400, GET + b"\n"),
    "CR behind the request line": (400, b"GET /health HTTP/1.1\r" + HOST + b"\r\n"),
    "CR behind a header": (400, LINE + b"Host: localhost\rX: y\r\n\r\n"),
    "CR in a value": (400, GET + b"X: a\rb\r\n\r\n"),
    "CR CR LF": (400, GET + b"X: a\r\r\n\r\n"),
    "LF CR": (400, LINE + b"Host: localhost\n\r\n\r"),
    "CR before the method": (400, b"\r" + GET + b"\r\n"),
    # Header lines (RFC 9112, section 5).
    "obs-fold": (400, GET + b"X: a\r\n b\r\n\r\n"),
    "obs-fold with a tab": (400, GET + b"X: a\r\n\tb\r\n\r\n"),
    "a fold before the first header": (400, LINE + b" X: a\r\n" + HOST + b"\r\n"),
    "a fold that hides a length": (400, POST + b"X: a\r\n Content-Length: 5\r\n\r\nhello"),
    "a space before the colon": (400, LINE + b"Host : localhost\r\n\r\n"),
    "a tab before the colon": (400, LINE + b"Host\t: localhost\r\n\r\n"),
    "no name": (400, GET + b": x\r\n\r\n"),
    "no colon": (400, GET + b"X\r\n\r\n"),
    "a space in a name": (400, GET + b"X Y: z\r\n\r\n"),
    "a delimiter in a name": (400, GET + b"X(: z\r\n\r\n"),
    "a bracket in a name": (400, GET + b"[X]: z\r\n\r\n"),
    "a slash in a name": (400, GET + b"X/Y: z\r\n\r\n"),
    "a quote in a name": (400, GET + b'"X": z\r\n\r\n'),
    "NUL in a name": (400, GET + b"X\0: z\r\n\r\n"),
    "a control byte in a name": (400, GET + b"X\x02: z\r\n\r\n"),
    "a byte above ASCII in a name": (400, GET + b"X\xe9: z\r\n\r\n"),
    "NUL in a value": (400, GET + b"X: a\0b\r\n\r\n"),
    "a control byte in a value": (400, GET + b"X: a\x01b\r\n\r\n"),
    "an escape sequence in a value": (400, GET + b"X: \x1b[2J\r\n\r\n"),
    "DEL in a value": (400, GET + b"X: a\x7fb\r\n\r\n"),
    "a header of 100 kB": (431, GET + b"X: " + b"x" * 100_000 + b"\r\n\r\n"),
    "a header of 100 kB without an end": (431, GET + b"X: " + b"x" * 100_000),
    "a header's name of 100 kB": (431, GET + b"x" * 100_000 + b": x\r\n\r\n"),
    "1000 headers": (431, GET + b"X: y\r\n" * 1000 + b"\r\n"),
    "101 headers": (431, GET + b"X: y\r\n" * 100 + b"\r\n"),
    # Host (RFC 9112, section 3.2).
    "no Host": (400, LINE + b"\r\n"),
    "no Host and another header": (400, LINE + b"X: y\r\n\r\n"),
    "two Hosts": (400, GET + b"Host: other\r\n\r\n"),
    "the same Host twice": (400, GET + HOST + b"\r\n"),
    "Host twice in HTTP/1.0": (400, b"GET /health HTTP/1.0\r\n" + HOST + HOST + b"\r\n"),
    "a Host with a user": (400, LINE + b"Host: a@b\r\n\r\n"),
    "a Host with a comma": (400, LINE + b"Host: a,b\r\n\r\n"),
    "a Host with a space": (400, LINE + b"Host: a b\r\n\r\n"),
    "a Host with a slash": (400, LINE + b"Host: a/b\r\n\r\n"),
    "a Host with a scheme": (400, LINE + b"Host: http://a\r\n\r\n"),
    "a Host with a bad port": (400, LINE + b"Host: a:b\r\n\r\n"),
    "a Host with two ports": (400, LINE + b"Host: a:1:2\r\n\r\n"),
    "a Host with a bad address": (400, LINE + b"Host: [::1\r\n\r\n"),
    "a Host with a quote": (400, LINE + b'Host: "a"\r\n\r\n'),
    "a Host above ASCII": (400, LINE + b"Host: \xc3\xa9\r\n\r\n"),
    "no Host beside an absolute target": (400, b"GET http://localhost/health HTTP/1.1\r\n\r\n"),
    # Content-Length (RFC 9112, section 6.3; RFC 9110, section 8.6).
    "a length with a sign": (400, POST + b"Content-Length: +5\r\n\r\nhello"),
    "a negative length": (400, POST + b"Content-Length: -1\r\n\r\n"),
    "a hexadecimal length": (400, POST + b"Content-Length: 0x5\r\n\r\nhello"),
    "a length with a word": (400, POST + b"Content-Length: 5 x\r\n\r\nhello"),
    "a length with a fraction": (400, POST + b"Content-Length: 5.0\r\n\r\nhello"),
    "an empty length": (400, POST + b"Content-Length:\r\n\r\n"),
    "a list of lengths": (400, POST + b"Content-Length: 5, 5\r\n\r\nhello"),
    "an underscore in a length": (400, POST + b"Content-Length: 1_0\r\n\r\nhello"),
    "a length beyond 64 bits": (400, POST + b"Content-Length: 18446744073709551621\r\n\r\nhello"),
    "a length of 100 digits": (400, POST + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "the same length twice": (400, POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    # Transfer-Encoding (RFC 9112, sections 6.1 and 7).
    "two Transfer-Encodings": (400, POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n"),
    "chunked and identity": (400, POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    "chunked and a length": (400, POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n"),
    "a length and chunked": (400, POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SMUGGLED),
    "chunked in HTTP/1.0": (400, b"POST /v1/embeddings HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n"),
    "identity": (400, POST + b"Transfer-Encoding: identity\r\n\r\n"),
    "an empty coding": (400, POST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n"),
    "xchunked": (400, POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "chunked twice": (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "chunked is not last": (400, POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "gzip before chunked": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "gzip alone": (400, POST + b"Transfer-Encoding: gzip\r\n\r\n"),
    "chunked in quotes": (400, POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n'),
    "chunked with a parameter": (400, POST + b"Transfer-Encoding: chunked;x=y\r\n\r\n0\r\n\r\n"),
    "chunked behind a vertical tab": (400, POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    # Chunks (RFC 9112, section 7.1).
    "a chunk size that is no number": (400, POST + CHUNKED + b"\r\nxyz\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with a prefix": (400, POST + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    "a negative chunk size": (400, POST + CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with a sign": (400, POST + CHUNKED + b"\r\n+5\r\nhello\r\n0\r\n\r\n"),
    "an empty chunk size": (400, POST + CHUNKED + b"\r\n\r\nhello\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": (400, POST + CHUNKED + b"\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "a space before a chunk size": (400, POST + CHUNKED + b"\r\n 5\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is longer than its size": (400, POST + CHUNKED + b"\r\n3\r\nhello\r\n0\r\n\r\n"),
    "a chunk without its line end": (400, POST + CHUNKED + b"\r\n5\r\nhello0\r\n\r\n"),
    "a chunk whose line ends in LF": (400, POST + CHUNKED + b"\r\n5\nhello\r\n0\r\n\r\n"),
    "a chunk that ends in LF": (400, POST + CHUNKED + b"\r\n5\r\nhello\n0\r\n\r\n"),
    "a chunk extension of 200 kB": (431, POST + CHUNKED + b"\r\n5;x=" + b"y" * 200_000 + b"\r\nhello\r\n0\r\n\r\n"),
    "a trailer of 200 kB": (431, POST + CHUNKED + b"\r\n0\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"),
    "100,000 trailers": (431, POST + CHUNKED + b"\r\n0\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"),
    "a fold in a trailer": (400, POST + CHUNKED + b"\r\n0\r\nX: y\r\n z\r\n\r\n"),
    "a control byte in a chunk extension": (400, POST + CHUNKED + b"\r\n5;x=\x01\r\nhello\r\n0\r\n\r\n"),
    # What never ends.
    "half a request line": (408, b"GET /hea"),
    "half a header": (408, GET + b"X: "),
    "headers without their end": (408, GET),
}

TAKEN: dict[str, tuple[list[int], bytes]] = {
    "GET": ([200], GET + LAST),
    "HEAD": ([200], b"HEAD /health HTTP/1.1\r\n" + HOST + LAST),
    "an empty line before it": ([200], b"\r\n" + GET + LAST),
    "HTTP/1.0": ([200], b"GET /health HTTP/1.0\r\n\r\n"),
    "an absolute target": ([200], b"GET http://localhost/health HTTP/1.1\r\n" + HOST + LAST),
    "an absolute target without a path": ([200], b"GET http://localhost HTTP/1.1\r\n" + HOST + LAST),
    "a query": ([200], b"GET /health?a=%20b&c=[d] HTTP/1.1\r\n" + HOST + LAST),
    "a port in Host": ([200], LINE + b"Host: localhost:80\r\n" + LAST),
    "an IPv6 address in Host": ([200], LINE + b"Host: [::1]:80\r\n" + LAST),
    "no space behind a colon": ([200], LINE + b"Host:localhost\r\n" + LAST),
    "spaces around a value": ([200], LINE + b"Host: \t localhost \t\r\n" + LAST),
    "an empty value": ([200], GET + b"X:\r\n" + LAST),
    "bytes above ASCII in a value": ([200], GET + b"X: \xc3\xa9\r\n" + LAST),
    "100 headers": ([200], GET + b"X: y\r\n" * 98 + LAST),
    "a header of 60 kB": ([200], GET + b"X: " + b"x" * 60_000 + b"\r\n" + LAST),
    "a length with zeros": ([200], GET + b"Content-Length: 00\r\n" + LAST),
    "two requests in a row": ([200, 200], GET + b"\r\n" + GET + LAST),
    "a request behind the last one": ([200], GET + LAST + SMUGGLED),
    "an upgrade to HTTP/2": ([200], GET + b"Upgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n"),
    "an upgrade to a WebSocket": ([200], GET + b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n"),
    "a body with a length": ([200], POST + b"Content-Length: %d\r\n" % len(BODY) + LAST + BODY),
    "a chunked body": ([200], POST + CHUNKED + LAST + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "a chunked body with a trailer": (
        [200],
        POST + CHUNKED + LAST + b"%x;a=b\r\n%b\r\n0\r\nHost: x\r\n\r\n" % (len(BODY), BODY),
    ),
    "a chunked body and a request behind it": (
        [200, 200],
        POST + CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) + GET + LAST,
    ),
    "a chunked body with empty lines in it": (
        [200, 200],
        POST + CHUNKED + b"\r\n%x\r\n%b\r\n\r\n\r\n0\r\n\r\n" % (len(BODY) + 4, BODY) + GET + LAST,
    ),
    "a correct request and then a wrong one": (
        [200, 400],
        GET + b"\r\nGET  / HTTP/1.1\r\n" + HOST + b"\r\n" + SMUGGLED,
    ),
}


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


async def ask(port: int, sent: bytes, step: int = 0) -> bytes:
    """All that the server answers until it closes the connection; in steps, each byte or so arrives by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for start in range(0, len(sent), step or len(sent)):
        writer.write(sent[start : start + (step or len(sent))])
        if step:
            await asyncio.sleep(0)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


def limited() -> ServerSection:
    return ServerSection(limits=Limits(header_timeout=0.4))


@pytest.mark.slow
async def test_what_is_not_correct_is_refused_once_and_the_connection_closed() -> None:
    app, _ = scripted("echo", server=limited())
    wrong = {}
    async with listening(app) as port:
        answers = await asyncio.gather(*(ask(port, sent) for _, sent in REFUSED.values()))
        for (name, (status, _)), answer in zip(REFUSED.items(), answers, strict=True):
            if statuses(answer) != [status]:
                wrong[name] = (status, answer[:200])
            elif b"\r\nconnection: close\r\n" not in answer or b"\r\nx-request-id: " not in answer:
                wrong[name] = (status, answer[:400])
        assert statuses(await ask(port, GET + LAST)) == [200], "it still answers"
    assert wrong == {}
    assert len(REFUSED) + len(TAKEN) >= 150


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 7], ids=["at once", "in pieces"])
async def test_what_is_correct_is_answered(step: int) -> None:
    app, _ = scripted("echo", server=ServerSection())
    wrong = {}
    async with listening(app) as port:
        cases = {name: case for name, case in TAKEN.items() if not step or len(case[1]) < 10_000}
        answers = await asyncio.gather(*(ask(port, sent, step) for _, sent in cases.values()))
        for (name, (expected, _)), answer in zip(cases.items(), answers, strict=True):
            if statuses(answer) != expected:
                wrong[name] = (expected, answer[:200])
    assert wrong == {}


@pytest.mark.slow
async def test_a_trailer_is_no_header() -> None:
    """A proxy in front has not seen it among the headers."""
    app, _ = scripted("echo", server=ServerSection(keys_env=None))
    sent = POST + CHUNKED + LAST + b"%x\r\n%b\r\n0\r\nX-Api-Key: forged\r\n\r\n" % (len(BODY), BODY)
    async with listening(app) as port:
        assert statuses(await ask(port, sent)) == [200]
