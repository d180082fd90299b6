"""Every format of quantized weights, packed here by its documentation, gives the logits of its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig

from backends.native.engine.errors import LoadError
from backends.native.engine.formats.quantized import FORMATS
from backends.native.engine.formats.tensors import float32_bytes
from backends.native.engine.layers.block_linear import blocked_weights, expand_blocks
from backends.native.engine.loading import weights
from backends.native.engine.loading.weights import load
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]

Made = tuple[dict[str, Tensor], Tensor]
"""A layer's tensors as a format has them, and the weight [outputs, inputs] that they stand for."""

GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def numbers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape)


def scales(*shape: int, spread: float = 0.02) -> Tensor:
    return torch.rand(shape).mul(spread).add(spread / 2)


def words(rows: Tensor, bits: int, order: list[int] | None = None) -> Tensor:
    """Rows of unsigned numbers packed into words of 32 bits, along the last dimension, number by number."""
    count = 32 // bits
    packed = []
    for row in rows.tolist():
        line = []
        for start in range(0, len(row), count):
            word = 0
            for place in range(count):
                source = start + (place if order is None else order[place])
                word |= (row[source] if source < len(row) else 0) << (bits * place)
            line.append(word - 2**32 if word >= 2**31 else word)
        packed.append(line)
    return torch.tensor(packed, dtype=torch.int32)


