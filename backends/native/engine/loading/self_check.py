"""At load: is the packed tier right for this kind of model?

A small random copy of the same class answers three sequences twice: plainly, and the way the packed tier would, with
prompts in chunks, shuffled pages, then token by token. The logits must agree, and must be shown to depend on earlier
tokens, or agreement would mean nothing. Models with state beside keys and values (Mamba and relatives) run without an
error and fail here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.attention.interface import Kernel, text_part
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.loading.tiny_copy import VOCAB, shrunken_copy
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit

_ATTENTION = {"full_attention", "sliding_attention"}
_BLOCK_SIZE = 4
# Where each sequence is cut into steps. All are longer than `shrink.WINDOW` and than a block.
_CUTS = ((0, 9, 10, 11, 12), (0, 13, 18, 19, 20), (0, 30, 31, 32, 33))
# As parts of the largest logit: the most two right answers may differ, the least a changed token must move them.
TOLERANCE = 1e-4
SENSITIVITY = 1e-3


Change = Callable[[Any], None]


def why_not_packed(model: Any, kernel: Kernel = best_kernel, change: Change = lambda _: None) -> str | None:
    """Why `model` must run on the cache tier, or None if the packed tier with `kernel` is right for it.

    `change` is what will be done to the model before it is run packed, in place.
    """
    why = _why_small_copy_differs(model, kernel, change)
    if why is None or model._supports_attention_backend:  # noqa: SLF001 - a flag that classes declare, not all that could
        return why
    return "it has no attention interface"


def _why_small_copy_differs(model: Any, kernel: Kernel, change: Change) -> str | None:
    kinds = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ())
    if kinds - _ATTENTION:
        return f"it has layers of kind {', '.join(sorted(kinds - _ATTENTION))}"
    return on_small_copy(model, lambda small: compare(small, kernel, change))


def on_small_copy(model: Any, check: Callable[[Any], str | None]) -> str | None:
    """What `check` says of a small copy of `model`, or why there is none."""
    whys = []
    for few_heads, few_layers in product((True, False), repeat=2):
        try:
            with torch.inference_mode():
                small = shrunken_copy(model, few_heads=few_heads, few_layers=few_layers)
                lacking = _parts(model) - _parts(small)
                if not lacking:
                    return check(small)
            whys.append(f"a small copy lacks {', '.join(sorted(lacking))}")
        except Exception as error:  # whatever a foreign model class raises if its sizes do not suit it
            whys.append(f"a small copy fails: {type(error).__name__}: {error}")
    return "; ".join(whys)


def _parts(model: Any) -> set[str]:
    """The kinds of modules that text goes through, but for those that we have put in."""
    kinds = {type(module) for module in text_part(model).modules()}
    return {kind.__name__ for kind in kinds if not kind.__module__.startswith("backends.")}


def compare(model: Any, kernel: Kernel, change: Change) -> str | None:
    """Run `model` plainly and packed; why the answers do not agree, or None if they do. Leaves it changed."""
    tokens = prompts(model.device)
    text_part(model).set_attn_implementation("eager")
    plain = [plain_logits(model, row) for row in tokens]
    scale = max(float(logits.abs().max()) for logits in plain)
    moved = min(_sensitivity(model, row, logits) for row, logits in zip(tokens, plain, strict=True))
    change(model)
    error = packed_error(model, kernel, tokens, plain)
    if not error <= TOLERANCE * scale:
        return f"its small copy gives other logits when packed ({error:.1e} of {scale:.1e})"
    if not moved >= max(SENSITIVITY * scale, 10 * error):
        return f"its small copy hardly depends on earlier tokens ({moved:.1e} of {scale:.1e})"
    return None


def prompts(device: torch.device) -> list[Tensor]:
    """The sequences' tokens."""
    rows = torch.randint(0, VOCAB, (len(_CUTS), _CUTS[-1][-1]), generator=torch.Generator().manual_seed(0))
    return [row[: cuts[-1]].to(device) for row, cuts in zip(rows, _CUTS, strict=True)]


def plain_logits(model: Any, tokens: Tensor) -> Tensor:
    """[tokens, vocabulary], by the model's own forward."""
    logits: Tensor = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0]
    return logits


def _sensitivity(model: Any, tokens: Tensor, logits: Tensor) -> float:
    """How far other tokens, all but the last three, move the last logits."""
    changed = tokens.clone()
    changed[:-3] = (changed[:-3] + 1) % VOCAB
    return float((plain_logits(model, changed)[-1] - logits[-1]).abs().max())


def packed_error(
    model: Any,
    kernel: Kernel,
    tokens: list[Tensor],
    plain: list[Tensor],
    lora_adapters: tuple[str, ...] = ("",) * len(_CUTS),
) -> float:
    """The largest difference over all steps of all sequences, each with its LoRA adapter."""
    blocks_each = -(-max(cuts[-1] for cuts in _CUTS) // _BLOCK_SIZE)
    blocks = torch.randperm(len(tokens) * blocks_each, generator=torch.Generator().manual_seed(0)).tolist()
    runner = PackedRunner(model, KVCache(len(blocks), _BLOCK_SIZE), kernel)
    sequences = []
    for index, row in enumerate(tokens):
        sequence = Sequence(0, Submit(index, tuple(row.tolist()), 1, lora_adapter=lora_adapters[index]), index)
        sequence.blocks.extend(blocks[index * blocks_each : (index + 1) * blocks_each])
        sequences.append(sequence)
    errors = []
    for spans in zip(*(pairwise(cuts) for cuts in _CUTS), strict=True):
        works = [Work(s, start, end - start, samples=True) for s, (start, end) in zip(sequences, spans, strict=True)]
        expected = torch.stack([logits[end - 1] for logits, (_, end) in zip(plain, spans, strict=True)])
        errors.append(float((runner.run(works) - expected).abs().max()))
    return max(errors)
