"""The choice of a model's execution path, and the replacement of its layers that goes with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog

from backends.native.engine.errors import LoadError
from backends.native.engine.layers.block_linear import expand_blocks
from backends.native.engine.layers.fuse_model import fuse_decoder_layers, fuse_layers
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.layers.quantized_linear import BITS, quantize_linears
from backends.native.engine.loading.self_check import Change, why_not_packed
from backends.native.engine.loading.splitting import split_model
from backends.native.engine.loading.weights import LoadedModel
from backends.native.engine.scheduling.scheduler import MOST_ROWS
from backends.native.protocol.engine_options import EngineOptions

log = structlog.get_logger()


def choose_path(loaded: LoadedModel, options: EngineOptions) -> bool:
    """Whether the model takes the packed execution path; its layers are replaced if the self-check accepts them."""
    if (ranks := options.tensor_parallel) > 1:
        # Layers stay transformers': those that replace them are for CPUs, or for weights that are not split.
        why = why_not_packed(loaded.model, change=partial(split_model, ranks=ranks))
        if why is not None:
            raise LoadError(f"This model cannot be split over {ranks} devices: {why}. Leave out tensor_parallel.")
        return True
    if options.execution_path != "auto":
        expand_blocks(loaded.model)
        _quantize(loaded, options)
        return options.execution_path == "packed"
    fuse = partial(fuse_layers, longest=loaded.context_length, join=not (options.lora_adapters or options.lora_folder))
    why = why_not_packed(loaded.model, change=partial(replace_in_small_copy, fuse=fuse))
    if why is None:
        # Order: joined projections are plain linear layers, which can then be quantized; quantized layers keep a plain
        # one inside, which can then be packed; and only layers made of packed parts become one call.
        fuse(loaded.model)
        _quantize(loaded, options)
        pack_linears(loaded.model)
        fuse_decoder_layers(loaded.model)
        return True
    if options.dtype in BITS:
        raise LoadError(f"This model cannot run in {options.dtype}: with other linear layers {why}.")
    expand_blocks(loaded.model)
    # The replaced layers may be at fault and not the packed path: check the model as it is.
    why = why_not_packed(loaded.model)
    if why is not None:
        log.warning("model.not_packed", model_type=loaded.config.model_type, execution_path="per_sequence", why=why)
    return why is None


def replace_in_small_copy(small: Any, fuse: Change) -> None:
    """Replace the layers of a small copy as those of its model will be, which `fuse` begins with, in place."""
    fuse(small)
    # Quantization is left out: it changes logits by design and would fail the comparison. `least=1`: every layer of the
    # small copy is below the size from which packing pays.
    pack_linears(small, least=1)
    fuse_decoder_layers(small)


def _quantize(loaded: LoadedModel, options: EngineOptions) -> None:
    # For an accelerator it was done when the weights were loaded.
    if options.dtype not in BITS or loaded.model.device.type != "cpu":
        return
    # With one code for all steps that verify drafts, a token does not depend on how many there are.
    most_rows = MOST_ROWS if options.speculation or options.draft_model else None
    if not quantize_linears(loaded.model, BITS[options.dtype], most_rows):
        raise LoadError(f"This model has no linear layers that could run in {options.dtype}.")
