"""The reader of `.proto` files."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.formats.protobuf import load

TEXT = """
// A comment.
syntax = "proto3";

package a.b;

service S {
  rpc M(Outer) returns (Outer);
}

enum Color {
  RED = 0;
  BLUE = 7;
}

message Outer {
  message Inner {
    repeated int64 numbers = 3;
  }
  oneof choice {
    string text = 1;
    Inner inner = 2;
  }
  map<string, Inner> by_name = 4;
  Color color = 5;
}
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "a.proto"
    path.write_text(text)
    return path


def test_messages_have_the_fields_of_the_file(tmp_path: Path) -> None:
    messages = load(file(tmp_path, TEXT))
    assert list(messages) == ["Outer", "Outer.Inner"]
    assert messages["Outer"].DESCRIPTOR.full_name == "a.b.Outer"
    outer = messages["Outer"](text="x", color=7)
    outer.by_name["é"].numbers.append(1)
    # Written by hand: keys are number * 8 + wire type.
    assert outer.SerializeToString(deterministic=True) == (b'\x0a\x01x"\x09\x0a\x02\xc3\xa9\x12\x03\x1a\x01\x01(\x07')
    outer.inner.numbers.append(2)
    assert outer.WhichOneof("choice") == "inner"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("  bytes b 1;", "not understood"),
        ("  Nothing n = 9;", "unknown type Nothing"),
        ("  map<int32, int32> m = 1;", "m = 1"),
    ],
)
def test_a_line_that_is_not_understood_is_an_error(tmp_path: Path, line: str, why: str) -> None:
    text = TEXT.replace("  Color color = 5;", line)
    with pytest.raises(ValueError, match=why):
        load(file(tmp_path, text))
