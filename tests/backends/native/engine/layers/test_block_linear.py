"""Models whose weights stay in GGUF blocks give the logits and tokens of the same model with expanded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import nn

from backends.native.checkpoints.gguf_folder import write_folder
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.kernels import jit
from backends.native.engine.kernels.block_product import KINDS, Blocks
from backends.native.engine.layers.block_linear import (
    BlockEmbedding,
    BlockLinear,
    blocked_weights,
    expand_blocks,
    join_blocks,
)
from backends.native.engine.layers.fuse_model import fuse_decoder_layers, fuse_layers
from backends.native.engine.layers.fused_decoder_layer import FusedDecoderLayer
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.loading.self_check import packed_error, plain_logits, prompts
from backends.native.engine.loading.weights import load
from tests.backends.native.checkpoints.gguf_files import random_blocks, write_llama
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]

NAMES = tuple(GGMLQuantizationType(kind).name for kind in KINDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama with matrices of every kind that stays in blocks, and of two that are expanded."""
    parent = tmp_path_factory.mktemp("blocks")
    (parent / "folder").mkdir()
    write_folder(write_llama(parent / "m.gguf", kinds=(*NAMES, "F16", "Q3_K")), parent / "folder")
    return str(parent / "folder")


def layer(name: str = "Q4_1", outputs: int = 48, bias: bool = True) -> BlockLinear:
    rows = torch.from_numpy(random_blocks((outputs, 256), name, np.random.default_rng(outputs)))
    added = torch.arange(outputs) / outputs if bias else None
    return BlockLinear((Blocks.of(GGMLQuantizationType[name], rows),), added, torch.float32)


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.slow
def test_logits_are_those_of_expanded_weights(folder: str) -> None:
    kept, plain = load(folder, "float32", keep=True), load(folder, "float32")
    kinds = {part.kind for each in kept.model.modules() if type(each) is BlockLinear for part in each.product.parts}
    assert kinds == set(KINDS)
    assert kept.vocab_size == plain.vocab_size
    ids = list(range(3, 43))
    expected = logits(plain.model, ids)
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(logits(kept.model, ids), expected, atol=tolerance, rtol=0)
    expand_blocks(kept.model)
    assert not blocked_weights(kept.model)
    torch.testing.assert_close(logits(kept.model, ids), expected, atol=tolerance / 10, rtol=0)


@pytest.mark.slow
def test_in_bfloat16_logits_are_about_as_near_to_float32_as_those_of_expanded_weights(folder: str) -> None:
    ids = list(range(3, 43))
    exact = logits(load(folder, "float32").model, ids)
    kept, expanded = (
        (logits(load(folder, "bfloat16", keep=keep).model, ids) - exact).square().mean() for keep in (True, False)
    )
    assert kept < 2 * expanded


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_decoder_layers_of_blocks_become_one_compiled_call(folder: str, dtype: str, tolerance: float) -> None:
    model = load(folder, dtype, keep=True).model
    tokens = prompts(torch.device("cpu"))
    with torch.inference_mode():
        plain = [plain_logits(model, row) for row in tokens]
        fuse_layers(model, 64)
        pack_linears(model)
        fuse_decoder_layers(model)
        layers = list(model.model.layers)
        # All but the one with an expanded matrix among joined ones, which stay apart.
        assert [type(each) for each in layers].count(FusedDecoderLayer) >= 1
        error = packed_error(model, best_kernel, tokens, plain)
    assert error < tolerance * max(float(logits.abs().max()) for logits in plain)


def test_without_a_compiler_weights_are_expanded(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", lambda _: None)
    assert not blocked_weights(load(folder, keep=True).model)


def test_a_head_that_is_the_embedding_takes_its_memory_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file = write_llama(tmp_path / "m.gguf", kinds=("Q4_0",))
    write_folder(file, tmp_path / "folder")
    model = load(str(tmp_path / "folder"), keep=True).model
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert (type(embedding), type(head)) == (BlockEmbedding, BlockLinear)
    assert embedding.product.parts[0].bytes is head.product.parts[0].bytes
    # Of all matrices 18 bytes for 32 weights; the output count of the vocabulary is rounded up to whole groups.
    blocks = {id(part): part for each in model.modules() for part in getattr(each, "product", head.product).parts}
    assert sum(part.bytes.nbytes for part in blocks.values()) < 1.1 * 18 / 32 * blocked_weights(model)
    assert sum(parameter.nbytes for parameter in model.parameters()) < 0.02 * file.stat().st_size


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_any_number_of_rows_and_any_shape(count: int) -> None:
    linear = layer()
    rows = torch.randn(1, count, 256, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.linear(rows, linear.weight, linear.bias)
    torch.testing.assert_close(linear(rows), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("rows", [torch.zeros(1, 128), torch.zeros(1, 256).bfloat16()])
def test_rows_of_another_width_or_dtype_are_refused(rows: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="not of 256"):
        layer()(rows)


def test_no_rows_give_no_products() -> None:
    assert layer()(torch.zeros(0, 256)).shape == (0, 48)


def test_layers_are_joined_if_all_or_none_have_a_bias() -> None:
    first, second = layer("Q4_K"), layer("Q6_K", 32)
    joined = join_blocks(first, second)
    assert joined is not None
    rows = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(joined(rows), torch.cat([first(rows), second(rows)], dim=1))
    assert join_blocks(first, layer("Q6_K", 32, bias=False)) is None
