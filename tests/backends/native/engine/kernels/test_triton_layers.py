"""Triton's routines of fused layers against torch's, in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from backends.native.engine.kernels.acceptance import TOLERANCES
from backends.native.engine.layers import accelerated, reference
from backends.native.engine.layers.comparison import error_of
from tests.backends.native.engine.pretended.engines import wide
from tests.missing_tools import missing

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason=missing("triton")),
]

CPU = torch.device("cpu")
EXACT = {torch.float32: 2e-6, torch.float16: 2e-3}


@torch.inference_mode()
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("name", [*accelerated.NAMES, *accelerated.PRODUCTS])
def test_it_equals_torchs(name: str, dtype: torch.dtype) -> None:
    assert error_of(name, accelerated._routine(name), CPU, dtype) <= EXACT[dtype]


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(1, 1, 64), (2, 2, 7), (0, 64)])
def test_norms_of_other_shapes(shape: tuple[int, ...]) -> None:
    rows, weight = torch.randn(shape), torch.randn(shape[-1])
    found = accelerated._routine("rms_norm")(rows, weight, 1e-5)
    torch.testing.assert_close(found, reference.rms_norm(rows, weight, 1e-5))


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter computes with
def test_nan_and_infinity_stay_in_their_rows() -> None:
    rows = torch.ones(3, 32)
    rows[1, 7] = float("inf")
    normed = accelerated._routine("rms_norm")(rows, torch.ones(32), 1e-5)
    assert normed.isnan().any(1).tolist() == [False, True, False]
    gates = torch.tensor([[1e4, 1.0], [-1e4, 1.0], [float("nan"), 1.0]])
    for name in ("silu_and_mul", "gelu_and_mul"):
        found = accelerated._routine(name)(gates)
        torch.testing.assert_close(found, getattr(reference, name)(gates), equal_nan=True)


def test_the_check_of_a_device_notices_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerated.why_not("rms_norm", CPU, torch.float32) is None
    right = accelerated._routine("rms_norm")
    monkeypatch.setattr(accelerated, "_routine", lambda _: lambda *given: right(*given) * (1 + 1e-3))
    assert "differs from the reference" in (accelerated.why_not("rms_norm", CPU, torch.float32) or "")
    monkeypatch.setattr(accelerated, "_routine", lambda _: lambda *given: right(*given) * float("nan"))
    assert "differs from the reference" in (accelerated.why_not("rms_norm", CPU, torch.float32) or "")
    assert TOLERANCES[torch.float32] < 1e-3


@wide
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_all_kernels_compile_for_devices(target: str) -> None:
    """By Triton's own compilers, which need no device. In another process: this one has the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compile_triton.py")), target]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    assert "attend" in made.stdout
