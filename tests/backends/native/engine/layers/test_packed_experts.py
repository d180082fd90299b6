"""Packed experts give what transformers' give, and experts that compute something else stay."""

from __future__ import annotations

import copy
import gc
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from backends.native.engine.kernels import jit
from backends.native.engine.kernels.gemv import SkinnyGemm
from backends.native.engine.layers import packed_linear
from backends.native.engine.layers.fusion import alike
from backends.native.engine.layers.packed_linear import PackedExperts, pack_linears
from backends.native.engine.loading.self_check import why_not_packed
from tests.backends.native.engine.test_equality_with_generate import assert_equal, requests
from tests.backends.native.engine.tiny import build, packed_runner, tiny

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"),
]
FAMILIES = ["mixtral", "gpt_oss", "nemotron_h", "kimi_linear", "jamba"]
"""With a gate; with transposed weights, biases and a gate of its own; without a gate; with shares in float32."""


def experts_of(family: str, dtype: torch.dtype = torch.float32) -> Any:
    return next(part for part in build(family).to(dtype).modules() if hasattr(part, "is_transposed"))


def drawn(experts: Any, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, and for each the numbers and shares of two experts, or of as many as there are."""
    torch.manual_seed(rows)
    width = experts.down_proj.shape[2 if experts.is_transposed else 1]
    shares, chosen = torch.rand(rows, experts.num_experts).topk(min(2, experts.num_experts))
    return torch.randn(rows, width).to(dtype), chosen, shares


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 2, 7, 70, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_they_equal_transformers(family: str, dtype: torch.dtype, rows: int) -> None:
    own = experts_of(family, dtype)
    given = drawn(own, rows, dtype)
    expected = own(*given)
    packed = PackedExperts.of(own, 1)
    if packed is None and dtype == torch.bfloat16:
        pytest.skip("nothing multiplies bfloat16 here")
    assert packed is not None
    assert alike(expected, packed(*given), roundings=16)


@torch.inference_mode()
def test_no_rows() -> None:
    packed = PackedExperts.of(experts_of("mixtral"), 1)
    assert packed is not None
    assert packed(torch.empty(0, 48), torch.empty(0, 2, dtype=torch.long), torch.empty(0, 2)).shape == (0, 48)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_a_row_has_the_same_output_whatever_other_rows_there_are(family: str) -> None:
    if jit.find_compiler() is None:
        pytest.skip("missing tool: g++")
    own = experts_of(family)
    rows, chosen, shares = drawn(own, 24, torch.float32)
    packed = PackedExperts.of(own, 1)
    assert packed is not None
    together = packed(rows, chosen, shares)
    for at in range(24):
        place = slice(at, at + 1)
        assert torch.equal(packed(rows[place], chosen[place], shares[place]), together[place])


def test_unpacked_weights_are_dropped_one_module_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mixtral")
    weights = [ref(part) for part in model.parameters() if part.dim() == 3]
    assert len(weights) == 4
    alive = []

    def of(module: Any, least: int | None, own: Any = PackedExperts.of) -> PackedExperts | None:
        packed: PackedExperts | None = own(module, least)
        if packed is not None:
            gc.collect()
            alive.append(sum(each() is not None for each in weights))
        return packed

    monkeypatch.setattr(PackedExperts, "of", of)
    pack_linears(model, least=1)
    assert alive == [2, 0]


class Normed(MixtralExperts):
    """With a norm behind each expert, as some models have."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.has_post_expert_norm = True
        self.post_expert_norm = nn.LayerNorm(config.hidden_size)


class Doubled(MixtralExperts):
    def forward(self, *given: Tensor) -> Tensor:
        return 2 * super().forward(*given)


class Louder(MixtralExperts):
    """By a few of bfloat16's roundings."""

    def forward(self, *given: Tensor) -> Tensor:
        return 1.05 * super().forward(*given)


class Clamped(MixtralExperts):
    def forward(self, *given: Tensor) -> Tensor:
        return super().forward(*given).clamp(-100, 100)


class Reversed(MixtralExperts):
    def forward(self, rows: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        return super().forward(rows, chosen.flip(1), shares)


class Other(MixtralExperts):
    def forward(self, rows: Tensor, *, louder: float) -> Tensor:
        return louder * rows


def made(kind: type[MixtralExperts], config: Any = None) -> Any:
    torch.manual_seed(0)
    experts = kind(config or build("mixtral").config)
    for parameter in experts.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    return experts


@torch.inference_mode()
def test_a_norm_behind_each_expert() -> None:
    if not hasattr(made(MixtralExperts), "has_post_expert_norm"):
        pytest.skip("transformers before 5.20 has no such norm")
    own = made(Normed)
    given = drawn(own, 9, torch.float32)
    expected = own(*given)
    packed = PackedExperts.of(own, 1)
    assert packed is not None
    assert alike(expected, packed(*given), roundings=16)


class Raised(MixtralExperts):
    """Activations are in float32, whatever its weights are in."""

    def _apply_gate(self, joined: Tensor) -> Tensor:
        gate, up = joined.float().chunk(2, dim=-1)
        return self.act_fn(gate) * up


@torch.inference_mode()
@pytest.mark.parametrize("kind", [MixtralExperts, Raised])
def test_states_and_activations_in_float32_beside_weights_in_bfloat16(kind: type[MixtralExperts]) -> None:
    own = made(kind).to(torch.bfloat16)
    given = drawn(own, 9, torch.float32)
    expected = own(*given)
    packed = PackedExperts.of(own, 1)
    if packed is None:
        pytest.skip("nothing multiplies bfloat16 here")
    found = packed(*given)
    assert found.dtype == torch.float32
    assert alike(expected.bfloat16(), found.bfloat16(), roundings=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Doubled, Louder, Clamped, Reversed, Other])
def test_experts_that_compute_something_else_stay(kind: type[MixtralExperts], dtype: torch.dtype) -> None:
    own = made(kind).to(dtype)
    assert PackedExperts.of(own, 1) is None
    assert own.gate_up_proj is not None
    assert dtype == torch.bfloat16 or PackedExperts.of(made(MixtralExperts), 1) is not None


def test_small_experts_and_those_in_float16_stay() -> None:
    assert PackedExperts.of(experts_of("mixtral"), 2**12) is None
    assert PackedExperts.of(experts_of("mixtral").half(), 1) is None


def test_small_experts_that_onednn_would_multiply_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide() -> Any:
        return made(MixtralExperts, MixtralConfig(hidden_size=64, intermediate_size=64, num_local_experts=2))

    if jit.find_compiler() is not None:
        assert PackedExperts.of(wide()) is not None
    monkeypatch.setattr(SkinnyGemm, "of", lambda *_: None)
    assert PackedExperts.of(wide()) is None
    assert PackedExperts.of(wide(), 1) is not None


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_a_packed_model_answers_as_generate_does(family: str) -> None:
    runner = packed_runner(family)
    runner._model = copy.deepcopy(runner._model)
    pack_linears(runner._model, least=1)
    assert any(type(part) is PackedExperts for part in runner._model.modules())
    asked = requests()
    assert_equal(family, asked, tiny(runner).answers(asked, apart=1))


def test_the_self_check_notices_packed_experts_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = partial(pack_linears, least=1)
    assert why_not_packed(build("mixtral"), change=pack) is None
    activate = PackedExperts._activate
    monkeypatch.setattr(PackedExperts, "_activate", lambda self, joined: 1.01 * activate(self, joined))
    assert why_not_packed(build("mixtral"), change=pack) is None, "experts that differ are not replaced"
    monkeypatch.setattr(packed_linear, "_is_equal", lambda *_: True)
    assert "other logits" in (why_not_packed(build("mixtral"), change=pack) or "")
