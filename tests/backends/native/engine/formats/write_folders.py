"""Folders of a small quantized Llama, written by the tools that users quantize with, and the logits of their weights.

    python write_folders.py OUT

Run in the environment of `make test-formats`. `OUT/NAME` is a folder, and `OUT/NAME.safetensors` has the logits of
`TOKENS` that plain layers give in float32 with the weights as the tool itself expands them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import bitsandbytes as bnb
import torch
from auto_round import AutoRound
from auto_round.experimental.qmodules.fp8_static import WeightFP8ActFP8StaticQuantLinear
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
from compressed_tensors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.nn_modules.qlinear import BaseQuantLinear
from gptqmodel.quantization.config import FP8Config
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig
from transformers import (
    BitsAndBytesConfig,
    FineGrainedFP8Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TorchAoConfig,
)
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

VOCABULARY = 96
TOKENS = tuple(range(12))
GROUP = 32

Weights = dict[str, Tensor]
"""By the names of parameters: those that differ from `small`'s."""
Write = Callable[[Path], Weights]
"""Writes a folder; returns the weights that it stands for, as the tool expands them."""


def small() -> LlamaForCausalLM:
    """The model that is quantized; the same at every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """All but the output layer, which the tools leave alone."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            yield name, module


def logits_of(weights: Weights) -> Tensor:
    """Of the model with other weights, in all its linear layers at least."""
    model = small()
    assert weights.keys() >= {f"{name}.weight" for name, _ in linears(model)}
    assert not model.load_state_dict(weights, strict=False).unexpected_keys
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


# --- compressed-tensors ------------------------------------------------------------------------------------------


