"""Folders that the tools of quantization have written give the logits of their weights.

`make test-formats` installs the tools in an environment of their own, which `INTERLINGUA_FORMATS` names.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backends.native.engine.loading.weights import load

PYTHON = os.environ.get("INTERLINGUA_FORMATS", "")
SCRIPT = Path(__file__).with_name("write_folders.py")
NAMES = (
    *(f"compressed-tensors-{preset}" for preset in ("W4A16", "W4A16_ASYM", "W8A16", "W8A8")),
    *(f"compressed-tensors-{preset}" for preset in ("FP8", "FP8_DYNAMIC", "FP8_BLOCK")),
    *(f"bitsandbytes-{kind}" for kind in ("nf4", "nf4-nested", "fp4", "int8")),
    *(f"gptqmodel-{kind}" for kind in ("gptq", "gptq-8", "gptq-2-v2", "awq", "fp8-tensor", "fp8-row", "fp8-block")),
    *(f"auto-round-{kind}" for kind in ("gptq", "gptq-asymmetric", "gptq-8", "awq", "awq-asymmetric", "fp8")),
    *("auto-round", "transformers-fp8", "transformers-fp8-powers", "torchao-float8", "torchao-int8"),
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a minute and a half on an idle machine
    pytest.mark.skipif(not PYTHON, reason="part of `make test-formats`"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of `NAMES`."""
    out = tmp_path_factory.mktemp("folders")
    # Tools write their logs where they run.
    subprocess.run([PYTHON, SCRIPT, out], check=True, timeout=890, cwd=out)
    return out


def test_all_folders_are_compared(written: Path) -> None:
    assert {path.stem for path in written.glob("*.safetensors")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_weights(name: str, written: Path) -> None:
    expected = load_file(written / f"{name}.safetensors")["logits"]
    for keep in (False, True):  # expanded, and as they are where they can be
        with torch.inference_mode():
            found = load(str(written / name), keep=keep).model(torch.arange(12).unsqueeze(0)).logits[0]
        torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.abs().max()), rtol=0)
