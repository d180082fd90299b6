"""The self-check at load: does the packed execution path give the model's own logits?

Strategy: differential testing at every start, instead of a list of model types. A small random copy of the same class
runs three sequences twice: by transformers' own forward, and packed, with prompts in chunks, shuffled cache blocks,
then token by token. The logits must agree. They must also be shown to depend on earlier tokens, or agreement would
prove nothing. Models with state that the packed path does not know run packed without an error and are detected here.
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
from backends.native.engine.devices import OUT_OF_MEMORY
from backends.native.engine.errors import LoadError
from backends.native.engine.loading.tiny_copy import VOCAB, shrunken_copy
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.state.mixers import is_recurrent_model
from backends.native.protocol.messages import Submit

# Kinds of layers whose behaviour does not change at a length or a number that the small copy does not reach.
_KINDS = {"full_attention", "sliding_attention", "reference_sliding_attention", "chunked_attention"} | {
    "linear_attention",
    "conv",
    "hybrid",
    "hybrid_sliding",
    "moe",
    "mlp",
    "dense",
    "sparse",
}
BLOCK_SIZE = 4
"""Tokens of a block of the check's cache."""
# Where each sequence is cut into steps. All are longer than `tiny_copy.WINDOW` and than a block.
# The spans run in parallel: the second step holds one decode beside two further chunks, the later ones are decodes.
_CUTS = ((0, 9, 10, 11, 12), (0, 13, 18, 19, 20), (0, 30, 31, 32, 33))
# Relative to the largest logit: the most that two right results may differ, and the least that a changed token must
# move the logits.
TOLERANCE = 1e-4
SENSITIVITY = 1e-3


Change = Callable[[Any], None]


def why_not_packed(model: Any, kernel: Kernel = best_kernel, change: Change = lambda _: None) -> str | None:
    """Why `model` must not run packed, as the end of a sentence; None if the packed path is right for it.

    Args:
        model: a causal or composite language model.
        kernel: the attention kernel of the packed path.
        change: replaces layers of a model in place, as will be done to `model` before it runs packed.
    """
    why = _why_small_copy_differs(model, kernel, change)
    # A flag that classes declare, not all that could: those with recurrent layers never do.
    if why is None or model._supports_attention_backend or is_recurrent_model(model):  # noqa: SLF001
        return why
    return "it has no attention interface"


def _why_small_copy_differs(model: Any, kernel: Kernel, change: Change) -> str | None:
    unknown = changes_with_length(model)
    if unknown:
        return f"it has layers of kind {', '.join(sorted(unknown))}"
    return on_small_copy(model, lambda small: compare(small, kernel, change))


def changes_with_length(model: Any) -> set[str]:
    """The kinds of the model's layers that may behave otherwise at lengths that a small copy does not reach."""
    return set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()) - _KINDS


def on_small_copy(model: Any, check: Callable[[Any], str | None]) -> str | None:
    """The result of `check` on a small copy of `model`, or the reasons why no copy can be made.

    Raises:
        LoadError: there is no memory for a copy, which says nothing about the model.
    """
    whys = []
    # Smallest first. A class that cannot be built with fewer heads or layers is tried with its own numbers.
    for few_heads, few_layers in product((True, False), repeat=2):
        try:
            with torch.inference_mode():
                small = shrunken_copy(model, few_heads=few_heads, few_layers=few_layers)
                missing = _module_kinds(model) - _module_kinds(small)
                if not missing:
                    return check(small)
            whys.append(f"a small copy lacks {', '.join(sorted(missing))}")
        except OUT_OF_MEMORY as error:
            raise LoadError(
                f"The model leaves no memory of {model.device} for the small copy that it is checked by: {error}"
            ) from None
        except Exception as error:  # whatever a foreign model class raises if its sizes do not suit it
            whys.append(f"a small copy fails: {type(error).__name__}: {error}")
    return "; ".join(whys)


def _module_kinds(model: Any) -> set[str]:
    """Class names of the modules that text passes through, without the engine's own replacements."""
    kinds = {type(module) for module in text_part(model).modules()}
    return {kind.__name__ for kind in kinds if not kind.__module__.startswith("backends.")}


