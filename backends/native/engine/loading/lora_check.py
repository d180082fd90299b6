"""At load: do LoRA adapters beside the model give what the model would give with each of them merged?

Runs a small random copy, as `self_check` does, with two random LoRA adapters on the layers in question and one sequence
without any. A layer that is given a part of the rows (an expert's), or whose weight the model's code reads itself,
fails here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backends.native.engine.attention.interface import text_part
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.loading.self_check import (
    SENSITIVITY,
    TOLERANCE,
    on_small_copy,
    packed_error,
    plain_logits,
    prompts,
)
from backends.native.engine.lora.layers import LoraAdapter, LowRank, inject_lora
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit

FindError = Callable[[Any, list[Tensor], list[Tensor]], float]

_RANK = 4
_NAMES = ("", "one", "other")  # a LoRA adapter for each of the sequences


def why_not_adapted(model: Any, layers: Collection[str], execution_path: str) -> str | None:
    """Why the linear layers of these names cannot have LoRA adapters on this execution path, or None if they can."""
    error = {"packed": _packed_error, "per_sequence": _per_sequence_error}[execution_path]
    return on_small_copy(model, partial(_compare, kinds={_kind(layer) for layer in layers}, find_error=error))


def _kind(layer: str) -> str:
    """Its name, wherever in the model it stands: the copy has fewer blocks."""
    return re.sub(r"\d+", "*", layer)


def _compare(small: Any, kinds: Collection[str], find_error: FindError) -> str | None:
    layers = {name: module for name, module in small.named_modules() if _kind(name) in kinds}
    generator = torch.Generator().manual_seed(0)
    lora_adapters = {name: _random(layers, generator, small.device) for name in _NAMES[1:]}
    tokens = prompts(small.device)
    text_part(small).set_attn_implementation("eager")
    # Step 1: without LoRA, then with each LoRA adapter merged into the weights: the expectation.
    bare = [plain_logits(small, row) for row in tokens]
    expected = [bare[0]]
    for name, row in zip(_NAMES[1:], tokens[1:], strict=True):
        with _merged(layers, lora_adapters[name]):
            expected.append(plain_logits(small, row))
    scale = max(float(logits.abs().max()) for logits in expected)
    moved = min(float((a - b).abs().max()) for a, b in zip(bare[1:], expected[1:], strict=True))
    # Step 2: the same LoRA adapters beside the weights, in one step with a sequence that has none.
    inject_lora(small, lora_adapters)
    error = find_error(small, tokens, expected)
    if not error <= TOLERANCE * scale:
        return f"its small copy gives other logits with LoRA than with merged weights ({error:.1e} of {scale:.1e})"
    if not moved >= max(SENSITIVITY * scale, 10 * error):
        return f"its small copy hardly depends on the adapted layers ({moved:.1e} of {scale:.1e})"
    return None


def _packed_error(small: Any, tokens: list[Tensor], expected: list[Tensor]) -> float:
    return packed_error(small, best_kernel, tokens, expected, _NAMES)


def _per_sequence_error(small: Any, tokens: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference after all tokens but the last, and after the last."""
    runner = PerSequenceRunner(small)
    errors = []
    for index, (row, logits) in enumerate(zip(tokens, expected, strict=True)):
        sequence = Sequence(0, Submit(index, tuple(row.tolist()), 1, lora_adapter=_NAMES[index]), index)
        # A prompt, then one token: prefill and decode of the per-sequence path.
        most = len(row) - 1
        logits_of_chunks = [
            runner.run([Work(sequence, start, count, samples=True)]) for start, count in ((0, most), (most, 1))
        ]
        errors.append(float((torch.cat(logits_of_chunks) - logits[-2:]).abs().max()))
    return max(errors)


def _random(layers: dict[str, Any], generator: torch.Generator, device: torch.device) -> LoraAdapter:
    """A LoRA adapter that changes these layers by about as much as they say themselves."""

    def draw(size: int, fan: int) -> Tensor:
        return torch.randn(_RANK, size, generator=generator).mul(fan**-0.5).to(device)

    widths = {name: _delta_shape(layer) for name, layer in layers.items()}
    return {name: LowRank(draw(inputs, inputs), draw(outputs, _RANK)) for name, (inputs, outputs) in widths.items()}


def _delta_shape(layer: Any) -> tuple[int, int]:
    """Inputs and outputs; GPT-2's layers keep their weight the other way round."""
    outputs, inputs = layer.weight.shape
    return (inputs, outputs) if isinstance(layer, nn.Linear) else (outputs, inputs)


@contextmanager
def _merged(layers: dict[str, Any], lora: LoraAdapter) -> Iterator[None]:
    """The layers' weights as they would be with the LoRA adapter merged into them."""
    own = {name: layer.weight.data for name, layer in layers.items()}
    for name, layer in layers.items():
        delta = lora[name].a.T @ lora[name].b
        layer.weight.data = own[name] + (delta.T if isinstance(layer, nn.Linear) else delta)
    try:
        yield
    finally:
        for name, layer in layers.items():
            layer.weight.data = own[name]
