from __future__ import annotations

from pathlib import Path

import pytest

from backends.native.cluster.__main__ import follow


def test_the_file_follows_the_listing(tmp_path: Path) -> None:
    file, asked = tmp_path / "engines", []
    answers = iter([b"tcp://10.0.0.1:7 a\n", b"tcp://10.0.0.1:7 a\n", b"tcp://10.0.0.1:7 b\ntcp://10.0.0.2:7 c\n"])

    def ask(seen: bytes) -> bytes:
        asked.append(seen)
        if (answer := next(answers, None)) is None:
            raise LookupError("the cluster is gone")
        return answer

    for _ in range(2):
        with pytest.raises(LookupError):
            follow(ask, file)
    assert file.read_bytes() == b"tcp://10.0.0.1:7 b\ntcp://10.0.0.2:7 c\n", "it outlives the cluster"
    assert asked[0] == b""
    assert asked[-1] == file.read_bytes(), "the next process goes on from the file"
    assert [path.name for path in tmp_path.iterdir()] == ["engines"]
