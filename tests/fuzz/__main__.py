"""Coverage-guided fuzzing of every reader of foreign bytes, with atheris: `make fuzz`, or

    python -m tests.fuzz TARGET [CORPUS] [libFuzzer's options, such as -max_total_time=60]

Each target reads the bytes or refuses them in its own words; anything else is a crash, whose input libFuzzer keeps.
`test_decoders` tries the same readers with examples that hypothesis makes, as part of the suite.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import atheris  # type: ignore[import-not-found]  # an extra of its own: no part of the checks

with atheris.instrument_imports(include=["adapters", "backends", "gateway", "schemas"]):
    from adapters.base import Call
    from adapters.formats.multipart import form_field, is_form, with_field
    from adapters.formats.sse import EventReader
    from backends.images import ImageOptions
    from backends.images.header import check_header
    from backends.native.protocol.frames import FrameError, FrameReader, encode_frame
    from backends.native.protocol.messages import Cancel, FromEngine, Submit, ToEngine
    from gateway.config import ConfigError, Limits, parse
    from gateway.registry import adapters
    from gateway.server.request_head import RefusedHead, read_head
    from schemas.catalog import Catalog
    from schemas.errors import BackendFailed, GatewayError

    ADAPTERS = adapters()  # here, since it imports the protocols' modules

ROUTES = [
    (codec, route)
    for adapter in ADAPTERS.values()
    for dialect in adapter.dialects.values()
    for codec in [adapter.server(dialect)]
    for route in codec.routes
    if route.method != "GET" and route.kind != "describe"
]


def bodies(data: bytes) -> None:
    """Read a body with the server codec and route that the first two bytes choose."""
    codec, route = ROUTES[int.from_bytes(data[:2], "big") % len(ROUTES)]
    with contextlib.suppress(GatewayError):
        codec.decode(route, data[2:], Call("r1", Catalog({}), {"name": "m", "model": "m"}))


def events(data: bytes) -> None:
    """Read an event stream in two pieces and whole: both must give the same events."""
    at = data[0] if data else 0
    with contextlib.suppress(BackendFailed):
        pieces = EventReader()
        parts = [(event.type, event.data) for part in (data[1:][:at], data[1:][at:]) for event in pieces.feed(part)]
        assert parts == [(event.type, event.data) for event in EventReader().feed(data[1:])]


def frames(data: bytes) -> None:
    """Read messages of the engine and to it."""
    for messages in (FromEngine, ToEngine):
        with contextlib.suppress(FrameError):
            FrameReader(messages).feed(data)


def heads(data: bytes) -> None:
    """Read the head of an HTTP request."""
    with contextlib.suppress(RefusedHead):
        read_head(data + b"\r\n\r\n", Limits())


def images(data: bytes) -> None:
    """Read the header of an image."""
    with contextlib.suppress(GatewayError):
        check_header(data, ImageOptions())


def configurations(data: bytes) -> None:
    """Read a configuration."""
    with contextlib.suppress(ConfigError):
        parse(data.decode("utf-8", "replace"))


def forms(data: bytes) -> None:
    """Read a field of a multipart form, and replace it. Up to the first line's end: the media type."""
    media_type, _, body = data.partition(b"\n")
    kind = media_type.decode("latin-1")
    with contextlib.suppress(GatewayError):
        if is_form(kind):
            form_field(body, kind, "model")
            form_field(with_field(body, kind, "model", "far"), kind, "model")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (bodies, events, frames, heads, images, configurations, forms)
}


FORM = b'multipart/form-data; boundary=x\n--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
SEEDS: dict[str, list[bytes]] = {
    "bodies": [
        number.to_bytes(2, "big") + json.dumps(route.example).encode() for number, (_, route) in enumerate(ROUTES)
    ],
    "events": [b'\x05event: x\ndata: {"a": 1}\n\n', b"\x09\xef\xbb\xbfdata: [DONE]\r\n\r\n"],
    "frames": [encode_frame(Cancel(1)), encode_frame(Submit(1, (1, 2), 3))],
    "heads": [
        b"POST /v1/x?y HTTP/1.1\r\nHost: a:1\r\nContent-Length: 1",
        b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
    "images": [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\2\0\0\0",
        b"\xff\xd8\xff\xc0\0\x11\x08\0\1\0\1\3",
    ],
    "configurations": [path.read_bytes() for path in Path(__file__).parents[2].glob("examples/*.toml")],
    "forms": [FORM],
}
"""Where each target begins."""


def main() -> None:
    """Fuzz one target until libFuzzer ends."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz TARGET; targets: {' '.join(TARGETS)}")
    name = sys.argv.pop(1)
    for folder in sys.argv[1:]:
        if not folder.startswith("-"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            for number, seed in enumerate(SEEDS[name]):
                Path(folder, f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
