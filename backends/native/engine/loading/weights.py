"""Load a checkpoint folder into a model of transformers, offline, with the facts that the engine needs.

Only local safetensors and GGUF files and classes that ship with transformers are used: nothing is downloaded, and no
code from the folder is run. `engine.formats` reads weights of other formats than transformers' own. A composite
checkpoint (LLaVA and the like) is loaded whole. An encoder, which makes embeddings and no text, is loaded by
`load_encoder` without an output layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    GenerationConfig,
)

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.layout import gguf_of
from backends.native.engine.devices import OUT_OF_MEMORY, default_device, has_bfloat16, is_present
from backends.native.engine.errors import LoadError
from backends.native.engine.formats.tensors import (
    config_of,
    float32_bytes,
    is_quantized,
    model_class,
    plain,
    read_weights,
)
from backends.native.engine.kernels.block_product import can_multiply
from backends.native.engine.layers.block_linear import can_keep, keep_blocks
from backends.native.engine.layers.int8_linear import quantize_on_device
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loading.module import read_module
from backends.native.multimodal.interfaces import SupportsMultiModal
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY

_SMALL_BYTES = 2 * 1024**3
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
}
# Names of the context length in configurations, the most common first.
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "context_length", "max_seq_len", "seq_length")
_UNBOUNDED_CONTEXT = 32_768
# Prefix of weights that encoder classes have and checkpoints often lack; the last hidden states do not depend on them.
_OPTIONAL_WEIGHTS = "pooler."


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A model ready for inference.

    Attributes:
        model: the language model or encoder, in evaluation mode, on its device.
        config: the configuration of its text part.
        eos_token_ids: end tokens of `config.json` and `generation_config.json` together; an encoder has none.
        context_length: positions that the model was trained for.
        vocab_size: width of the logits; for an encoder, rows of the input embeddings.
        whole_config: the configuration of the whole checkpoint.
        multimodal: the model that holds `model`, if transformers does not have it.
    """

    model: Any
    config: Any
    eos_token_ids: tuple[int, ...]
    context_length: int
    vocab_size: int
    whole_config: Any
    multimodal: SupportsMultiModal | None = None


def load(folder: str, dtype: str = "auto", device: str = "auto", *, keep: bool = False, ranks: int = 1) -> LoadedModel:
    """Load the language model in `folder`, or this rank's share of it.

    Args:
        folder: as `save_pretrained` writes it.
        dtype: see `pick_dtype`.
        device: see `pick_device`.
        keep: whether quantized weights stay as their file has them on a CPU, where they can.
        ranks: how many ranks share the model; all must call it (`loading.splitting`).

    Raises:
        LoadError: it is missing, not a language model, damaged, or does not fit into memory.
    """
    path = Path(folder)
    config = read_config(path)
    target = pick_device(device)
    own = MULTIMODAL_REGISTRY.find((config.architectures or [""])[0])
    picked = pick_dtype(dtype, path, config, target)
    # Layers are quantized as they are sent to an accelerator, which need not hold them in the model's dtype.
    quantizes = dtype in BITS and target.type != "cpu"
    multimodal = None
    if own is not None and own.is_module:
        multimodal = read_module(path, config, own.model, picked, target)
        model = multimodal.get_language_model()
        text = model.config
    else:
        place = torch.device("cpu") if quantizes else target
        model = _read_model(path, config, auto_class_of(path, config), picked, place, keep=keep, ranks=ranks)
        text = config.get_text_config(decoder=True)
    if quantizes:
        _quantize(model, target, dtype)
    head = model.get_output_embeddings()
    vocabulary = text.vocab_size if head is None else getattr(head, "out_features", None) or head.weight.shape[0]
    return LoadedModel(
        model=model,
        config=text,
        eos_token_ids=_eos_token_ids(path, config, text),
        context_length=_context_length(text),
        vocab_size=vocabulary,
        whole_config=config,
        multimodal=multimodal,
    )


def _quantize(model: Any, device: torch.device, dtype: str) -> None:
    try:
        if not quantize_on_device(model, device):
            raise LoadError(f"This model has no linear layers that could run in {dtype}.")
        model.to(device)
    except OUT_OF_MEMORY as error:
        raise LoadError(f"The model in {dtype} does not fit into the memory of {device}.") from error


