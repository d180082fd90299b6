"""Drafts by a model's MTP layer beside grammars and quantized weights: texts are those without drafts, and predictions
those of transformers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

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
from backends.native.engine.loading.mtp import load_mtp
from backends.native.engine.loading.weights import load
from backends.native.engine.scheduling.sequence import Work
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.messages import Submit
from schemas.ir import Grammar
from tests.backends.native.engine.formats.test_quantized import CASES
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.engines import accelerator
from tests.backends.native.engine.test_exact_speculation import assert_same, requests
from tests.backends.native.engine.test_mtp_drafts import (
    KINDS,
    LARGE,
    LAYERS,
    SMALL,
    Reference,
    engine_of,
    recording,
    run,
    write,
    wrong,
)
from tests.backends.native.engine.tiny import Tiny

pytestmark = pytest.mark.torch

_WIDE = {"hidden_size": 64, "moe_intermediate_size": 64, "num_key_value_heads": 4}
SIZES = {"deepseek_v3": _WIDE | {"q_lora_rank": 32, "kv_lora_rank": 32}, "glm4_moe": _WIDE | {"head_dim": 16}}
"""From these sizes on experts are packed, and every linear layer has whole groups of 32 inputs."""
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
    found = {kind: write(kind, tmp_path_factory.mktemp(kind), **SIZES[kind]) for kind in KINDS}
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


def experts_of(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The linear layers of a tensor, by the names that authors give them; they share its memory."""
    if tensor.dim() == 2:
        return {name.removesuffix(".weight"): tensor}
    start, part = name.rsplit(".", 1)
    parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    return {
        f"{start}.{number}.{own}": rows
        for number, expert in enumerate(tensor)
        for own, rows in zip(parts, expert.chunk(len(parts)), strict=True)
    }


def quantized(case: str, folder: str, into: Path) -> tuple[str, str]:
    """Two checkpoints like that in `folder`: with other linear layers in a format, and with what these stand for."""
    torch.manual_seed(0)
    quantization, make = CASES[case]
    plain, tensors = load_file(Path(folder, "model.safetensors")), dict[str, torch.Tensor]()
    for name, tensor in plain.items():
        if not name.endswith(("_proj.weight", "_proj")):
            tensors[name] = tensor
            continue
        for layer, weight in experts_of(name, tensor).items():
            parts, meant = make(*weight.shape)
            weight.copy_(meant)
            tensors |= {f"{layer}.{part}": each.contiguous() for part, each in parts.items()}
    settings = json.loads(Path(folder, "config.json").read_text())
    for name, written, more in (("own", tensors, {"quantization_config": quantization}), ("plain", plain, {})):
        (into / name).mkdir()
        save_file(written, into / name / "model.safetensors", {"format": "pt"})
        (into / name / "config.json").write_text(json.dumps(settings | more))
    return str(into / "own"), str(into / "plain")


@needs_compiler
@pytest.mark.parametrize("case", ["fp8-block", "fp8-tensor", "float-8", "int-8", "pack-4"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_of_a_quantized_checkpoint_predicts_by_what_its_numbers_stand_for(
    kind: str, case: str, folders: Mapping[str, str], tmp_path: Path
) -> None:
    own, plain = quantized(case, folders[kind], tmp_path)
    tiny, source = run(own, LARGE)
    speculation = tiny.engine._speculation
    assert speculation is not None
    assert 0.2 < speculation.accepted / speculation.drafted < 0.9
    assert wrong(source, Reference(plain)) == 0
    assert wrong(source, Reference(folders[kind]))


def test_mxfp4_and_damaged_layers_are_refused(folders: Mapping[str, str], tmp_path: Path) -> None:
    loaded = load(folders["glm4_moe"])
    own = Path(quantized("fp8-block", folders["glm4_moe"], tmp_path)[0])
    tensors = load_file(own / "model.safetensors")
    del tensors[f"model.layers.{LAYERS}.self_attn.q_proj.weight"]
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=r"The MTP layer of '.*' cannot be loaded: the weight of model.layers.2"):
        load_mtp(loaded, str(own))
    settings = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(settings | {"quantization_config": {"quant_method": "mxfp4"}}))
    with pytest.raises(LoadError, match="not for GGUF files and mxfp4"):
        load_mtp(loaded, str(own))


@pytest.mark.parametrize("kind", KINDS)
def test_several_layers_are_refused(kind: str, folders: Mapping[str, str], tmp_path: Path) -> None:
    settings = json.loads(Path(folders[kind], "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"num_nextn_predict_layers": 2}))
    (tmp_path / "model.safetensors").symlink_to(Path(folders[kind], "model.safetensors"))
    with pytest.raises(LoadError, match=f"models with one layer for it; this {kind} has 2"):
        engine_of(str(tmp_path))
