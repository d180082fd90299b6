"""Checkpoints whose weights are quantized: each is computed when it is loaded, or kept if there is a product for it.

One file a format, registered by `quant_method`. A format names the tensors that make up a layer's weight, and computes
it from them; every other tensor is as in a plain checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.quantization import method_of
from backends.native.engine.formats import awq, bitsandbytes, compressed_tensors, fp8, gptq, torchao
from backends.native.engine.formats.levels import Levels
from backends.native.engine.formats.streaming import Streamed
from backends.native.engine.formats.weights import Weights, placeholders
from backends.native.engine.kernels.block_product import Blocks


class Format(NamedTuple):
    """A form of weights.

    Attributes:
        marks: names of which one is among the tensors of every layer that is quantized.
        parts: the names of its tensors.
        decode: the weight [outputs, inputs] of them, given `quantization_config`; None: all are levels.
        levels: the levels that the weight consists of; None: it consists of none.
    """

    marks: tuple[str, ...]
    parts: tuple[str, ...]
    decode: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Tensor] | None
    levels: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Levels | None] = lambda _parts, _: None


_FP8 = Format(("weight_scale_inv", "weight_scale"), fp8.PARTS, fp8.decode)
FORMATS = {
    "awq": Format(("qweight",), awq.PARTS, None, awq.levels),
    "gptq": Format(("qweight",), gptq.PARTS, None, gptq.levels),
    "fp8": _FP8,
    "fbgemm_fp8": _FP8,
    "compressed-tensors": Format(
        ("weight_scale",), compressed_tensors.PARTS, compressed_tensors.decode, compressed_tensors.levels
    ),
    "torchao": Format(("_weight_qdata",), torchao.PARTS, torchao.decode),
    "bitsandbytes": Format(("weight.absmax", "SCB"), bitsandbytes.PARTS, bitsandbytes.decode),
}
"""By `quant_method`."""
# Of caches for keys and values, which are not quantized here.
_UNUSED = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point")


def read_quantized(
    folder: Path,
    quantization: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    keeps: Callable[[str], bool] = lambda _: False,
    wanted: Callable[[str], object] = lambda _: True,
) -> Weights:
    """Read a checkpoint's tensors, quantized weights as what they stand for; for an accelerator each is `Streamed`.

    Args:
        folder: the checkpoint.
        quantization: its `quantization_config`, of a method in `FORMATS`.
        dtype: of the result.
        device: where the tensors go.
        keeps: whether the weight of the layer of a name may stay quantized, where there is a product for it.
        wanted: whether a file's tensor of a name is read.

    Raises:
        CheckpointError: a tensor is missing or in a form that the format does not have; of one that is `Streamed` when
            it is read.
    """
    form = FORMATS[method_of(quantization)]
    files: list[Any] = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
    places = {name: file for file in files for name in file.keys() if wanted(name)}  # noqa: SIM118 - not a dictionary
    readers: dict[str, Callable[[], Tensor]] = {}
    layers = _layers(places, form)
    kept: dict[str, Blocks] = {}
    for layer, names in layers.items():
        parts = {part: (places[name], name) for part, name in names.items()}
        if keeps(layer) and (blocks := _read_blocks(form, layer, parts, quantization)) is not None:
            kept[f"{layer}.weight"] = blocks
            continue
        readers[f"{layer}.weight"] = partial(_read_layer, form, layer, parts, quantization, dtype)
    taken = {name for names in layers.values() for name in names.values()}
    for name in sorted(places.keys() - taken):
        if name.rpartition(".")[2] not in _UNUSED:
            readers[name] = partial(_read_plain, places[name], name, dtype)
    if device.type == "cpu":
        return Weights({name: read() for name, read in readers.items()} | placeholders(kept, dtype), kept)
    return Weights({name: Streamed(read, device) for name, read in readers.items()}, kept)


def _read_layer(
    form: Format, layer: str, places: Mapping[str, tuple[Any, str]], quantization: Mapping[str, Any], dtype: torch.dtype
) -> Tensor:
    with _naming(layer):
        parts = {part: file.get_tensor(name) for part, (file, name) in places.items()}
        found = form.levels(parts, quantization)
        if found is not None:
            return found.weight().to(dtype)
        assert form.decode is not None
        return form.decode(parts, quantization).to(dtype)


def _read_blocks(
    form: Format, layer: str, places: Mapping[str, tuple[Any, str]], quantization: Mapping[str, Any]
) -> Blocks | None:
    with _naming(layer):
        parts = {part: file.get_tensor(name) for part, (file, name) in places.items()}
        found = form.levels(parts, quantization)
        return None if found is None else found.blocks()


def _read_plain(file: Any, name: str, dtype: torch.dtype) -> Tensor:
    return _plain(name, file.get_tensor(name)).to(dtype)


def _layers(places: Mapping[str, Any], form: Format) -> dict[str, dict[str, str]]:
    """The names of the tensors of each quantized layer, by their part."""
    layers: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in places:
        for part in form.parts:
            if name.endswith(f".{part}"):
                layers[name.removesuffix(f".{part}")][part] = name
    return {layer: names for layer, names in layers.items() if names.keys() & set(form.marks)}


@contextmanager
def _naming(layer: str) -> Iterator[None]:
    try:
        yield
    # A damaged file: a part that is missing, or whose shape does not fit the others.
    except (KeyError, IndexError, RuntimeError, StopIteration, ValueError) as error:
        raise CheckpointError(f"the weight of {layer} cannot be read: {type(error).__name__}: {error}") from error


def _plain(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        raise CheckpointError(f"the tensor {name} is {tensor.dtype}, and nothing says what it stands for")
    return tensor