def is_encoder(folder: str) -> bool:
    """Whether a checkpoint is an encoder (BERT and the like) that cannot generate text.

    Raises:
        LoadError: `folder` is no checkpoint.
    """
    config = read_config(Path(folder))
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not (
        config.is_encoder_decoder or getattr(config, "is_decoder", False)
    )


def load_encoder(
    folder: str,
    dtype: str = "auto",
    device: str = "auto",
    *,
    kind: Literal["states", "labels", "answers", "masked"] = "states",
) -> LoadedModel:
    """Load the encoder in `folder`: without an output layer, with its classification head, as a language model, or with
    its output layer for masked tokens.

    Raises:
        LoadError: it is missing, not for text, damaged, or does not fit into memory.
    """
    path = Path(folder)
    config = read_config(path)
    target = pick_device(device)
    encoder_half = config.is_encoder_decoder and type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
    auto_class = AutoModelForTextEncoding if encoder_half else AutoModel
    if kind != "states":
        heads = {"labels": AutoModelForSequenceClassification, "masked": AutoModelForMaskedLM}
        auto_class = heads.get(kind) or auto_class_of(path, config)
        config.use_cache = False  # decoders would make a cache of keys and values that nobody reads
    model = _read_model(path, config, auto_class, pick_dtype(dtype, path, config, target), target)
    return LoadedModel(
        model=model,
        config=config.get_text_config(),
        eos_token_ids=(),
        context_length=_context_length(config.get_text_config()) - _unused_positions(model),
        vocab_size=model.get_input_embeddings().weight.shape[0],
        whole_config=config,
    )


def pick_device(device: str) -> torch.device:
    """The torch device; `auto` is the accelerator that torch finds, or the CPU (`devices.default_device`).

    Raises:
        LoadError: torch does not know the device, or finds none of it.
    """
    if device == "auto":
        return default_device()
    try:
        picked = torch.device(device)
    except RuntimeError as error:
        raise LoadError(f"'{device}' is not a device torch knows.") from error
    if not is_present(picked):
        raise LoadError(f"The device '{device}' was asked for, but torch finds no {_kind_of(picked)} device.")
    return picked


def _kind_of(device: torch.device) -> str:
    return f"{device.type.upper()}{'' if device.index is None else f' {device.index}'}"


def pick_dtype(dtype: str, path: Path, config: Any, device: torch.device) -> torch.dtype:
    """The dtype of the weights; `auto` is the checkpoint's own, but float32 on a CPU for weights of up to 2 GiB, for a
    quantized folder bfloat16 instead of float16 on a CPU that has it, and float16 instead of bfloat16 on an accelerator
    that has none.

    The shape of a batch decides the order in which a matrix product is summed. In bfloat16 that changes logits enough
    to change the chosen token, so that an answer would depend on the other requests in its batch; in float32 it hardly
    ever does. Small models can afford float32, and CPUs without bfloat16 units are no slower in it. With quantized
    weights everything else is bfloat16 on CPUs that have such units, and on accelerators, or float16 on those without.

    Raises:
        LoadError: the dtype is unknown or for another device, or the weights cannot be read.
    """
    if dtype in BITS:
        if device.type != "cpu":
            if dtype != "int8":
                raise LoadError(f"The dtype {dtype} is for CPUs, not for {device}; int8 is for both.")
            return torch.bfloat16 if has_bfloat16(device) else torch.float16
        return torch.bfloat16 if _multiplies_bfloat16() else torch.float32
    if dtype != "auto":
        if dtype not in _DTYPES:
            raise LoadError(f"'{dtype}' is not a dtype; it must be one of auto, {', '.join((*_DTYPES, *BITS))}.")
        return _DTYPES[dtype]
    own: torch.dtype = config.dtype or config.get_text_config(decoder=True).dtype or torch.float32
    try:
        small = device.type == "cpu" and float32_bytes(path, own) <= _SMALL_BYTES
        # What kernels of GPUs were made for. Quantized weights are multiplied in bfloat16 or float32 on a CPU.
        if own == torch.float16 and device.type == "cpu" and is_quantized(path) and _multiplies_bfloat16():
            own = torch.bfloat16
    except CheckpointError as error:
        raise LoadError(str(error)) from error
    if small:
        return torch.float32
    return torch.float16 if own == torch.bfloat16 and not has_bfloat16(device) else own


