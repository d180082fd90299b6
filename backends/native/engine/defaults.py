"""What an engine takes for options that leave it to choose: its device, and the sizes of its steps."""

from __future__ import annotations

import torch
from msgspec import structs

from backends.native.engine.devices import default_device
from backends.native.engine.loading.weights import pick_device
from backends.native.protocol.engine_options import EngineOptions

# `max_sequences` and `step_tokens` where none are given: an accelerator reads its weights once for many rows.
_CPU_SIZES, _ACCELERATOR_SIZES = (64, 512), (256, 2048)


def with_own_device(options: EngineOptions) -> EngineOptions:
    """The options of one of several engines on this machine: its accelerator, and how many engines share that or the
    CPU.
    """
    kind = default_device().type if options.device == "auto" else options.device
    # A device with a number was chosen by the operator, and all engines share it.
    if options.replica_count == 1 or kind == "cpu" or ":" in kind or not torch.accelerator.is_available():
        return options
    ranks = options.tensor_parallel
    places = max(1, torch.accelerator.device_count() // ranks)
    sharers = -(-options.replica_count // places)
    return structs.replace(options, device=f"{kind}:{options.replica_number % places * ranks}", replica_count=sharers)


def with_sizes(options: EngineOptions) -> EngineOptions:
    """The options with sizes of a step in the place of zeros."""
    sequences, tokens = _CPU_SIZES if pick_device(options.device).type == "cpu" else _ACCELERATOR_SIZES
    return structs.replace(
        options, max_sequences=options.max_sequences or sequences, step_tokens=options.step_tokens or tokens
    )