def compare(model: Any, kernel: Kernel, change: Change) -> str | None:
    """Run `model` by its own forward and packed; why the logits differ, or None if they agree. Changes `model`."""
    tokens = prompts(model.device)
    text_part(model).set_attn_implementation("eager")
    # Step 1: the model's own logits, before `change` replaces layers in place.
    plain = [plain_logits(model, row) for row in tokens]
    scale = max(float(logits.abs().max()) for logits in plain)
    # Some recurrent layers compute a little else in decode than in prefill (Nemotron-H and Zamba 2 bound the length of
    # a time step in prefill only); then generation's logits are the model's own, too.
    cached = _cached_logits(model, tokens) if is_recurrent_model(model) else None
    moved = min(_sensitivity(model, row, logits) for row, logits in zip(tokens, plain, strict=True))
    change(model)
    # Step 2: the packed logits of the same model object.
    packed = packed_logits(model, kernel, tokens)
    error = min(_difference(packed, expected) for expected in (at_cuts(plain), cached) if expected is not None)
    # `not <=` instead of `>`: NaN fails, too.
    if not error <= TOLERANCE * scale:
        return f"its small copy gives other logits when packed ({error:.1e} of {scale:.1e})"
    # An error must be clearly smaller than what a wrong context would cause, or agreement says nothing.
    if not moved >= max(SENSITIVITY * scale, 10 * error):
        return f"its small copy hardly depends on earlier tokens ({moved:.1e} of {scale:.1e})"
    return None


def prompts(device: torch.device) -> list[Tensor]:
    """The tokens of the check's sequences; the same at every call."""
    # Without the first ids: as padding's, a token would get another position (RoBERTa).
    rows = torch.randint(3, VOCAB, (len(_CUTS), _CUTS[-1][-1]), generator=torch.Generator().manual_seed(0))
    return [row[: cuts[-1]].to(device) for row, cuts in zip(rows, _CUTS, strict=True)]


def plain_logits(model: Any, tokens: Tensor) -> Tensor:
    """Logits [tokens, vocabulary] by the model's own forward."""
    logits: Tensor = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0]
    return logits


def _sensitivity(model: Any, tokens: Tensor, logits: Tensor) -> float:
    """The largest change of the last logits when all tokens but the last three are changed."""
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
    """The largest difference of logits over all steps of all sequences, each with its LoRA adapter."""
    return _difference(packed_logits(model, kernel, tokens, lora_adapters), at_cuts(plain))


def packed_logits(
    model: Any, kernel: Kernel, tokens: list[Tensor], lora_adapters: tuple[str, ...] = ("",) * len(_CUTS)
) -> Tensor:
    """[steps, sequences, vocabulary], the last logits of every step of every sequence, each with its LoRA adapter."""
    runner = PackedRunner(model, KVCache(blocks_of(tokens), BLOCK_SIZE), kernel)
    return torch.stack([runner.run(works) for works in steps_of(tokens, lora_adapters)])


def steps_of(tokens: list[Tensor], lora_adapters: tuple[str, ...] = ("",) * len(_CUTS)) -> list[list[Work]]:
    """The works of every step of all sequences, each with its LoRA adapter."""
    # Shuffled: with blocks in order, code that ignored the block tables could be right by chance.
    blocks = torch.randperm(blocks_of(tokens), generator=torch.Generator().manual_seed(0)).tolist()
    sequences, each = [], len(blocks) // len(tokens)
    for index, row in enumerate(tokens):
        sequence = Sequence(0, Submit(index, tuple(row.tolist()), 1, lora_adapter=lora_adapters[index]), index)
        sequence.blocks.extend(blocks[index * each : (index + 1) * each])
        sequences.append(sequence)
    return [
        [Work(s, start, end - start, samples=True) for s, (start, end) in zip(sequences, spans, strict=True)]
        for spans in zip(*(pairwise(cuts) for cuts in _CUTS), strict=True)
    ]


def blocks_of(tokens: list[Tensor]) -> int:
    """The blocks that the sequences of `steps_of` have."""
    return len(tokens) * -(-max(cuts[-1] for cuts in _CUTS) // BLOCK_SIZE)


def at_cuts(plain: list[Tensor]) -> Tensor:
    """[steps, sequences, vocabulary], of whole sequences' logits [tokens, vocabulary] those that steps end with."""
    ends = zip(*(cuts[1:] for cuts in _CUTS), strict=True)
    return torch.stack([torch.stack([logits[end - 1] for logits, end in zip(plain, row, strict=True)]) for row in ends])


def _cached_logits(model: Any, tokens: list[Tensor]) -> Tensor:
    """[steps, sequences, vocabulary] by the model's own forward over transformers' cache, in the same steps."""
    rows = []
    for row, cuts in zip(tokens, _CUTS, strict=True):
        cache, logits = None, []
        for start, end in pairwise(cuts):
            outputs = model(input_ids=row[start:end].unsqueeze(0), past_key_values=cache, use_cache=True)
            # The model's own, of whatever class: some do not take another.
            cache = getattr(outputs, "past_key_values", None)
            logits.append(outputs.logits[0, -1])
        rows.append(torch.stack(logits))
    return torch.stack(rows, dim=1)


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())
