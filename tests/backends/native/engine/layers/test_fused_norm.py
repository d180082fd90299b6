"""The fused norm gives what the model's own does, and replaces only one that it equals."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

from backends.native.engine.kernels import jit
from backends.native.engine.layers.fused_norm import FusedCenteredNorm, FusedGatedNorm, FusedNorm
from backends.native.engine.layers.fusion import replace_modules
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = pytest.mark.torch
DTYPES = [(torch.float32, 2**-21), (torch.bfloat16, 2**-8)]


def norm(width: int, dtype: torch.dtype = torch.float32) -> LlamaRMSNorm:
    torch.manual_seed(0)
    made = LlamaRMSNorm(width, eps=1e-5)
    made.weight.data.normal_()
    return made.to(dtype)


def of(module: nn.Module) -> FusedNorm:
    if jit.find_compiler() is None:
        pytest.skip("missing tool: g++")
    found = FusedNorm.of(module)
    assert found is not None
    return found


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (7, 896), (3, 40), (2, 5, 7), (90, 512), (0, 64), (1, 0, 64)])
def test_it_equals_the_models_own(dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]) -> None:
    plain, rows = norm(shape[-1], dtype), torch.randn(shape).to(dtype)
    found = of(plain)(rows)
    assert found.dtype == dtype
    torch.testing.assert_close(found, plain(rows), rtol=tolerance, atol=tolerance)


def test_a_norm_with_a_gate_is_left_alone() -> None:
    class Gated(LlamaRMSNorm):
        def forward(self, rows: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(rows if gate is None else rows * gate)

    assert FusedNorm.of(Gated(8)) is None


@torch.inference_mode()
def test_rows_that_are_not_contiguous() -> None:
    plain, rows = norm(24), torch.randn(5, 24, 2)[..., 1]
    torch.testing.assert_close(of(plain)(rows), plain(rows))


@torch.inference_mode()
def test_nan_stays_in_its_row() -> None:
    rows = torch.ones(3, 32)
    rows[1, 7] = float("inf")
    assert of(norm(32))(rows).isnan().any(1).tolist() == [False, True, False]


@torch.inference_mode()
def test_rows_of_another_precision_are_left_to_the_module() -> None:
    plain, rows = norm(32, torch.bfloat16), torch.randn(2, 32)
    assert torch.equal(of(plain)(rows), plain(rows))


@needs_compiler
def test_other_formulas_stay() -> None:
    class Centred(LlamaRMSNorm):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows - rows.mean(-1, keepdim=True))

    class Careless(LlamaRMSNorm):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.weight * rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True))

    class Uncentered(GemmaRMSNorm):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self._norm(rows.float()) * self.weight

    gemma = GemmaRMSNorm(32)
    gemma.variance_epsilon = gemma.eps
    others = [Uncentered(32), nn.LayerNorm(32), norm(32).half(), nn.Linear(32, 32), nn.BatchNorm2d(32)]
    model = nn.Sequential(Centred(32), Careless(32), gemma, *others)
    kinds = [type(part) for part in model]
    replace_modules(model, FusedNorm.of)
    assert [type(part) for part in model] == kinds
    kinds[2] = FusedCenteredNorm
    replace_modules(model, FusedCenteredNorm.of)
    assert [type(part) for part in model] == kinds


@torch.inference_mode()
@needs_compiler
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (7, 896), (2, 5, 7), (0, 64)])
def test_norms_of_gemma(dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, rows = GemmaRMSNorm(shape[-1]), torch.randn(shape).to(dtype)
    plain.weight.data.normal_()
    fused = FusedCenteredNorm.of(plain.to(dtype))
    assert fused is not None
    torch.testing.assert_close(fused(rows), plain(rows), rtol=tolerance, atol=tolerance)
    assert torch.equal(fused(rows.double()), plain(rows.double()))  # left to the module
    plain.weight.data.add_(1.0)
    if rows.numel():
        assert not torch.allclose(fused(rows), plain(rows), rtol=tolerance, atol=tolerance)


@torch.inference_mode()
def test_another_center_is_not_gemmas() -> None:
    class Other(GemmaRMSNorm):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self._norm(rows) * (1.01 + self.weight)

    assert FusedCenteredNorm.of(Other(32)) is None


@torch.inference_mode()
@needs_compiler
@pytest.mark.parametrize("kind", [Qwen3_5RMSNormGated, KimiLinearRMSNormGated])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (7, 896), (2, 5, 7), (0, 64)])
def test_norms_that_take_a_gate(
    kind: type[nn.Module], dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    plain, rows = kind(shape[-1]), torch.randn(shape).to(dtype)
    gate = torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype)[..., ::2]
    plain.weight.data.normal_()
    fused = FusedGatedNorm.of(plain.to(dtype))
    assert fused is not None
    torch.testing.assert_close(fused(rows, gate), plain(rows, gate), rtol=tolerance, atol=tolerance)
    if rows.numel():
        assert not torch.allclose(fused(rows, -gate), plain(rows, gate), rtol=tolerance, atol=tolerance)
    # Left to the module.
    assert torch.equal(fused(rows.double(), gate), plain(rows.double(), gate))
    assert torch.equal(fused(rows, gate[..., :1]), plain(rows, gate[..., :1]))


@needs_compiler
def test_other_gates_stay() -> None:
    class Scaled(Qwen3_5RMSNormGated):
        def forward(self, rows: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
            return super().forward(rows, 1.01 * gate)

    class Other(Qwen3_5RMSNormGated):
        def forward(self, rows: torch.Tensor, gate: int) -> torch.Tensor:
            return super().forward(rows, rows[:, [gate]])

    for module in (Scaled(32), Other(32), MambaRMSNormGated(32, 32), norm(32), nn.Linear(32, 32)):
        assert FusedGatedNorm.of(module) is None
    assert FusedNorm.of(Qwen3_5RMSNormGated(32)) is None


def test_without_a_compiler_norms_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", lambda _: None)
    model = nn.Sequential(norm(32))
    replace_modules(model, FusedNorm.of)
    assert type(model[0]) is LlamaRMSNorm