def _multiplies_bfloat16() -> bool:
    """Whether the CPU does, and torch has it do so."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def read_config(path: Path) -> Any:
    """The configuration of the checkpoint in a folder.

    Raises:
        LoadError: it is no checkpoint that can be loaded.
    """
    if not path.is_dir():
        raise LoadError(f"There is no model folder '{path}'.")
    if not (path / "config.json").is_file():
        raise LoadError(f"The model folder '{path}' has no config.json.")
    if not any(path.glob("*.safetensors")) and gguf_of(path) is None:
        raise LoadError(f"The model folder '{path}' has no *.safetensors file; other formats are not loaded.")
    # Registered models may add configuration classes (`AutoConfig.register`).
    MULTIMODAL_REGISTRY.load()
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, TypeError) as error:
        raise LoadError(f"'{path / 'config.json'}' is not a configuration transformers knows: {error}") from error


def _read_model(
    path: Path,
    config: Any,
    auto_class: Any,
    dtype: torch.dtype,
    device: torch.device,
    *,
    keep: bool = False,
    ranks: int = 1,
) -> Any:
    keep = keep and device.type == "cpu" and can_multiply(dtype)
    try:
        # With several ranks transformers reads each one's share itself.
        weights = (
            read_weights(path, config, auto_class, dtype, device, can_keep if keep else None) if ranks == 1 else None
        )
        # transformers reads the tensors itself, or is given them, and then no folder.
        source = {"pretrained_model_name_or_path": path} if weights is None else {"state_dict": weights.tensors}
        reader = auto_class if weights is None else model_class(auto_class, config)
        model, found = reader.from_pretrained(
            **{"pretrained_model_name_or_path": None, **source},
            config=config if weights is None else plain(config_of(reader, config)),
            dtype=dtype,
            attn_implementation="eager",  # the only one that implements every feature: sdpa drops a softcap
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **_shared_by(ranks),
        )
        model = model.to(device).eval()
    except CheckpointError as error:
        raise LoadError(str(error)) from error
    except OUT_OF_MEMORY as error:
        raise LoadError(f"The model in '{path}' does not fit into the memory of {device}.") from error
    except (
        Exception
    ) as error:  # safetensors, transformers and torch raise many kinds, all with the file's fault in them
        raise LoadError(f"The weights in '{path}' cannot be loaded: {error}") from error
    # transformers only warns about absent weights and draws them at random: an answer would be noise.
    missing = (key for key in found["missing_keys"] if not key.startswith(_OPTIONAL_WEIGHTS))
    absent = sorted(missing) + sorted(str(key) for key in found["mismatched_keys"])
    if absent:
        raise LoadError(f"The weights in '{path}' lack {len(absent)} tensors or have other shapes: {absent[0]} ...")
    if weights is not None:
        keep_blocks(model, weights.blocks, dtype)
    return model


def _shared_by(ranks: int) -> dict[str, Any]:
    """What has transformers read one rank's share of a model."""
    if ranks == 1:
        return {}
    # Here: releases before the first that can split models do not have it.
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks)}


def auto_class_of(path: Path, config: Any) -> Any:
    """The class of transformers that loads a language model.

    Raises:
        LoadError: it is no language model.
    """
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    raise LoadError(f"'{path / 'config.json'}' describes a {config.model_type}, which is not a language model.")


def _eos_token_ids(path: Path, config: Any, text: Any) -> tuple[int, ...]:
    # Chat models often list their end-of-turn token in `generation_config.json` only, so all sources count.
    sources = [config, text]
    if (path / "generation_config.json").is_file():
        try:
            sources.append(GenerationConfig.from_pretrained(path, local_files_only=True))
        except (ValueError, OSError) as error:
            raise LoadError(f"'{path / 'generation_config.json'}' cannot be read: {error}") from error
    ids: set[int] = set()
    for source in sources:
        found = getattr(source, "eos_token_id", None)
        ids.update(found if isinstance(found, list | tuple) else [] if found is None else [found])
    return tuple(sorted(ids))


def _context_length(text: Any) -> int:
    found = (getattr(text, name, None) for name in _CONTEXT_NAMES)
    return next((length for length in found if isinstance(length, int) and length > 0), _UNBOUNDED_CONTEXT)


def _unused_positions(model: Any) -> int:
    """Positions that a model never uses: RoBERTa and relatives start after the padding's index."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    padding = (getattr(table, "padding_idx", None) for table in tables)
    return max((index + 1 for index in padding if index is not None), default=0)
