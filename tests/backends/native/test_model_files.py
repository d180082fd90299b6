from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.native.demo import WEIGHTS
from backends.native.model_files import check_sizes


def test_the_bundled_model_passes() -> None:
    check_sizes(Path(WEIGHTS))


@pytest.mark.parametrize(
    ("name", "size", "passes"),
    [
        ("config.json", 16 << 20, True),
        ("config.json", (16 << 20) + 1, False),
        ("chat_template.jinja", 17 << 20, False),
        ("tokenizer.json", 256 << 20, True),
        ("tokenizer.json", (256 << 20) + 1, False),
        ("tokenizer.model", 257 << 20, False),
        ("model.safetensors", 1 << 33, True),
    ],
)
def test_files_have_a_largest_size(name: str, size: int, passes: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, size)  # sparse
    if passes:
        check_sizes(tmp_path)
    else:
        with pytest.raises(ValueError, match=f"{name} in .* is larger than"):
            check_sizes(tmp_path)