def awq(outputs: int, inputs: int) -> Made:
    levels, zeros = numbers(0, 16, inputs, outputs), numbers(0, 16, inputs // GROUP, outputs)
    scale = scales(inputs // GROUP, outputs).half()
    weight = (levels - zeros.repeat_interleave(GROUP, 0)) * scale.float().repeat_interleave(GROUP, 0)
    parts = {"qweight": words(levels, 4, AWQ_ORDER), "qzeros": words(zeros, 4, AWQ_ORDER), "scales": scale}
    return parts, weight.T


def gptq(bits: int, form: str, *, ordered: bool = False, indices: bool = True) -> Callable[[int, int], Made]:
    def make(outputs: int, inputs: int) -> Made:
        levels = numbers(0, 2**bits, inputs, outputs)
        zeros = numbers(0, 2**bits, inputs // GROUP, outputs)
        scale = scales(inputs // GROUP, outputs, spread=0.3 / 2**bits).half()
        groups = torch.arange(inputs) // GROUP
        groups = groups[torch.randperm(inputs)] if ordered else groups
        weight = (levels - zeros[groups]) * scale.float()[groups]
        kept = zeros if form == "gptq_v2" else (zeros - 1) % 2**bits
        parts = {"qweight": words(levels.T, bits).T.contiguous(), "qzeros": words(kept, bits), "scales": scale}
        return parts | ({"g_idx": groups.int()} if indices else {}), weight.T

    return make


def fp8(kind: str, kept: torch.dtype = torch.float32) -> Callable[[int, int], Made]:
    def make(outputs: int, inputs: int) -> Made:
        stored = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
        if kind == "block":  # the last blocks are cut
            rows, columns = -(-outputs // 48), -(-inputs // 48)
            scale = scales(rows, columns, spread=0.2)
            if kept is torch.uint8:
                scale = scale.log2().round().exp2()
            full = scale.repeat_interleave(48, 0).repeat_interleave(48, 1)[:outputs, :inputs]
            if kept is torch.uint8:
                scale = scale.log2().add(127).to(kept)
            return {"weight": stored, "weight_scale_inv": scale}, stored.float() * full
        scale = scales(spread=0.2) if kind == "tensor" else scales(outputs, 1, spread=0.2)
        parts = {"weight": stored, "weight_scale": scale, "input_scale": torch.ones(1)}
        return parts, stored.float() * scale

    return make


def packed(bits: int, *, zeros: bool = False, ordered: bool = False) -> Callable[[int, int], Made]:
    def make(outputs: int, inputs: int) -> Made:
        half = 2 ** (bits - 1)
        levels = numbers(-half, half, outputs, inputs)
        scale = scales(outputs, inputs // GROUP, spread=0.3 / 2**bits)
        zero = numbers(-half, half, outputs, inputs // GROUP)
        groups = torch.arange(inputs) // GROUP
        groups = groups[torch.randperm(inputs)] if ordered else groups
        weight = (levels - (zero[:, groups] if zeros else 0)) * scale[:, groups]
        parts = {
            "weight_packed": words(levels + half, bits),
            "weight_shape": torch.tensor([outputs, inputs]),
            "weight_scale": scale,
        }
        if zeros:
            parts["weight_zero_point"] = words((zero + half).T, bits).T.contiguous()
        return parts | ({"weight_g_idx": groups.int()} if ordered else {}), weight

    return make


def integers(outputs: int, inputs: int) -> Made:
    levels, scale = numbers(-128, 128, outputs, inputs).to(torch.int8), scales(outputs, 1, spread=0.002)
    zero = numbers(-8, 8, outputs, 1).to(torch.int8)
    parts = {"weight": levels, "weight_scale": scale, "weight_zero_point": zero, "input_scale": torch.ones(1)}
    return parts, (levels.float() - zero.float()) * scale


def floats(outputs: int, inputs: int) -> Made:
    stored, scale = torch.randn(outputs, inputs).to(torch.float8_e4m3fn), scales(outputs, 1, spread=0.2)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def torchao(kind: torch.dtype) -> Callable[[int, int], Made]:
    def make(outputs: int, inputs: int) -> Made:
        scale = scales(outputs, inputs // GROUP, spread=0.002 if kind is torch.int8 else 0.2)
        zero = numbers(-8, 8, *scale.shape).to(torch.int8) if kind is torch.int8 else torch.zeros(scale.shape)
        levels = (numbers(-128, 128, outputs, inputs) if kind is torch.int8 else torch.randn(outputs, inputs)).to(kind)
        weight = (levels.float() - zero.repeat_interleave(GROUP, 1)) * scale.repeat_interleave(GROUP, 1)
        parts = {"_weight_qdata": levels, "_weight_scale": scale}
        return parts | ({"_weight_zero_point": zero} if kind is torch.int8 else {}), weight

    return make


def four_bits(kind: str, *, nested: bool = False) -> Callable[[int, int], Made]:
    def make(outputs: int, inputs: int) -> Made:
        table, levels = torch.randn(16).sort().values, numbers(0, 16, outputs * inputs)
        blocks = outputs * inputs // 64
        described: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "shape": [outputs, inputs]}
        parts = {
            "weight": (levels[::2] * 16 + levels[1::2]).to(torch.uint8).unsqueeze(1),
            "weight.quant_map": table,
            "weight.absmax": scales(blocks, spread=0.2),
        }
        scale = parts["weight.absmax"]
        if nested:
            outer = torch.rand(-(-blocks // 256)).add(0.5)
            inner = torch.rand(256).mul(0.1)
            parts["weight.absmax"] = numbers(0, 256, blocks).to(torch.uint8)
            parts |= {"weight.nested_absmax": outer, "weight.nested_quant_map": inner}
            described |= {"nested_blocksize": 256, "nested_offset": 0.05, "nested_dtype": "float32"}
            scale = inner[parts["weight.absmax"].int()] * outer.repeat_interleave(256)[:blocks] + 0.05
        text = json.dumps(described).encode()
        parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
        return parts, (table[levels] * scale.repeat_interleave(64)).reshape(outputs, inputs)

    return make


def int8(outputs: int, inputs: int) -> Made:
    levels, greatest = numbers(-127, 128, outputs, inputs).to(torch.int8), scales(outputs, spread=0.3)
    parts = {"weight": levels, "SCB": greatest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, levels.float() * (greatest / 127)[:, None]


def group(form: str, bits: int) -> dict[str, Any]:
    return {"format": form, "config_groups": {"group_0": {"weights": {"num_bits": bits}}}}


FLOAT8 = torch.float8_e4m3fn
TORCHAO: dict[str, Any] = {"quant_method": "torchao"}
COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors"}
CASES: dict[str, tuple[dict[str, Any], Callable[[int, int], Made]]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "gptq-4": ({"quant_method": "gptq", "bits": 4}, gptq(4, "gptq")),
    "gptq-4-ordered": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq(4, "gptq", ordered=True)),
    "gptq-8-without-indices": ({"quant_method": "gptq", "bits": 8}, gptq(8, "gptq", indices=False)),
    "auto-round-v2": ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round"}, gptq(4, "gptq_v2")),
    "auto-round-fp8": ({"quant_method": "auto-round", "packing_format": "auto_round:fp8_static"}, fp8("row")),
    "gptq-2-v2": ({"quant_method": "gptq", "bits": 2, "checkpoint_format": "gptq_v2"}, gptq(2, "gptq_v2")),
    "fp8-block": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 48]}, fp8("block")),
    "fp8-block-bytes": ({"quant_method": "fp8", "weight_block_size": [48, 48]}, fp8("block", torch.uint8)),
    "fp8-tensor": ({"quant_method": "fp8"}, fp8("tensor")),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, fp8("row")),
    "pack-4": (COMPRESSED | group("pack-quantized", 4), packed(4)),
    "pack-4-zeros": (COMPRESSED | group("pack-quantized", 4), packed(4, zeros=True)),
    "pack-8-ordered": (COMPRESSED | group("pack-quantized", 8), packed(8, ordered=True)),
    "int-8": (COMPRESSED | group("int-quantized", 8), integers),
    "float-8": (COMPRESSED | group("float-quantized", 8), floats),
    "torchao-float8": (TORCHAO | {"quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}}, torchao(FLOAT8)),
    "torchao-int8": (TORCHAO | {"quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}, torchao(torch.int8)),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, four_bits("nf4")),
    "nf4-nested": ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, four_bits("nf4", nested=True)),
    "fp4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, four_bits("fp4")),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8),
}


LLAMA = LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def save(folder: Path, quantization: dict[str, Any], make: Callable[[int, int], Made], config: Any = LLAMA) -> Any:
    """Write a quantized model; return the same with the weights that it stands for.

    Experts, which are one tensor in transformers, are written apart by the names that most authors give them.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tensors = dict(model.state_dict())

    def quantize(name: str, shape: torch.Size) -> Tensor:
        parts, weight = make(*shape)
        tensors.update({f"{name}.{part}": tensor for part, tensor in parts.items()})
        return weight.float().contiguous()

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            del tensors[f"{name}.weight"]
            module.weight.data = quantize(name, module.weight.shape)
        for joined, names in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            if isinstance(experts := getattr(module, joined, None), nn.Parameter):
                del tensors[f"{name}.{joined}"]
                for number, expert in enumerate(experts.data):
                    for own, part in zip(names, expert.chunk(len(names)), strict=True):
                        part.copy_(quantize(f"{name}.{number}.{own}", part.shape))
    # Scales of a quantized cache, which is not quantized here.
    tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)
    config.save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(described))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return model


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(torch.arange(12).unsqueeze(0)).logits[0]


def test_every_format_is_tested() -> None:
    methods = {quantization.get("quant_method", "bitsandbytes") for quantization, _ in CASES.values()}
    assert methods - {"auto-round"} == set(FORMATS)


KEPT = {"awq", "gptq-4", "gptq-8-without-indices", "auto-round-v2", "pack-4", "pack-4-zeros", "int-8"}
"""Cases whose weights can stay quantized: of 4 or 8 bits, with neighbours in groups."""


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_weights(case: str, tmp_path: Path) -> None:
    expected = save(tmp_path, *CASES[case])
    kept = load(str(tmp_path), keep=True).model
    assert blocked_weights(kept) == (2 * 36_864 if case in KEPT else 0)
    torch.testing.assert_close(logits(kept), logits(expected), atol=1e-4, rtol=1e-4)
    expand_blocks(kept)
    torch.testing.assert_close(logits(kept), logits(load(str(tmp_path)).model), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(logits(kept), logits(expected), atol=1e-4, rtol=1e-4)
    assert float(logits(expected).std()) > 0.05
    # About as many as there are: a model is not expanded to float32 if it is large.
    actual = sum(parameter.numel() for parameter in expected.parameters()) * 4
    assert 0.9 < float32_bytes(tmp_path, torch.float16) / actual < 1.6


@pytest.mark.parametrize("has", [True, False])
def test_large_folders_for_gpus_run_in_bfloat16(has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not quantized would be float16, in which no CPU multiplies quantized weights."""
    save(tmp_path, *CASES["awq"])
    described = json.loads((tmp_path / "config.json").read_text()) | {"dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(described))
    monkeypatch.setattr(weights, "_SMALL_BYTES", 0)
    monkeypatch.setattr(weights, "_multiplies_bfloat16", lambda: has)
    loaded = load(str(tmp_path), keep=True).model
    assert loaded.dtype == (torch.bfloat16 if has else torch.float16)
    assert bool(blocked_weights(loaded)) == has


def test_layers_of_gptq_may_have_other_bits_than_the_configuration_names(tmp_path: Path) -> None:
    expected = save(tmp_path, {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}}, gptq(8, "gptq"))
    torch.testing.assert_close(logits(load(str(tmp_path)).model), logits(expected), atol=1e-4, rtol=1e-4)


def test_logits_of_experts_in_mxfp4_are_those_of_the_weights(tmp_path: Path) -> None:
    """gpt-oss' format, which transformers reads: two numbers of a table in a byte, a power of two for each 32."""
    torch.manual_seed(0)
    shape = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 64}
    config = GptOssConfig(**shape, sliding_window=8)
    model = GptOssForCausalLM(config).eval()
    tensors = dict(model.state_dict())
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        levels = numbers(0, 16, experts, outputs, inputs // 32, 32)
        powers = numbers(120, 125, experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = (levels[..., ::2] + levels[..., 1::2] * 16).to(torch.uint8)
        tensors[f"{name}_scales"] = powers.to(torch.uint8)
        weight = (table[levels] * 2.0 ** (powers - 127).unsqueeze(-1)).reshape(experts, outputs, inputs)
        model.get_parameter(name).data = weight.transpose(1, 2).contiguous()
    config.save_pretrained(tmp_path)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantized = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}}
    described = json.loads((tmp_path / "config.json").read_text()) | quantized
    (tmp_path / "config.json").write_text(json.dumps(described))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    loaded = load(str(tmp_path)).model
    if loaded.model.layers[0].mlp.experts.down_proj.dtype == torch.bfloat16:  # those of 5.17
        pytest.skip("this transformers expands MXFP4 to bfloat16, whatever it is asked for")
    found, expected = logits(loaded), logits(model)
    torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.abs().max()), rtol=0)
    assert float(expected.std()) > 0.05


def test_a_small_change_of_a_packed_weight_is_noticed(tmp_path: Path) -> None:
    expected = save(tmp_path, *CASES["awq"])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.qweight"][0, 0] ^= 4
    save_file(tensors, tmp_path / "model.safetensors")
    assert float((logits(load(str(tmp_path)).model) - logits(expected)).abs().max()) > 1e-4


def test_a_damaged_or_unexplained_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, *CASES["gptq-4"])
    whole = load_file(tmp_path / "model.safetensors")
    layer = "model.layers.1.mlp.up_proj"
    for change, why in (
        ({f"{layer}.qzeros": None}, f"the weight of {layer} cannot be read: KeyError: 'qzeros'"),
        ({f"{layer}.scales": torch.ones(1, 3)}, f"the weight of {layer} cannot be read: "),
        ({f"{layer}.qweight": None}, f"the tensor {layer}.g_idx is torch.int32, and nothing says what it stands for"),
    ):
        changed = {name: tensor for name, tensor in (whole | change).items() if tensor is not None}
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(LoadError) as raised:
            load(str(tmp_path))
        assert str(raised.value).startswith(why)
