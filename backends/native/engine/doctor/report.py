"""The examination: everything that is found on a machine, as one report."""

from __future__ import annotations

from pathlib import Path

import torch
from msgspec import Struct
from structlog.testing import capture_logs

from backends.native.engine.doctor.decoding import PROMPT, SPARE, Decoding, decode, weight_numbers
from backends.native.engine.doctor.machine import Machine, look_at
from backends.native.engine.doctor.routines import Routine, compare
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loading.weights import pick_device
from backends.native.protocol.engine_options import EngineOptions

SEQUENCES = (1, 8, 32)
_COPIED_BYTES = 256 * 1024**2


class Fallback(Struct, frozen=True):
    """Something that is not used, as the engine's log says: the event, what it is about, and why."""

    event: str
    what: str
    why: str


class Report(Struct, frozen=True):
    """What was found.

    Attributes:
        machine: what the engine runs on.
        routines: each against torch's.
        model: the folder that was loaded.
        dtype: of its weights.
        execution_path: `packed` or `per_sequence`; empty: the model was not loaded.
        decoding: of 1, 8 and 32 sequences.
        fallbacks: what is not used, and why.
        faults: what is wrong; empty: nothing.
    """

    machine: Machine
    routines: list[Routine]
    model: str
    dtype: str
    execution_path: str
    decoding: list[Decoding]
    fallbacks: list[Fallback]
    faults: list[str]


def examine(
    model: str, device: str = "auto", dtype: str = "auto", *, steps: int = 64, copied_bytes: int = _COPIED_BYTES
) -> Report:
    """Examine the machine, with the model of a folder.

    Args:
        model: the folder of a generating model.
        device: see `EngineOptions`.
        dtype: see `EngineOptions`.
        steps: decode steps that are measured, for each number of sequences.
        copied_bytes: of each copy by which bandwidth is measured.

    Raises:
        LoadError: there is no such device.
    """
    target = pick_device(device)
    with capture_logs() as logs:
        machine = look_at(target, copied_bytes)
        routines = compare(target)
        faults = [
            f"{each.name} in {each.dtype} differs from torch's by {each.error}" for each in routines if each.is_wrong
        ]
        loaded = _Loaded()
        try:
            loaded = _measure(model, device, dtype, steps, machine.copy_bytes_per_second)
        except (LoadError, RuntimeError) as error:
            faults.append(f"the model cannot be run: {error}")
    fallbacks = [
        Fallback(entry["event"], str(entry.get("kernel") or entry.get("model_type") or ""), str(entry["why"]))
        for entry in logs
        if "why" in entry
    ]
    return Report(machine, routines, model, loaded.dtype, loaded.execution_path, loaded.decoding, fallbacks, faults)


class _Loaded(Struct, frozen=True):
    """What was found with the model."""

    dtype: str = ""
    execution_path: str = ""
    decoding: list[Decoding] = []


def _measure(model: str, device: str, dtype: str, steps: int, bandwidth: float) -> _Loaded:
    """Load the model and measure decode; `bandwidth` in bytes a second."""
    most = max(SEQUENCES)
    options = EngineOptions(
        model,
        dtype=dtype,
        device=device,
        max_sequences=most,
        kv_tokens=most * (PROMPT + steps + SPARE + 16),
        prefix_caching=False,
        text_only=True,
    )
    engine, ready = load_engine(options, lambda _: None)
    bits = BITS[dtype] if dtype in BITS else getattr(torch, ready.dtype).itemsize * 8
    weights = weight_numbers(Path(model)) * bits // 8
    floor = weights / bandwidth if weights else None
    on = torch.device(ready.device)
    found = [decode(engine, on, ready.vocab_size, sequences, steps, floor) for sequences in SEQUENCES]
    return _Loaded(ready.dtype, ready.execution_path, found)
