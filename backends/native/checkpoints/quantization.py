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


def read_quantization(config: Mapping[str, Any], folder: str) -> dict[str, Any] | None:
    """The `quantization_config` of a configuration; None if its weights are plain.

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
    return found


def method_of(quantization: Mapping[str, Any]) -> str:
    """The name of its method."""
    method = quantization.get("quant_method")
    if method is None and (quantization.get("load_in_4bit") or quantization.get("load_in_8bit")):
        return "bitsandbytes"  # older files name no method
    return str(method)


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


def _bitsandbytes(quantization: Mapping[str, Any]) -> Refusal:
    storage = quantization.get("bnb_4bit_quant_storage", "uint8")
    if quantization.get("load_in_4bit") and storage != "uint8":
        return f"with 4-bit weights kept as {storage}"
    return None


def _readable(_: Mapping[str, Any]) -> Refusal:
    return None


_WHY_NOT: dict[str, Callable[[Mapping[str, Any]], Refusal]] = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "fbgemm_fp8": _readable,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _readable,  # by transformers itself
}