def compressed(preset: str) -> Write:
    """One of its presets, with ranges of the weights themselves; expanded by its own decompression."""

    def write(folder: Path) -> Weights:
        model = small()
        scheme = preset_name_to_scheme(preset, ["Linear"])
        assert scheme.weights is not None
        if scheme.weights.group_size:
            scheme.weights.group_size = GROUP
        if scheme.weights.block_structure:
            scheme.weights.block_structure = [GROUP, GROUP]
        apply_quantization_config(model, QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"]))
        for _, module in linears(model):
            scales, zeros = calculate_qparams(*_ranges(module.weight, scheme.weights), scheme.weights)
            module.weight_scale.data.copy_(scales.view_as(module.weight_scale))
            if hasattr(module, "weight_zero_point"):
                module.weight_zero_point.data.copy_(zeros.view_as(module.weight_zero_point))
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(folder)
        compressor.update_config(folder)
        compressor.decompress_model(model)
        return {f"{name}.weight": module.weight for name, module in linears(model)}

    return write


def _ranges(weight: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    shapes = {
        "tensor": (weight.reshape(1, -1), (1,)),
        "channel": (weight, (1,)),
        "group": (weight.view(rows, -1, GROUP), (2,)),
        "block": (weight.view(rows // GROUP, GROUP, columns // GROUP, GROUP), (1, 3)),
    }
    shaped, dimensions = shapes[args.strategy]
    return shaped.amin(dimensions), shaped.amax(dimensions)


# --- bitsandbytes, through transformers --------------------------------------------------------------------------


def with_bits(**options: Any) -> Write:
    """Expanded by its own functions."""

    def write(folder: Path) -> Weights:
        with TemporaryDirectory() as plain:
            small().save_pretrained(plain)
            made = BitsAndBytesConfig(**options)
            model = LlamaForCausalLM.from_pretrained(plain, quantization_config=made, device_map="cpu")
        model.save_pretrained(folder)
        return {f"{name}.weight": _expanded(module) for name, module in linears(model)}

    return write


def _expanded(module: Any) -> Tensor:
    if isinstance(module, bnb.nn.Linear4bit):
        return bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    return bnb.functional.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)


# --- GPTQModel ---------------------------------------------------------------------------------------------------


def by_gptqmodel(config: Callable[[], Any]) -> Write:
    """GPTQ, AWQ and fp8; expanded by what its own layers make of unit vectors."""

    # Its pools of threads want three cores, but two can run them.
    @patch.object(os, "cpu_count", lambda: 4)
    def write(folder: Path) -> Weights:
        with TemporaryDirectory() as plain:
            small().save_pretrained(plain)
            tokenizer().save_pretrained(plain)
            made = GPTQModel.load(plain, config())
            made.quantize([{"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for row in calibration()])
            made.save(str(folder))
        eight = config().method == "fp8"
        read = GPTQModel.load(
            str(folder),
            backend=BACKEND.AUTO if eight else BACKEND.TORCH,
            device="cpu",
            dtype=torch.float32 if eight else torch.float16,
        ).model
        layers = {name: each for name, each in read.named_modules() if isinstance(each, BaseQuantLinear)}
        for each in layers.values():
            if not eight:
                each.scales = each.scales.float()
        with torch.inference_mode():
            own = {f"{name}.weight": each(torch.eye(each.in_features)).T for name, each in layers.items()}
        # What is not quantized is written in another type.
        return plain_tensors(folder) | own

    return write


# --- AutoRound ---------------------------------------------------------------------------------------------------


def by_auto_round(form: str, scheme: str, **options: Any) -> Write:
    """In one of its formats; expanded by its own functions, from scales in float32.

    What is not quantized is written in bfloat16: logits of the original's output layer differ by 3e-3.
    """

    def write(folder: Path) -> Weights:
        given = [{"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]} for row in calibration()]
        made = AutoRound(
            small(),
            tokenizer(),
            iters=2,
            seqlen=calibration().shape[1],
            nsamples=len(given),
            dataset=torch.utils.data.DataLoader(given, batch_size=None),
            enable_torch_compile=False,
            device_map="cpu",
            scheme=scheme,
            **options,
        )
        with TemporaryDirectory(dir=folder.parent) as made_in:
            made.quantize_and_save(made_in, format=form)
            next(Path(made_in).iterdir()).rename(folder)
        tensors = load_file(folder / "model.safetensors")
        expand = _of_floats if "FP8" in scheme else _of_awq_words if "awq" in form else _of_words
        own = {f"{name}.weight": expand(tensors, name) for name, _ in linears(small())}
        return plain_tensors(folder) | own

    return write


def _of_floats(tensors: Weights, layer: str) -> Tensor:
    weight, scale = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"]
    outputs, inputs = weight.shape
    return WeightFP8ActFP8StaticQuantLinear(inputs, outputs, weight, scale, dtype=torch.float32).dequant_weight_online()


def _of_awq_words(tensors: Weights, layer: str) -> Tensor:
    words, zeros, scales = (tensors[f"{layer}.{part}"] for part in ("qweight", "qzeros", "scales"))
    return dequantize_gemm(words, zeros, scales.float(), 4, GROUP).T


def _of_words(tensors: Weights, layer: str) -> Tensor:
    words, zeros, scales = (tensors[f"{layer}.{part}"] for part in ("qweight", "qzeros", "scales"))
    bits = 32 * zeros.shape[1] // words.shape[1]
    inputs, outputs = len(words) * 32 // bits, words.shape[1]
    expanded = QuantLinear(bits, GROUP, inputs, outputs, bias=False)
    expanded.qweight, expanded.qzeros, expanded.scales = words, zeros, scales.float()
    return expanded(torch.eye(inputs)).T


# --- fp8 by transformers -----------------------------------------------------------------------------------------


def by_transformers(**options: Any) -> Write:
    """Expanded by its own loading; it quantizes without a GPU, too, once it is not asked whether there is one."""

    def write(folder: Path) -> Weights:
        with TemporaryDirectory() as plain, patch.object(FineGrainedFP8HfQuantizer, "validate_environment"):
            small().save_pretrained(plain)
            made = FineGrainedFP8Config(weight_block_size=(GROUP, GROUP), modules_to_not_convert=["lm_head"], **options)
            model = LlamaForCausalLM.from_pretrained(plain, quantization_config=made, device_map="cpu")
        model.save_pretrained(folder)
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()

    return write


# --- torchao, through transformers -------------------------------------------------------------------------------


def by_torchao(config: Any) -> Write:
    """Expanded by its own tensors."""

    def write(folder: Path) -> Weights:
        with TemporaryDirectory() as plain:
            small().save_pretrained(plain)
            made = TorchAoConfig(config)
            model = LlamaForCausalLM.from_pretrained(plain, quantization_config=made, device_map="cpu")
        model.save_pretrained(folder)
        weights = {f"{name}.weight": module.weight.dequantize() for name, module in linears(model)}
        return plain_tensors(folder) | weights

    return write


# --- all ---------------------------------------------------------------------------------------------------------


def tokenizer() -> PreTrainedTokenizerFast:
    """Some tools want one; a word a token."""
    words = models.WordLevel({str(id): id for id in range(VOCABULARY)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="0", eos_token="1")


def calibration() -> Tensor:
    """Texts [texts, tokens], the same at every call."""
    return torch.randint(2, VOCABULARY, (8, 32), generator=torch.Generator().manual_seed(0))


def plain_tensors(folder: Path) -> Weights:
    """Those of a folder that are no part of a quantized layer: tools round them, too."""
    tensors = load_file(folder / "model.safetensors")
    return {
        name: tensors[name].float() for name in small().state_dict() if name in tensors and tensors[name].itemsize > 1
    }


FOLDERS: dict[str, Write] = {
    **{
        f"compressed-tensors-{preset}": compressed(preset)
        for preset in ("W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK")
    },
    "bitsandbytes-nf4": with_bits(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes-nf4-nested": with_bits(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bitsandbytes-fp4": with_bits(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "bitsandbytes-int8": with_bits(load_in_8bit=True),
    "gptqmodel-gptq": by_gptqmodel(lambda: QuantizeConfig(bits=4, group_size=GROUP, sym=False, desc_act=True)),
    "gptqmodel-gptq-8": by_gptqmodel(lambda: QuantizeConfig(bits=8, group_size=GROUP, sym=True)),
    "gptqmodel-gptq-2-v2": by_gptqmodel(lambda: QuantizeConfig(bits=2, group_size=GROUP, sym=False, format="gptq_v2")),
    "gptqmodel-awq": by_gptqmodel(lambda: QuantizeConfig(bits=4, group_size=GROUP, method="awq", format="gemm")),
    "gptqmodel-fp8-tensor": by_gptqmodel(lambda: FP8Config(weight_scale_method="tensor")),
    "gptqmodel-fp8-row": by_gptqmodel(lambda: FP8Config(weight_scale_method="row")),
    "gptqmodel-fp8-block": by_gptqmodel(
        lambda: FP8Config(weight_scale_method="block", weight_block_size=[GROUP, GROUP])
    ),
    "auto-round-gptq": by_auto_round("auto_gptq", "W4A16", group_size=GROUP),
    "auto-round-gptq-asymmetric": by_auto_round("auto_gptq", "W4A16", group_size=GROUP, sym=False),
    "auto-round-gptq-8": by_auto_round("auto_gptq", "W8A16", group_size=GROUP),
    "auto-round-awq": by_auto_round("auto_awq", "W4A16", group_size=GROUP),
    "auto-round-awq-asymmetric": by_auto_round("auto_awq", "W4A16", group_size=GROUP, sym=False),
    "auto-round": by_auto_round("auto_round", "W4A16", group_size=GROUP),
    "auto-round-fp8": by_auto_round("auto_round", "FP8_STATIC"),
    "torchao-float8": by_torchao(Float8WeightOnlyConfig()),
    "torchao-int8": by_torchao(Int8WeightOnlyConfig()),
    "transformers-fp8": by_transformers(),
    "transformers-fp8-powers": by_transformers(scale_fmt="ue8m0"),
}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name, write in FOLDERS.items():
        torch.manual_seed(0)
        save_file({"logits": logits_of(write(out / name))}, out / f"{name}.safetensors")
