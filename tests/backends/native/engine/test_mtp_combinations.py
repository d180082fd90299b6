"""Drafts by a model's MTP layer beside grammars and quantized weights: texts are those without drafts, and predictions
those of transformers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from backends.native.engine.errors import LoadError
from backends.native.engine.layers.int8_linear import Int8Linear
from backends.native.engine.layers.packed_linear import PackedExperts
from backends.native.engine.layers.quantized_linear import BITS, QuantizedLinear, quantize_linears
from backends.native.engine.loading import weights
from backends.native.engine.scheduling.sequence import Work
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.messages import Submit
from schemas.ir import Grammar
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.engines import accelerator
from tests.backends.native.engine.test_exact_speculation import assert_same, requests
from tests.backends.native.engine.test_mtp_drafts import (
    KINDS,
    LARGE,
    SMALL,
    Reference,
    engine_of,
    recording,
    run,
    served,
    write,
    wrong,
)
from tests.backends.native.engine.tiny import Tiny

pytestmark = pytest.mark.torch

WIDE = {"hidden_size": 64, "moe_intermediate_size": 64, "num_key_value_heads": 4}
"""From these sizes on experts are packed. In 4 bits the same layers fit joined and apart."""
FP8_BLOCK = 16
LETTERS = grammar_source(Grammar("regex", "[a-z]{30}"))
OBJECT = grammar_source(
    Grammar(
        "json_schema",
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["alphabet", "alphanumeric"]}},
            "required": ["name", "kind"],
            "additionalProperties": False,
        },
    )
)


def save_tokenizer(folder: Path) -> None:
    """A token for each character."""
    characters = [chr(code) for code in range(33, 127) if chr(code) not in "`~"]
    tokens = ["<pad>", "<s>", "</s>", *characters, "Ġ"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    found = {kind: write(kind, tmp_path_factory.mktemp(kind), **WIDE) for kind in KINDS}
    for folder in found.values():
        save_tokenizer(Path(folder))
    return found


def with_grammars() -> list[Submit]:
    """Of three sequences one has a grammar that forces no token, one has one that forces most, and one has none."""
    grammars = (LETTERS, OBJECT, None)
    return [
        replace(one, grammar=grammars[one.seq % 3], eos_token_ids=(2,), stop_token_ids=()) for one in requests(12, 40)
    ]


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_with_grammars_are_the_same(kind: str, sizes: Mapping[str, int], folders: Mapping[str, str]) -> None:
    right: Counter[str | None] = Counter()

    def counting(tiny: Tiny) -> None:
        speculation = tiny.engine._speculation
        assert speculation is not None
        count = speculation.count

        def count_right(work: Work, accepted: int) -> None:
            right[work.sequence.request.grammar] += accepted
            count(work, accepted)

        speculation.count = count_right  # type: ignore[method-assign]

    tiny, source = run(folders[kind], sizes, counting, with_grammars())
    assert tiny.scheduler.preemptions if sizes is SMALL else tiny.scheduler.prefix_hits
    # Those of `LETTERS` are the layer's alone.
    assert min(right[grammar] for grammar in (LETTERS, OBJECT, None)) > 20
    assert wrong(source, Reference(folders[kind])) == 0


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_rounded_weights_are_the_same(
    kind: str, dtype: str, folders: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: in bfloat16 a step of few rows is rounded otherwise than one of more, with drafts or without."""
    monkeypatch.setattr(weights, "_multiplies_bfloat16", lambda: False)
    tiny, source = run(folders[kind], LARGE | {"dtype": dtype})
    kinds = {type(module) for module in tiny.runner._model.modules()}  # type: ignore[attr-defined]
    assert QuantizedLinear in kinds
    speculation = tiny.engine._speculation
    assert speculation is not None
    assert 0.2 < speculation.accepted / speculation.drafted < 0.8
    # The layer's own weights are not rounded.
    assert wrong(source, Reference(folders[kind], lambda model: quantize_linears(model, BITS[dtype]))) == 0


@needs_compiler
def test_texts_of_weights_in_8_bits_on_an_accelerator_are_the_same(folders: Mapping[str, str]) -> None:
    asked, options = requests(4, 8), {"device": "auto", "dtype": "int8"}
    with accelerator():
        expected = engine_of(folders["glm4_moe"], "", **options).answers(asked)
        tiny = engine_of(folders["glm4_moe"], **options)
        recording(tiny, {seq: answer.ids for seq, answer in expected.items()})
        assert_same(tiny.answers(asked), expected)
    assert any(type(module) is Int8Linear for module in tiny.runner._model.modules())  # type: ignore[attr-defined]
    assert tiny.engine._speculation is not None
    assert tiny.engine._speculation.accepted > 5


@needs_compiler
def test_experts_beside_the_layer_are_packed(folders: Mapping[str, str]) -> None:
    model = engine_of(folders["glm4_moe"], dtype="int8").runner._model  # type: ignore[attr-defined]
    assert any(type(module) is PackedExperts for module in model.modules())


def in_fp8(folder: str, into: Path) -> str:
    """The same checkpoint as its authors publish it: linear layers in fp8, with a scale for each block."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(Path(folder, "model.safetensors")).items():
        if not name.endswith(("_proj.weight", "_proj")) or "eh_proj" in name:
            tensors[name] = tensor
            continue
        each = {name: tensor}
        if tensor.dim() == 3:
            start, part = name.rsplit(".", 1)
            halves = {"gate_proj": 0, "up_proj": 1} if part == "gate_up_proj" else {part: 0}
            each = {
                f"{start}.{number}.{half}.weight": expert.chunk(len(halves))[place]
                for number, expert in enumerate(tensor)
                for half, place in halves.items()
            }
        for own, weight in each.items():
            rows, columns = (-(-size // FP8_BLOCK) for size in weight.shape)
            scale = torch.full((rows, columns), float(weight.abs().max() / 448))
            tensors[own] = (weight / scale[0, 0]).to(torch.float8_e4m3fn)
            tensors[f"{own}_scale_inv"] = scale
    save_file(tensors, into / "model.safetensors", {"format": "pt"})
    settings: dict[str, Any] = json.loads(Path(folder, "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}
    (into / "config.json").write_text(json.dumps(settings))
    return str(into)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_in_fp8_is_served_without_its_layer_and_refused_with_it(
    kind: str, folders: Mapping[str, str], tmp_path: Path
) -> None:
    folder, asked = in_fp8(folders[kind], tmp_path), requests(4, 8)
    assert all(len(answer.ids) for answer in served(engine_of(folder, ""), asked).values())
    with pytest.raises(LoadError, match=r"'mtp' is for plain weights; those of '.*' are quantized"):
        engine_of(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_several_layers_are_refused(kind: str, folders: Mapping[str, str], tmp_path: Path) -> None:
    settings = json.loads(Path(folders[kind], "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"num_nextn_predict_layers": 2}))
    (tmp_path / "model.safetensors").symlink_to(Path(folders[kind], "model.safetensors"))
    with pytest.raises(LoadError, match=f"models with one layer for it; this {kind} has 2"):
        engine_of(str(tmp_path))
