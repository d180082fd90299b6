"""A field of a multipart form, read and replaced, with all other bytes as they came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.formats.multipart import form_field, is_form, with_field
from schemas.errors import MalformedBody

TYPE = 'multipart/form-data; boundary="x-1"'
FILE = b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'


def form(*parts: bytes) -> bytes:
    return b"".join(b"--x-1\r\n%b\r\n" % part for part in parts) + b"--x-1--\r\n"


def field(name: str, value: bytes) -> bytes:
    return b'content-disposition: form-data; name="%b"\r\n\r\n%b' % (name.encode(), value)


@given(sound=st.binary(max_size=40).filter(lambda data: b"--x-1" not in data), model=st.sampled_from(["m", "", "é/7"]))
def test_the_model_is_replaced_and_nothing_else(sound: bytes, model: str) -> None:
    body = form(FILE + sound, field("model", model.encode()), field("language", b"en"))
    assert form_field(body, TYPE, "model") == model
    changed = with_field(body, TYPE, "model", "far/name")
    assert changed == form(FILE + sound, field("model", b"far/name"), field("language", b"en"))


def test_an_absent_field_is_added() -> None:
    body = b"preamble\r\n" + form(FILE + b"RIFF")
    assert form_field(body, TYPE, "model") is None
    assert form_field(with_field(body, TYPE, "model", "far"), TYPE, "model") == "far"


@pytest.mark.parametrize("name", ["name=model", 'filename="a"; name="model"'])
def test_forms_of_the_header(name: str) -> None:
    body = form(b"Content-Type: text/plain\r\nCONTENT-DISPOSITION: form-data; %b\r\n\r\nm" % name.encode())
    assert form_field(body, "Multipart/Form-Data; charset=utf-8; boundary=x-1", "model") == "m"


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"", TYPE),
        (b"--y\r\n", TYPE),
        (form(field("a", b"x"))[:-12], TYPE),
        (form(b"no end of head"), TYPE),
        (form(field("model", b"\xff")), TYPE),
        (form(*[field("a", b"")] * 1001), TYPE),
        (form(field("model", b"m")), "multipart/form-data"),
    ],
)
def test_what_is_no_form(body: bytes, media_type: str) -> None:
    with pytest.raises(MalformedBody):
        form_field(body, media_type, "model")


def test_what_media_type_is_a_form() -> None:
    assert is_form(TYPE)
    assert not is_form("application/json")
