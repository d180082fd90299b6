"""What `quantization_config` of a checkpoint says, as far as weights in its form can be read.

The readers are in `engine.formats`; this table is apart from them so that a folder is refused without torch, before
anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backends.native.checkpoints.errors import CheckpointError

Refusal = str | None
"""Why weights cannot be read, as the end of a sentence; None if they can."""

# Source: intel/auto-round (0.16), auto_round/inference/backend.py.
_PACKINGS: dict[str, dict[str, str]] = {
    "auto_round": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    "auto_round:gptqmodel": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    "auto_round:auto_gptq": {"quant_method": "gptq", "checkpoint_format": "gptq"},
    "auto_round:auto_awq": {"quant_method": "awq", "version": "gemm"},
    "auto_round:fp8_static": {"quant_method": "fp8"},
}
"""AutoRound's `packing_format` -> the method whose tensors it has."""
_TORCHAO = ("Float8WeightOnlyConfig", "Int8WeightOnlyConfig")


def read_quantization(config: Mapping[str, Any], folder: str) -> dict[str, Any] | None:
    """The `quantization_config` of a configuration; None if its weights are plain.

    That of AutoRound, which writes the tensors of other methods, is returned as theirs.

    Args:
        config: the content of `config.json`.
        folder: for the error.

    Raises:
        CheckpointError: weights of this form cannot be read.
    """
    found = config.get("quantization_config") or _of_parts(config)
    if not isinstance(found, dict):
        return None
    method = method_of(found)
    if method not in _WHY_NOT:
        raise CheckpointError(f"'{folder}' is quantized by '{method}', which is not read: {', '.join(_WHY_NOT)} are")
    if why := _WHY_NOT[method](found):
        raise CheckpointError(f"'{folder}' is quantized by {method} {why}, which is not read")
    return found | _PACKINGS[_packing(found)] if method == "auto-round" else found


def method_of(quantization: Mapping[str, Any]) -> str:
    """The name of its method."""
    method = quantization.get("quant_method")
    if method is None and (quantization.get("load_in_4bit") or quantization.get("load_in_8bit")):
        return "bitsandbytes"  # older files name no method
    return str(method)


def bits_of(quantization: Mapping[str, Any]) -> int:
    """The bits of a packed weight; 4 where that is not said."""
    groups = (quantization.get("config_groups") or {}).values()
    found = (quantization.get("bits"), *((group.get("weights") or {}).get("num_bits") for group in groups))
    return next((bits for bits in found if isinstance(bits, int) and 0 < bits <= 32), 4)


def _of_parts(config: Mapping[str, Any]) -> Any:
    """That of the text part: composite models have it there, or older files of compressed-tensors beside it."""
    text = config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, dict) else None
    return inner or config.get("compression_config")


def _awq(quantization: Mapping[str, Any]) -> Refusal:
    if quantization.get("bits", 4) != 4:
        return f"in {quantization['bits']} bits"
    version = str(quantization.get("version", "gemm")).lower()
    return None if version == "gemm" else f"in the form '{version}'"


def _gptq(quantization: Mapping[str, Any]) -> Refusal:
    bits = quantization.get("bits")
    if bits not in (2, 4, 8):
        return f"in {bits} bits"
    form = str(quantization.get("checkpoint_format") or "gptq").lower()
    return None if form in ("gptq", "gptq_v2") else f"in the form '{form}'"


def _auto_round(quantization: dict[str, Any]) -> Refusal:
    packing = _packing(quantization)
    if packing not in _PACKINGS:
        return f"in the form '{packing}'"
    # Other types of numbers (MX, NVFP4) are in tensors of their own under the same packing.
    if (kind := str(quantization.get("data_type", "int"))) not in ("int", "fp"):
        return f"as '{kind}'"
    if quantization.get("rotation_config"):
        return "with rotations"
    return _WHY_NOT[_PACKINGS[packing]["quant_method"]](quantization | _PACKINGS[packing])


def _packing(quantization: Mapping[str, Any]) -> str:
    return str(quantization.get("packing_format", "auto_round:auto_gptq"))


def _fp8(quantization: Mapping[str, Any]) -> Refusal:
    form = str(quantization.get("fmt", "e4m3")).lower()
    return None if form in ("e4m3", "float8_e4m3fn") else f"in the form '{form}'"


def _compressed_tensors(quantization: Mapping[str, Any]) -> Refusal:
    if quantization.get("sparsity_config"):
        sparse = str(quantization["sparsity_config"].get("format", "dense"))
        if sparse != "dense":
            return f"with sparse weights ('{sparse}')"
    groups = (quantization.get("config_groups") or {}).values()
    forms = {str(group.get("format") or quantization.get("format")) for group in groups}
    if other := forms - {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized"}:
        return f"in the form '{min(other)}'"
    if quantization.get("transform_config"):
        return "with transforms"
    return None


def _torchao(quantization: Mapping[str, Any]) -> Refusal:
    kinds = quantization.get("quant_type")
    given = kinds.values() if isinstance(kinds, dict) else [kinds]
    names = [str(each.get("_type") if isinstance(each, dict) else each) for each in given if each is not None]
    other = [name for name in names if name not in _TORCHAO]
    return f"in the form '{other[0]}'" if other else None


def _bitsandbytes(quantization: Mapping[str, Any]) -> Refusal:
    storage = quantization.get("bnb_4bit_quant_storage", "uint8")
    if quantization.get("load_in_4bit") and storage != "uint8":
        return f"with 4-bit weights kept as {storage}"
    return None


def _readable(_: Mapping[str, Any]) -> Refusal:
    return None


_WHY_NOT: dict[str, Callable[[dict[str, Any]], Refusal]] = {
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "fp8": _fp8,
    "fbgemm_fp8": _readable,
    "compressed-tensors": _compressed_tensors,
    "torchao": _torchao,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _readable,  # by transformers itself
}
