"""The decoding of bodies: accepted bodies, limits, and the messages of refusals."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.body import MAX_DEPTH, convert, parse, read
from schemas.errors import InvalidRequest, MalformedBody


class Inner(msgspec.Struct, frozen=True):
    kind: Literal["a", "b"]
    size: int | None = None


class Outer(msgspec.Struct, frozen=True):
    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    inner: tuple[Inner, ...] = ()
    flag: bool | None = None
    named: str = msgspec.field(default="", name="in-wire")
    labels: dict[str, str] = {}


def test_read_returns_the_struct_and_unknown_fields() -> None:
    struct, unknown = read(b'{"name": "x", "new": [1], "inner": [{"kind": "a", "x": 1}], "in-wire": "y"}', Outer)
    assert struct == Outer("x", inner=(Inner("a"),), named="y")
    assert unknown == {"new": [1]}


def test_null_is_left_to_the_struct() -> None:
    assert read(b'{"name": "x", "flag": null}', Outer) == (Outer("x"), {})


def test_of_duplicate_keys_the_last_counts() -> None:
    assert read(b'{"name": "x", "name": "y", "new": 1, "new": 2}', Outer) == (Outer("y"), {"new": 2})


def test_convert_is_the_second_half_of_read() -> None:
    assert convert({"name": "x", "new": 1}, Outer) == (Outer("x"), {"new": 1})
    with pytest.raises(MalformedBody):
        convert([], Outer)


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ("{}", "Missing required parameter: 'name'.", "name"),
        ('{"name": "x", "inner": [{}]}', "Missing required parameter: 'inner[0].kind'.", "inner[0].kind"),
        ('{"name": 3}', "Invalid type for 'name': expected a string, but got an integer instead.", "name"),
        ('{"name": null}', "Invalid type for 'name': expected a string, but got null instead.", "name"),
        ('{"name": "x", "count": 0}', "Invalid value for 'count': Expected `int` >= 1.", "count"),
        (
            '{"name": "x", "count": "3"}',
            "Invalid type for 'count': expected an integer, but got a string instead.",
            "count",
        ),
        (
            '{"name": "x", "count": true}',
            "Invalid type for 'count': expected an integer, but got a boolean instead.",
            "count",
        ),
        (
            '{"name": "x", "inner": [{"kind": "a"}, {"kind": "c"}]}',
            "Invalid value: 'c'. Supported values are: 'a' and 'b'.",
            "inner[1].kind",
        ),
        (
            '{"name": "x", "inner": [{"kind": "`\\n - at `$`"}]}',
            "Invalid value: '`\\n - at `$`'. Supported values are: 'a' and 'b'.",
            "inner[0].kind",
        ),
        (
            '{"name": "x", "inner": {}}',
            "Invalid type for 'inner': expected an array, but got an object instead.",
            "inner",
        ),
        (
            '{"name": "x", "labels": {"a": "b", "c": 1}}',
            "Invalid type for 'labels': expected a string, but got an integer instead.",
            "labels",
        ),
        (
            '{"name": "x", "in-wire": 1}',
            "Invalid type for 'in-wire': expected a string, but got an integer instead.",
            "in-wire",
        ),
    ],
)
def test_invalid_fields_are_refused(body: str, message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read(body.encode(), Outer)
    assert (error.value.message, error.value.param) == (message, param)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{}", "missing_required_parameter"),
        ('{"name": 3}', "invalid_type"),
        ('{"name": "x", "inner": [{"kind": "c"}]}', "invalid_value"),
        ('{"name": "x", "count": 0}', None),
    ],
)
def test_the_code_says_what_is_wrong(body: str, code: str | None) -> None:
    with pytest.raises(InvalidRequest) as error:
        read(body.encode(), Outer)
    assert error.value.code == code


def test_a_protocol_may_have_words_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match=r"^inner\[0\]\.kind is a string, not an integer or null: string integer$"):
        convert(
            {"name": "x", "inner": [{"kind": 3}]},
            Outer,
            lambda misfit: InvalidRequest(
                f"{misfit.path} is a string, not an integer or null: {' '.join((*misfit.expected, misfit.got))}"
            ),
        )


@pytest.mark.parametrize("body", ["null", "3", '"x"', "[]", '[{"name": "x"}]', "true"])
def test_only_objects_are_bodies(body: str) -> None:
    with pytest.raises(MalformedBody, match=r"^The request body must be a JSON object\.$"):
        read(body.encode(), Outer)


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"a": 1,}',
        b"{'a': 1}",
        b'{"a": 1} x',
        b'{"a": 01}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": -1e400}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": "\x00"}',
        b'{"a": "\n"}',
        b'{"a": "\\x"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud800 tail that is long enough"}',
        b'{"a": "\\ud800\\u0041"}',
        b'{"a": "\\udc00 tail that is long enough"}',
        b'{"\\ud800 tail that is long enough": 1}',
        b"\xff",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xc0\x80"}',
        b'{"a": "\xf5\x80\x80\x80"}',
        b'{"\xff": 1}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        nested(MAX_DEPTH + 1, b"[", b"]"),
        nested(MAX_DEPTH + 1, b'{"a":', b"}"),
        nested(MAX_DEPTH // 2 + 1, b'[{"a":', b"}]"),
        b"[" * 100_000,
        nested(100_000, b"[", b"]"),
        nested(100_000, b'{"a":', b"}"),
        b'{"a": [18446744073709551616]}',
        b'{"a": -9223372036854775809}',
        b"[" + b"{}," * 100_000 + b"{}]",
        b"{" + b'"a":1,' * 100_000 + b'"b":1}',
        b"[" + b"1," * 1_000_001 + b"1]",
        b'{"many": [' + b"[]," * 100 + nested(MAX_DEPTH - 1, b"[", b"]") + b"]}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody) as error:
        parse(body)
    assert error.value.message.startswith("The request body is n")


@pytest.mark.parametrize("body", [b"", b" \r\n"])
def test_an_empty_body_is_called_empty(body: bytes) -> None:
    with pytest.raises(MalformedBody) as error:
        parse(body)
    assert error.value.message == "The request body is not valid JSON: it is empty"


@pytest.mark.parametrize(
    "body",
    [
        nested(MAX_DEPTH, b"[", b"]"),
        nested(MAX_DEPTH, b'{"a":', b"}"),
        b"[" + b"[]," * 1000 + b"{}]",
        b'{"a": "' + b"[" * 1000 + b'"}',  # brackets in a text are text
        b'{"a": "\\ud83d\\ude42"}',
        b'{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e308}',
        b' \n{"a"\t:\r1}\n',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_wellformed(body: bytes) -> None:
    assert parse(body) == json.loads(body)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans())
def test_any_json_value_is_decoded_unchanged(value: Any, ascii: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii).encode()) == value


@given(st.binary() | st.text(alphabet='{}[],:"\\u0dDeE+-.19 \nantrflse').map(str.encode))
def test_any_bytes_are_decoded_or_refused_as_by_the_json_module(body: bytes) -> None:
    try:
        value = parse(body)
    except MalformedBody:
        return
    assert value == json.loads(body)
