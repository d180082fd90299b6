"""Fused layers on the pretended device: ten kernels a layer, and the tokens of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.native.engine.layers.fuse_model import fuse_decoder_layers, fuse_layers
from backends.native.engine.layers.fused_residuals import FusedResiduals
from backends.native.engine.loop import Engine
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import assert_same, counted, drive, load, requests, save, wide
from tests.backends.native.engine.pretended.kernels import pretend_triton
from tests.backends.native.engine.tiny import CONTEXT, FAMILIES, prompt

pytestmark = [pytest.mark.torch, needs_compiler, counted]

# Norm with the sum before it, queries with keys and values, rotation with the cache, attention, its parts, output, norm
# with the sum before it, gate with up, activation, down.
KERNELS = 10


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_layer_of_a_decode_step_is_ten_kernels(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [Submit(seq, prompt(8 + 3 * seq, seq), 5) for seq in range(3)]
    folder = save(family, tmp_path / family)
    expected = drive(load(folder, "cpu", execution_path="packed")[0], asked)
    with PretendedDevice() as device, torch.inference_mode():
        pretend_triton(monkeypatch, device)
        engine, _ = load(folder, "cuda", execution_path="packed")
        assert isinstance(engine, Engine)
        model = engine._runner._model  # type: ignore[attr-defined]
        # What loading does after a self-check, which takes the pretended device seconds.
        fuse_layers(model, CONTEXT)
        fuse_decoder_layers(model)
        layers = list(model.model.layers)
        assert [type(layer) for layer in layers] == [FusedResiduals] * 2
        marks: list[int] = []
        for layer in layers:
            layer.register_forward_pre_hook(lambda *_: marks.append(device.trace.kernels.total()))
        model.model.norm.register_forward_pre_hook(lambda *_: marks.append(device.trace.kernels.total()))
        assert_same(drive(engine, asked), expected)
    first, second, end = marks[-3:]
    # The first also norms its own input, and the last leaves its output to the model's last norm: a sum for a sum.
    assert (second - first, end - second) == (KERNELS + 1, KERNELS)


@wide
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_the_cpu(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(family, tmp_path / family)
    expected = drive(load(folder, "cpu")[0], requests())
    with PretendedDevice() as device:
        pretend_triton(monkeypatch, device)
        engine, ready = load(folder, "cuda")
        assert ready.execution_path == "packed"
        assert_same(drive(engine, requests()), expected)
        fused = {name for name, _ in device.trace.kernels}
        assert "attend" in fused
        if family in ("llama", "qwen2", "qwen3", "mistral"):
            assert {"add_rms_norm", "rotate_and_store", "silu_and_mul"} <= fused
