"""Whatever bytes arrive, a decoder reads them or refuses them in its own words: every format that the server reads.

Bodies are made from examples by mutation: of their JSON (values replaced, keys dropped or renamed), and of their bytes.
There is no stored corpus but the examples; each run tries others.
"""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.base import Call, Route
from adapters.formats.sse import EventReader
from backends.images import ImageOptions
from backends.images.header import check_header
from backends.native.protocol.frames import FrameError, FrameReader
from backends.native.protocol.messages import FromEngine, ToEngine
from gateway.check import validate
from gateway.config import ConfigError, load
from gateway.registry import adapters
from schemas.catalog import Catalog
from schemas.errors import BackendFailed, GatewayError, InvalidRequest

ROOT = Path(__file__).parents[2]
SERVERS = [
    (f"{name}-{dialect}-{route.name}", adapter.server(value), route)
    for name, adapter in adapters().items()
    for dialect, value in adapter.dialects.items()
    for route in adapter.server(value).routes
    if route.method != "GET" and (route.kind != "describe" or route.body is not None)
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["", "\ud800", "user", "auto", "none", "data:,", "-1", "a" * 300, "\0"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def mutated(draw: Any, value: Any) -> Any:
    """A JSON value with one place in it changed."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        name = draw(st.sampled_from(sorted(value)))
        how = draw(st.integers(0, 9))
        rest = {key: each for key, each in value.items() if key != name}
        if how == 0:
            return rest
        if how == 1:
            return rest | {draw(st.text(max_size=8)): value[name]}
        return rest | {name: mutated(draw, value[name])}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], mutated(draw, value[place]), *value[place + draw(st.integers(0, 1)) :]]
    return draw(VALUES)


def example(route: Route) -> Any:
    """A body for a route."""
    return json.loads(json.dumps(route.example)) if route.example is not None else {"model": "m", "input": "Hi"}


@pytest.mark.slow
@pytest.mark.parametrize(("server", "route"), [case[1:] for case in SERVERS], ids=[case[0] for case in SERVERS])
@given(data=st.data())
@settings(max_examples=6)
def test_a_body_is_decoded_or_refused(server: Any, route: Route, data: st.DataObject) -> None:
    body = example(route)
    for _ in range(data.draw(st.integers(0, 3))):
        body = mutated(data.draw, body)
    raw = json.dumps(body).encode()
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(raw)))
        raw = raw[:start] + data.draw(st.binary(max_size=6)) + raw[start + data.draw(st.integers(0, 6)) :]
    call = Call("r1", Catalog({}), {"name": "m", "model": "m"})
    with contextlib.suppress(GatewayError):
        # A description reads its body itself.
        server.describe(route, call, raw) if route.kind == "describe" else server.decode(route, raw, call)


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"data: {}\n\n", b"event: x\r", b"\n", b"\xef\xbb\xbf", b":"]))
)
def test_an_event_stream_is_read_in_any_pieces(parts: list[bytes]) -> None:
    with contextlib.suppress(BackendFailed):
        pieces, whole = EventReader(limit=64), EventReader(limit=64)
        events = [event.data for part in parts for event in pieces.feed(part)]
        assert events == [event.data for event in whole.feed(b"".join(parts))]
        assert all(len(event) <= 64 for event in events)


@given(st.lists(st.binary(max_size=40)), st.sampled_from([FromEngine, ToEngine]))
def test_frames_of_the_engine_are_read_or_refused(parts: list[bytes], messages: Any) -> None:
    reader: FrameReader[Any] = FrameReader(messages)
    with contextlib.suppress(FrameError):
        for part in parts:
            reader.feed(struct.pack("<I", len(part)) + part if len(part) % 2 else part)


@given(st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b""]), st.binary(max_size=80))
def test_the_header_of_an_image_is_read_or_refused(magic: bytes, rest: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        check_header(magic + rest, ImageOptions())


EXAMPLE = (ROOT / "examples/gateway.toml").read_text()


@pytest.mark.slow
@given(st.integers(0, len(EXAMPLE)), st.text(max_size=8), st.integers(0, 40))
@settings(max_examples=60)
def test_a_configuration_is_read_or_refused(at: int, text: str, dropped: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, "gateway.toml")).write_text(EXAMPLE[:at] + text + EXAMPLE[at + dropped :])
        with contextlib.suppress(ConfigError):
            validate(load(file))


@pytest.mark.torch
@given(st.data())
@settings(max_examples=40)
def test_the_header_of_weights_is_read_or_refused(data: st.DataObject) -> None:
    from safetensors import SafetensorError, safe_open

    header: Any = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}
    for _ in range(data.draw(st.integers(0, 2))):
        header = mutated(data.draw, header)
    text = json.dumps(header).encode()
    length = data.draw(st.sampled_from([len(text), len(text) + 1, 0, 2**63, 2**32]))
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, "model.safetensors")).write_bytes(struct.pack("<Q", length) + text + bytes(16))
        with contextlib.suppress(SafetensorError), safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dictionary
                tensors.get_tensor(name)
